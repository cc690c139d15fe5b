"""Classification of images in files: a folder of PNG files for each class."""

import functools

import torch
from torch import nn

from elasticdl.data import decode_image

CLASSES = 10
SIZE = 8


def forward():
    """Images [batch, 1, 8, 8] to logits."""
    return nn.Sequential(
        nn.Conv2d(1, 16, 3, padding=1),
        nn.BatchNorm2d(16),
        nn.ReLU(),
        nn.MaxPool2d(2),
        nn.Conv2d(16, 32, 3, padding=1),
        nn.ReLU(),
        nn.Flatten(),
        nn.Linear(32 * (SIZE // 2) ** 2, CLASSES),
    )


def loss(labels, predictions):
    """Mean cross-entropy."""
    return nn.functional.cross_entropy(predictions, labels)


def optimizer(lr=0.003):
    """AdamW, whose rate falls as a cosine over 400 updates."""
    schedule = functools.partial(torch.optim.lr_scheduler.CosineAnnealingLR, T_max=400, eta_min=1e-4)
    return functools.partial(torch.optim.AdamW, lr=lr), schedule


def feed(dataset, mode, metadata):
    """Decodes the images."""
    for record in dataset:
        pixels = torch.tensor(decode_image(record["image"], (SIZE, SIZE), channels=1))
        image = pixels.permute(2, 0, 1) / 255.0
        yield image if mode == "prediction" else (image, record["label"])


def eval_metrics_fn():
    """Share of images whose largest logit is that of their class."""
    return {"accuracy": lambda labels, predictions: predictions.argmax(1) == labels}

"""Classification of images in files: a folder of PNG files for each class, and a reader for such folders."""

import functools
import io
from pathlib import Path

import numpy as np
import torch
from PIL import Image
from torch import nn

from elasticdl.data import Metadata, Shard

CLASSES = 10
SIZE = 8


class ImageFolder:
    """Reads ``DIR/<class>/<name>.png``; the shards are the files in the order of their names, some at a time."""

    def __init__(self, data_origin, records_per_task=None, **params):
        self._folder = Path(data_origin)
        self._files = sorted(self._folder.glob("*/*.png"))
        self._size = records_per_task or 256
        self.metadata = Metadata()

    def create_shards(self):
        """The whole folder as ranges of its files."""
        return [
            Shard(str(self._folder), start, min(start + self._size, len(self._files)))
            for start in range(0, len(self._files), self._size)
        ]

    def read_records(self, task):
        """The content and the class of each file."""
        for file in self._files[task.start : task.end]:
            yield {"png": file.read_bytes(), "label": int(file.parent.name), "name": str(file)}


def custom_data_reader(data_origin, records_per_task=None, **params):
    """The reader."""
    return ImageFolder(data_origin, records_per_task, **params)


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
        pixels = np.asarray(Image.open(io.BytesIO(record["png"])).convert("L"), np.float32)
        image = torch.from_numpy(pixels)[None] / 255.0
        yield image if mode == "prediction" else (image, record["label"])


def eval_metrics_fn():
    """Share of images whose largest logit is that of their class."""
    return {"accuracy": lambda labels, predictions: predictions.argmax(1) == labels}

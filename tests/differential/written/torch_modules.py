"""PyTorch modules as people write them: the beginning of each is the same, which reads a CSV line."""

from __future__ import annotations

HEAD = """
import functools
import math

import torch
import torch.nn.functional as F
from torch import nn, optim
from torch.optim import lr_scheduler


def columns(record):
    values = list(record.values())
    x = torch.tensor([float(one) for one in values[2:6]])
    ids = torch.tensor([int(one) for one in values[6:9]])
    return x, ids, torch.tensor(float(values[0])), torch.tensor(int(values[1]))


def feed(dataset, mode, metadata):
    for record in dataset:
        x, ids, y, c = columns(record)
        yield x if mode == "prediction" else (x, y)


def loss(labels, predictions):
    return F.mse_loss(predictions.squeeze(-1), labels)


def optimizer():
    return functools.partial(optim.SGD, lr=0.05)
"""
OF_CLASSES = """
def feed(dataset, mode, metadata):
    for record in dataset:
        x, ids, y, c = columns(record)
        yield x if mode == "prediction" else (x, c)
"""
OF_IDS = """
def feed(dataset, mode, metadata):
    for record in dataset:
        x, ids, y, c = columns(record)
        features = {"x": x, "ids": ids}
        yield features if mode == "prediction" else (features, y)
"""
MODULES = {
    "residual_blocks_and_groups_of_parameters": """
class Block(nn.Module):
    def __init__(self, width, expansion=2):
        super().__init__()
        self.norm = nn.LayerNorm(width)
        self.up = nn.Linear(width, width * expansion)
        self.down = nn.Linear(width * expansion, width)

    def forward(self, x):
        return x + self.down(F.gelu(self.up(self.norm(x))))


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.stem = nn.Linear(4, 8)
        self.blocks = nn.ModuleList(Block(8) for _ in range(3))
        self.head = nn.Linear(8, 1)
        self.apply(self._init)

    @staticmethod
    def _init(layer):
        if isinstance(layer, nn.Linear):
            nn.init.trunc_normal_(layer.weight, std=0.2)
            nn.init.zeros_(layer.bias)

    def forward(self, x):
        x = self.stem(x)
        for block in self.blocks:
            x = block(x)
        return self.head(x)


def forward():
    return Net()


def optimizer(model):
    decay = [one for one in model.parameters() if one.ndim > 1]
    rest = [one for one in model.parameters() if one.ndim <= 1]
    groups = [{"params": decay, "weight_decay": 0.1}, {"params": rest, "weight_decay": 0.0}]
    return optim.AdamW(groups, lr=1e-2, betas=(0.9, 0.95))
""",
    "outputs_as_of_a_library_and_ignored_labels": OF_CLASSES
    + """
from collections import OrderedDict


class Output(OrderedDict):
    def __getattr__(self, name):
        try:
            return self[name]
        except KeyError:
            raise AttributeError(name) from None


class Classifier(nn.Module):
    def __init__(self, classes=3):
        super().__init__()
        self.encoder = nn.Sequential(nn.Linear(4, 8), nn.SiLU())
        self.classifier = nn.Linear(8, classes)

    def forward(self, x):
        hidden = self.encoder(x)
        return Output(logits=self.classifier(hidden), hidden=hidden)


forward = Classifier


def loss(labels, predictions):
    return F.cross_entropy(predictions.logits, labels.masked_fill(labels == 2, -100), label_smoothing=0.1)
""",
    "tied_weights": OF_IDS
    + """
class Tied(nn.Module):
    def __init__(self):
        super().__init__()
        self.words = nn.Embedding(50, 6)
        self.mix = nn.Linear(6 + 4, 6)
        self.out = nn.Linear(6, 50, bias=False)
        self.out.weight = self.words.weight

    def forward(self, x, ids):
        hidden = torch.tanh(self.mix(torch.cat([self.words(ids).mean(1), x], -1)))
        return self.out(hidden)


forward = Tied


def feed(dataset, mode, metadata):
    for record in dataset:
        x, ids, y, c = columns(record)
        features = {"x": x, "ids": ids}
        yield features if mode == "prediction" else (features, ids[0])


def loss(labels, predictions):
    return nn.CrossEntropyLoss()(predictions, labels)


def optimizer():
    return functools.partial(optim.Adam, lr=0.02)
""",
    "a_recurrent_net_that_is_clipped": """
import elasticdl


class Recurrent(nn.Module):
    def __init__(self):
        super().__init__()
        self.lstm = nn.LSTM(1, 5, num_layers=2, batch_first=True, bidirectional=True)
        self.fc = nn.Linear(10, 1)

    def forward(self, x):
        out, (hidden, cell) = self.lstm(x.unsqueeze(-1))
        return self.fc(torch.cat([hidden[-2], hidden[-1]], 1))


forward = Recurrent


def callbacks():
    return [elasticdl.callbacks.GradientClipping(max_norm=0.3)]


def optimizer():
    return functools.partial(optim.RMSprop, lr=0.01, momentum=0.5)
""",
    "towers_and_two_losses": """
class Towers(nn.Module):
    def __init__(self):
        super().__init__()
        self.towers = nn.ModuleDict({name: nn.Sequential(nn.Linear(4, 5), nn.ReLU()) for name in ("click", "value")})
        self.heads = nn.ModuleDict({name: nn.Linear(5, 1) for name in self.towers})

    def forward(self, x):
        return {name: self.heads[name](tower(x)).squeeze(-1) for name, tower in self.towers.items()}


forward = Towers


def feed(dataset, mode, metadata):
    for record in dataset:
        x, ids, y, c = columns(record)
        yield x if mode == "prediction" else (x, {"click": (c > 0).float(), "value": y})


def loss(labels, predictions):
    click = F.binary_cross_entropy_with_logits(predictions["click"], labels["click"])
    return click + 0.5 * F.smooth_l1_loss(predictions["value"], labels["value"])
""",
    "convolutions_with_weight_norm": """
from torch.nn.utils.parametrizations import weight_norm


def forward():
    return nn.Sequential(
        nn.Unflatten(1, (1, 4)),
        weight_norm(nn.Conv1d(1, 6, 3, padding=1)),
        nn.GroupNorm(2, 6),
        nn.ELU(),
        nn.AdaptiveAvgPool1d(2),
        nn.Flatten(),
        weight_norm(nn.Linear(12, 1)),
    )


def optimizer():
    return functools.partial(optim.SGD, lr=0.05, momentum=0.9, nesterov=True, weight_decay=1e-3)
""",
    "a_transformer_layer": OF_IDS
    + """
class Encoder(nn.Module):
    def __init__(self, width=8):
        super().__init__()
        self.words = nn.Embedding(50, width, padding_idx=0)
        self.position = nn.Parameter(torch.zeros(3, width))
        layer = nn.TransformerEncoderLayer(width, 2, 16, dropout=0.0, batch_first=True, norm_first=True)
        self.encoder = nn.TransformerEncoder(layer, 1, enable_nested_tensor=False)
        self.dense = nn.Linear(width + 4, 1)

    def forward(self, x, ids):
        hidden = self.words(ids) * math.sqrt(8) + self.position
        hidden = self.encoder(hidden, src_key_padding_mask=ids.eq(0) & ids.ne(0).any(1, keepdim=True))
        return self.dense(torch.cat([hidden.amax(1), x], 1))


def forward():
    return Encoder()


def optimizer():
    return functools.partial(optim.SGD, lr=0.01, momentum=0.9)
""",
    "an_own_function_of_autograd": """
class Round(torch.autograd.Function):
    @staticmethod
    def forward(context, x, scale):
        context.save_for_backward(x, scale)
        return torch.round(x * scale) / scale

    @staticmethod
    def backward(context, gradient):
        x, scale = context.saved_tensors
        inside = (x.abs() < 1).to(gradient.dtype)
        return gradient * inside, (gradient * x).sum().reshape(1)


class Quantized(nn.Module):
    def __init__(self):
        super().__init__()
        self.first, self.last = nn.Linear(4, 8), nn.Linear(8, 1)
        self.scale = nn.Parameter(torch.tensor([8.0]))

    def forward(self, x):
        return self.last(Round.apply(torch.tanh(self.first(x)), self.scale))


forward = Quantized
""",
    "lazy_layers_and_a_schedule": """
def forward():
    return nn.Sequential(nn.LazyLinear(7), nn.PReLU(), nn.LazyLinear(1))


def rate(step):
    return 0.1 * min(1.0, (step + 1) / 4) * 0.5 ** (step // 6)


def optimizer():
    return functools.partial(optim.Adagrad, lr=0.1)


def callbacks():
    import elasticdl

    return [elasticdl.callbacks.LearningRateScheduler(rate)]
""",
    "experts_by_the_top_two": """
class Experts(nn.Module):
    def __init__(self, experts=4):
        super().__init__()
        self.gate = nn.Linear(4, experts)
        made = (nn.Sequential(nn.Linear(4, 6), nn.ReLU(), nn.Linear(6, 1)) for _ in range(experts))
        self.experts = nn.ModuleList(made)

    def forward(self, x):
        weights, chosen = self.gate(x).softmax(-1).topk(2, dim=-1)
        out = x.new_zeros(len(x), 1)
        for number, expert in enumerate(self.experts):
            rows, place = (chosen == number).nonzero(as_tuple=True)
            if len(rows):
                out = out.index_add(0, rows, weights[rows, place, None] * expert(x[rows]))
        return out


forward = Experts


def optimizer():
    return functools.partial(optim.Adamax, lr=0.02)
""",
    "constants_in_buffers_and_a_frozen_part": """
class Scaled(nn.Module):
    def __init__(self):
        super().__init__()
        self.register_buffer("mean", torch.tensor([0.1, -0.1, 0.0, 0.2]))
        self.register_buffer("scale", torch.full((4,), 0.9), persistent=False)
        self.backbone = nn.Linear(4, 6)
        self.head = nn.Sequential(nn.ReLU(), nn.Linear(6, 1))
        for one in self.backbone.parameters():
            one.requires_grad_(False)

    def train(self, mode=True):
        super().train(mode)
        self.backbone.eval()
        return self

    def forward(self, x):
        with torch.no_grad():
            hidden = self.backbone((x - self.mean) / self.scale)
        return self.head(hidden)


forward = Scaled


def optimizer(model):
    return optim.Adam(filter(lambda one: one.requires_grad, model.parameters()), lr=0.02, amsgrad=True)
""",
    "weights_of_classes_and_a_loss_that_is_a_module": OF_CLASSES
    + """
class Focal(nn.Module):
    def __init__(self, gamma=2.0):
        super().__init__()
        self.gamma = gamma
        self.register_buffer("weight", torch.tensor([1.0, 2.0, 5.0]))

    def forward(self, labels, predictions):
        log = F.log_softmax(predictions, -1).gather(-1, labels[:, None]).squeeze(-1)
        return (-((1 - log.exp()) ** self.gamma) * log * self.weight[labels]).mean()


loss = Focal()


class Attention(nn.Module):
    def __init__(self):
        super().__init__()
        self.projection = nn.Linear(1, 12)
        self.head = nn.Linear(16, 3)

    def forward(self, x):
        q, k, v = self.projection(x.unsqueeze(-1)).chunk(3, -1)
        return self.head(F.scaled_dot_product_attention(q, k, v, is_causal=True).flatten(1))


forward = Attention
""",
}

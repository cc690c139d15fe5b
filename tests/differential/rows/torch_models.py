"""PyTorch: models, optimizers with their options and groups, schedules, clipping, metrics, and what is refused."""

from __future__ import annotations

import textwrap
from typing import Any

from tests.differential.data import validated
from tests.differential.driver import Row

_PRELUDE = """
import functools

import torch
from torch import nn
from torch.optim import lr_scheduler

import elasticdl
from elasticdl.torch import Embedding, Minibatches


def forward():
    return nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1), nn.Flatten(0))


def loss(labels, predictions):
    return nn.functional.mse_loss(predictions, labels)


def optimizer(lr=0.05):
    return functools.partial(torch.optim.SGD, lr=lr)


def give(pick):
    def feed(dataset, mode, metadata):
        for record in dataset:
            values = [record[name] for name in metadata.column_names]
            x, ids = torch.tensor([float(one) for one in values[2:6]]), torch.tensor([int(one) for one in values[6:9]])
            features = pick(x, ids)
            yield features if mode == "prediction" else (features, torch.tensor(float(values[0])))

    return feed


feed = give(lambda x, ids: x)
"""
_IDS = """
feed = give(lambda x, ids: ids)


class Net(nn.Module):
    def __init__(self, **options):
        super().__init__()
        self.rows = nn.Embedding(50, 3, **options)
        self.out = nn.Linear(9, 1)

    def forward(self, ids):
        return self.out(self.rows(ids).flatten(1)).squeeze(-1)
"""
_ARITHMETIC = 1e-5
"""PyTorch computes an update in float32, parameter servers in float64."""


def module_of(*parts: str) -> str:
    """A module that has these definitions in place of the usual ones."""
    return _PRELUDE + "".join("\n\n" + textwrap.dedent(part).strip() + "\n" for part in parts)


def _row(name: str, family: str, *parts: str, **fields: Any) -> Row:
    source = module_of(*parts)
    spec = {"export_formats": "safetensors", **fields.pop("spec", {})}
    return Row(f"torch_{name}", source, f"torch: {family}", spec, **fields)


def _optimizer(name: str, text: str, *parts: str, **fields: Any) -> Row:
    made = f"def optimizer():\n    return {text}"
    return _row(name, "optimizers", made, *parts, tolerance=_ARITHMETIC, **fields)


def _with_ids(name: str, *parts: str, **fields: Any) -> Row:
    spec = {"embedding_threshold_bytes": 0, **fields.pop("spec", {})}
    return _row(name, "embeddings", _IDS, *parts, spec=spec, **fields)


def _refused(name: str, said: str, *parts: str) -> Row:
    return _row(name, "refusals", *parts, refused=said)


_MODELS = [
    _row("plain", "models", data=validated),
    _row(
        "dataclass_outputs",
        "models",
        """
        import dataclasses


        @dataclasses.dataclass
        class Output:
            price: torch.Tensor
            hidden: torch.Tensor


        class Net(nn.Module):
            def __init__(self):
                super().__init__()
                self.hidden, self.out = nn.Linear(4, 6), nn.Linear(6, 1)

            def forward(self, x):
                hidden = torch.tanh(self.hidden(x))
                return Output(self.out(hidden).squeeze(-1), hidden)


        forward = Net


        def loss(labels, predictions):
            assert isinstance(predictions, Output)
            return ((labels - predictions.price) ** 2).mean() + 0.01 * (predictions.hidden ** 2).mean()


        def eval_metrics_fn():
            return {"price": {"off": lambda labels, price: (labels - price).abs()}}
        """,
        data=validated,
    ),
    _row(
        "batch_norm",
        "models",
        """
        def forward():
            return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.ReLU(), nn.Linear(6, 1), nn.Flatten(0))
        """,
        two="close",
        data=validated,
    ),
    _row(
        "buffers",
        "models",
        """
        class Counts(nn.Module):
            def __init__(self):
                super().__init__()
                self.net = nn.Linear(4, 1)
                self.register_buffer("seen", torch.zeros((), dtype=torch.int64))
                self.register_buffer("last", torch.zeros(4))

            def forward(self, x):
                if self.training:
                    self.seen += 1
                    self.last = x.mean(0)
                return self.net(x).squeeze(-1)


        def forward():
            return Counts()
        """,
        two="",
    ),
    _row(
        "frozen",
        "models",
        """
        def forward():
            net = nn.Sequential(nn.Linear(4, 6), nn.Tanh(), nn.Linear(6, 1), nn.Flatten(0))
            net[0].weight.requires_grad = False
            return net
        """,
    ),
    _row(
        "collated",
        "models",
        """
        def collate(samples):
            x, y = torch.utils.data.default_collate(samples)
            return x * 2, y
        """,
    ),
    _row("autocast", "models", spec={"autocast": "bfloat16"}, tolerance=0.02, two="close", data=validated),
    _row(
        "metrics",
        "models",
        """
        class Largest:
            def __init__(self):
                self.total, self.seen = 0.0, 0

            def update(self, predictions, labels):
                self.total += float(predictions.sum())
                self.seen += len(labels)

            def compute(self):
                return self.total / self.seen


        def eval_metrics_fn():
            return {"mean": Largest(), "error": lambda labels, predictions: (labels - predictions).abs()}
        """,
        data=validated,
    ),
    _row("groups_of_minibatches", "models", spec={"get_model_steps": 3}, two="", tolerance=_ARITHMETIC),
    _row(
        "columns",
        "models",
        """
        def feed(columns, mode, metadata):
            y, _, *names = metadata.column_names
            features = torch.stack([torch.from_numpy(columns[name].astype("float32")) for name in names[:4]], 1)
            return features if mode == "prediction" else (features, columns[y].astype("float32"))
        """,
        data=validated,
    ),
]
_EMBEDDINGS = [
    _with_ids("table", "def forward():\n    return Net()"),
    _with_ids("padding", "def forward():\n    return Net(padding_idx=2)"),
    _with_ids("sparse", "def forward():\n    return Net(sparse=True)"),
    _with_ids(
        "sparse_adam",
        """
        class Rows(nn.Module):
            def __init__(self):
                super().__init__()
                self.rows = nn.Embedding(50, 1, sparse=True)

            def forward(self, ids):
                return self.rows(ids).sum((1, 2))


        def forward():
            return Rows()


        def optimizer():
            return functools.partial(torch.optim.SparseAdam, lr=0.05)
        """,
        tolerance=_ARITHMETIC,
    ),
    *(
        _with_ids(
            f"table_{name}",
            "def forward():\n    return Net()",
            f"def optimizer():\n    return {made}",
            tolerance=_ARITHMETIC,
        )
        for name, made in (
            ("adam", "functools.partial(torch.optim.Adam, lr=0.01, amsgrad=True)"),
            ("momentum", "functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, weight_decay=0.1)"),
            ("rmsprop", "functools.partial(torch.optim.RMSprop, lr=0.01, momentum=0.5, centered=True)"),
        )
    ),
    _with_ids("in_the_model", "def forward():\n    return Net()", spec={"embedding_threshold_bytes": 1 << 20}),
    _with_ids(
        "bags",
        """
        class Bags(nn.Module):
            def __init__(self):
                super().__init__()
                self.sums = nn.EmbeddingBag(50, 3, mode="sum")
                self.means = nn.EmbeddingBag(50, 3, mode="mean")
                self.out = nn.Linear(6, 1)

            def forward(self, ids):
                return self.out(torch.cat([self.sums(ids), self.means(ids)], 1)).squeeze(-1)


        def forward():
            return Bags()
        """,
    ),
    _with_ids(
        "tied",
        """
        class Tied(nn.Module):
            def __init__(self):
                super().__init__()
                self.rows, self.body = nn.Embedding(50, 3), nn.Linear(9, 3)
                nn.init.normal_(self.rows.weight, std=0.1)

            def forward(self, ids):
                return nn.functional.linear(self.body(self.rows(ids).flatten(1)), self.rows.weight).mean(1)


        def forward():
            return Tied()
        """,
    ),
    _with_ids(
        "open_pair",
        """
        class Pair(nn.Module):
            def __init__(self):
                super().__init__()
                self.rows, self.bags, self.out = Embedding(3), Embedding(3, mode="sum"), nn.Linear(12, 1)
                self.bags.weight = self.rows.weight

            def forward(self, ids):
                return self.out(torch.cat([self.rows(ids).flatten(1), self.bags(ids)], 1)).squeeze(-1)


        def forward():
            return Pair()
        """,
    ),
    _with_ids(
        "open",
        """
        class Open(Net):
            def __init__(self):
                super().__init__()
                self.rows = Embedding(3)


        def forward():
            return Open()
        """,
    ),
]
_OPTIMIZERS = [
    _optimizer("sgd", "functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, nesterov=True)"),
    _optimizer(
        "sgd_damped", "functools.partial(torch.optim.SGD, lr=0.05, momentum=0.9, dampening=0.2, weight_decay=0.1)"
    ),
    _optimizer("adam", "functools.partial(torch.optim.Adam, lr=0.02, amsgrad=True)"),
    _optimizer("adamw", "functools.partial(torch.optim.AdamW, lr=0.02, weight_decay=0.1)"),
    _optimizer("adagrad", "functools.partial(torch.optim.Adagrad, lr=0.05, lr_decay=0.1)"),
    _optimizer("rmsprop", "functools.partial(torch.optim.RMSprop, lr=0.01, centered=True, momentum=0.5)"),
    _optimizer("adadelta", "functools.partial(torch.optim.Adadelta, lr=1.0)"),
    _optimizer("adamax", "functools.partial(torch.optim.Adamax, lr=0.02)"),
    _optimizer("nadam", "functools.partial(torch.optim.NAdam, lr=0.02)"),
    _optimizer("radam", "functools.partial(torch.optim.RAdam, lr=0.02)"),
    _optimizer("maximize", "lambda ps: torch.optim.SGD(ps, lr=1e-4, maximize=True)"),
    _optimizer(
        "groups",
        "lambda named_parameters: torch.optim.Adam([{'params': [p], 'lr': 0.01 * (1 + len(n) % 3)} for n, p in "
        "named_parameters])",
    ),
    _optimizer("schedule", "torch.optim.SGD, functools.partial(lr_scheduler.StepLR, step_size=3, gamma=0.5)", two=""),
    _optimizer(
        "one_cycle",
        "torch.optim.Adam, functools.partial(lr_scheduler.OneCycleLR, max_lr=0.1, total_steps=40, "
        "cycle_momentum=False)",
        two="",
    ),
    _optimizer(
        "own_schedule",
        "torch.optim.SGD",
        "def callbacks():\n    return [elasticdl.callbacks.LearningRateScheduler(lambda version: 0.1 / (1 + version))]",
        two="",
    ),
    _optimizer(
        "clipped",
        "functools.partial(torch.optim.SGD, lr=0.5)",
        "def callbacks():\n    return [elasticdl.callbacks.GradientClipping(max_norm=0.1)]",
        two="",
    ),
]
_REFUSALS = [
    _refused("lbfgs", "the optimizer LBFGS", "def optimizer():\n    return torch.optim.LBFGS"),
    _refused(
        "cycled_momentum",
        "changes the momentum",
        "def optimizer():\n    made = functools.partial(lr_scheduler.OneCycleLR, max_lr=1, total_steps=99)\n"
        "    return functools.partial(torch.optim.SGD, lr=0.1, momentum=0.95), made",
    ),
    _refused("no_model", "returned a int", "def forward():\n    return 3"),
    _refused("renorm", "max_norm", _IDS, "def forward():\n    return Net(max_norm=1.0)"),
    _refused(
        "sparse_rows_of_adam",
        "Adam for rows.weight, an embedding with sparse=True, is what PyTorch refuses",
        _IDS,
        "def forward():\n    return Net(sparse=True)\n\n\ndef optimizer():\n    return torch.optim.Adam",
    ),
    _refused(
        "dense_rows_of_sparse_adam",
        "SparseAdam takes sparse gradients alone",
        _IDS,
        "def forward():\n    return Net()\n\n\ndef optimizer():\n    return torch.optim.SparseAdam",
    ),
    _refused(
        "numpy_loss", "loss returned a float", "def loss(labels, predictions):\n    return float(predictions.sum())"
    ),
    _refused(
        "loss_that_learns",
        "used by the model or its loss and is none of the model's parameters",
        "SCALE = nn.Parameter(torch.ones(()))\n\n\n"
        "def loss(labels, predictions):\n    return (predictions.squeeze(-1) * SCALE - labels).pow(2).mean()",
    ),
    _refused(
        "differentiable",
        "SGD with differentiable=True is what PyTorch refuses",
        "def optimizer():\n    return functools.partial(torch.optim.SGD, lr=0.1, differentiable=True)",
    ),
    _refused(
        "capturable",
        "Adam with capturable=True is what PyTorch refuses",
        "def optimizer():\n    return functools.partial(torch.optim.Adam, capturable=True)",
    ),
    _refused(
        "warmed_up",
        "Adagrad with a state that it was given",
        """
        def optimizer(params):
            made = torch.optim.Adagrad(params)
            for one in made.state.values():
                one["sum"] += 1.0
            return made
        """,
    ),
    _refused("wrong_shape", "calling the model", "def forward():\n    return nn.Linear(5, 1)"),
]

ROWS: list[Row] = [*_MODELS, *_EMBEDDINGS, *_OPTIMIZERS, *_REFUSALS]

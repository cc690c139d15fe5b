"""The counting model in PyTorch: its parameters count how often each record's gradient is in them.

Its loss is minus the sum of its outputs. An output is the sum of two parameters that belong to the record alone: a
row of a table of the parameter servers, and an entry of a dense weight. SGD with rate 1 adds 1 to each of them.
"""

import functools
import os
import time
from pathlib import Path

import torch
from torch import nn

from elasticdl.torch import Embedding

RECORDS = int(os.environ["COUNTING_RECORDS"])
PACE = Path(os.environ["COUNTING_PACE"])


class Counting(nn.Module):
    """One row and one entry for each record, all of them 0 at first."""

    def __init__(self):
        super().__init__()
        self.rows = Embedding(1, initializer="zeros")
        self.entries = nn.Linear(RECORDS, 1, bias=False)
        nn.init.zeros_(self.entries.weight)

    def forward(self, record):
        """The sum of both."""
        return self.rows(record) + self.entries(nn.functional.one_hot(record, RECORDS).float())


def custom_model():
    """The model."""
    return Counting()


def loss(labels, predictions):
    """Its gradient by each record's parameters is -1."""
    return -predictions.sum()


def optimizer():
    """Adds what was counted."""
    return functools.partial(torch.optim.SGD, lr=1.0)


def feed(dataset, mode, metadata):
    """The number of the record, as slowly as the file says, which whoever watches may rewrite at any time."""
    for row in dataset:
        time.sleep(float(PACE.read_text() or 0))
        yield torch.tensor(int(row["record"])), int(row["label"])


def eval_metrics_fn():
    """None: what counts is in the parameters."""
    return {}

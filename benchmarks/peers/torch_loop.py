"""The limit for PyTorch: a plain loop in one process that holds all parameters, with dense or sparse gradients."""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import torch

from benchmarks.training.data import LEARNING_RATE, Clicks
from benchmarks.training.processes import Train, for_a_while
from benchmarks.training.zoo.deepfm_torch import DeepFM, feed, loss
from elasticdl.data import Metadata
from elasticdl.data.recordio_reader import RecordIODataReader


def start(arguments: dict[str, Any]) -> Train:
    """Builds the model and gets the data into memory, or begins to read it.

    Args:
        arguments: ``data``, ``dim``, ``batch``, ``seed``, ``sparse``, ``threads``, 1 by default, and ``records``: a
            folder of the files that jobs read, to read them minibatch by minibatch instead, in their order.
    """
    torch.set_num_threads(arguments.get("threads", 1))
    clicks = Clicks.load(arguments["data"])
    model = DeepFM(clicks.vocabulary, arguments["dim"], sparse=arguments["sparse"])
    optimizer = torch.optim.SGD(model.parameters(), lr=LEARNING_RATE)
    batch = int(arguments["batch"])
    if arguments.get("records"):
        minibatches = _read(Path(arguments["records"]), batch)
    else:
        held = [
            (torch.as_tensor(ids).long(), torch.as_tensor(labels).reshape(-1))
            for ids, labels in clicks.minibatches(batch, arguments["seed"])
        ]
        minibatches = itertools.cycle(held)

    def one(_: int) -> int:
        ids, labels = next(minibatches)
        optimizer.zero_grad(set_to_none=True)
        loss(labels, model(ids)).backward()
        optimizer.step()
        return len(ids)

    return for_a_while(one)


def _read(folder: Path, batch: int) -> Iterator[Any]:
    """The minibatches of a folder's records, by the ``feed`` that jobs use, without end."""
    reader = RecordIODataReader(str(folder))
    while True:
        for shard in reader.create_shards():
            yield from feed(reader.read_records(shard), "training", Metadata(), batch)

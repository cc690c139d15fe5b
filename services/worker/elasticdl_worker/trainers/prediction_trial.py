"""Tries before the first task whether what a model gives are predictions."""

from __future__ import annotations

from typing import Any, Protocol

from elasticdl.data import DataReader, Shard
from elasticdl_worker.trainers.framework import Framework, MinibatchSource
from elasticdl_worker.trainers.minibatch import Tensors
from elasticdl_worker.trainers.prediction_shapes import check_rows, named_outputs


class _Predicts(Protocol):
    def predict(self, features: Tensors, /) -> Tensors: ...


def try_outputs(
    framework: Framework, source: MinibatchSource, reader: DataReader, model: _Predicts, minibatch_size: int
) -> None:
    """Predicts a first minibatch, and once more without its last record, before there are tasks.

    What else goes wrong is left to the tasks, which say of which records.

    Args:
        framework: of the model.
        source: of minibatches.
        reader: of the same data.
        model: with its parameters.
        minibatch_size: of a whole one.

    Raises:
        UserCodeError: the outputs are no predictions.
    """
    try:
        shard = next(iter(reader.create_shards()))
        first = Shard(shard.name, shard.start, min(shard.end, shard.start + minibatch_size))
        batch = next(iter(source.minibatches(first)))
        features, records = batch.features, batch.records
        fewer: Any = framework.cut(features, 0, records - 1) if records > 1 else None
        found = [named_outputs(framework.to_numpy(model.predict(features)))]
        if fewer is not None:
            found.append(named_outputs(framework.to_numpy(model.predict(fewer))))
    except Exception:  # what the user's code raises
        return
    for number, columns in enumerate(found):
        check_rows(columns, records - number, found[0] if number else None)

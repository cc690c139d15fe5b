"""Asynchronous training with delays that are always the same: the parameter server's store and the worker's step.

Processes and messages are left out, so that nothing depends on the machine: of ``workers`` workers each pushes what
it computed after all others have pushed, so a gradient is ``workers - 1`` updates late.
"""

from __future__ import annotations

import importlib.util
from collections import deque
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from benchmarks.training.data import ZOO, Clicks
from elasticdl_core.model import OptimizerSpec, UpdateMode
from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.store.merging import Changes
from elasticdl_ps.store.partition import DenseInit, Partition
from elasticdl_worker.trainers.tensorflow.framework import tf
from elasticdl_worker.trainers.tensorflow.model.build import BuildOptions, PreparedModel, build_model
from elasticdl_worker.trainers.tensorflow.step.local_updates import LocalUpdates
from elasticdl_worker.trainers.tensorflow.step.programs import Programs
from elasticdl_worker.user_code import ModelModule

_EVALUATED = 4096


@dataclass(frozen=True)
class How:
    """The way to train.

    Attributes:
        workers: number of workers; one is never late.
        local_steps: minibatches of a push.
        compensation: ``delay_compensation`` of the job; 0 for none.
        dim: numbers in a vector.
        batch: records in a minibatch.
        rate: of SGD.
    """

    workers: int = 1
    local_steps: int = 1
    compensation: float = 0.0
    dim: int = 64
    batch: int = 512
    rate: float = 0.1


class LateTraining:
    """Trains DeepFM of the zoo.

    Args:
        clicks: the data.
        how: see ``How``.
        seed: of first values and of the order of records.
    """

    def __init__(self, clicks: Clicks, how: How, seed: int) -> None:
        self._clicks, self._how, self._seed = clicks, how, seed
        zoo = _zoo()
        module = ModelModule(ZOO / "deepfm.py", (ZOO,), lambda: zoo.forward(clicks.vocabulary, how.dim))
        features = tf.TensorSpec([None, clicks.ids.shape[1]], tf.int64)
        self._model: PreparedModel = build_model(module, features, BuildOptions(0, seed))
        local = LocalUpdates(self._model, zoo.optimizer("SGD", how.rate)) if how.local_steps > 1 else None
        labels = tf.TensorSpec([None, 1], tf.int64)
        self._programs = Programs(self._model, zoo.loss, labels, group=how.local_steps, local=local)
        self._partition = self._server()

    def run(self, epochs: int) -> float:
        """Trains for some epochs; returns the area under the ROC curve on what was held out."""
        computed: deque[Changes] = deque()
        for epoch in range(epochs):
            for group in self._groups(epoch):
                if len(computed) == self._how.workers:
                    self._partition.apply([computed.popleft()])
                computed.append(self._compute(group))
        while computed:
            self._partition.apply([computed.popleft()])
        return self._auc()

    def _server(self) -> Partition:
        partition, how = Partition(load_kernels()), self._how
        values = self._model.values()
        dense = [
            DenseInit(spec, 0, spec.size, np.asarray(values[spec.name]).reshape(-1))
            for spec in self._model.dense_specs()
        ]
        mode = UpdateMode(delay_compensation=how.compensation)
        spec = OptimizerSpec("sgd", {"learning_rate": how.rate})
        partition.push_model(dense, list(self._model.tables.values()), spec, mode)
        return partition

    def _groups(self, epoch: int) -> Iterator[list[tuple[Any, Any]]]:
        batches = self._clicks.minibatches(self._how.batch, 1000 * self._seed + epoch)
        for at in range(0, len(batches), self._how.local_steps):
            group = batches[at : at + self._how.local_steps]
            yield [(tf.constant(ids), tf.constant(labels)) for ids, labels in group]

    def _pull(self, unique: dict[str, NDArray[np.int64]]) -> dict[str, NDArray[np.float32]]:
        rows = {}
        for table, ids in unique.items():
            rows[table] = np.empty((len(ids), self._model.tables[table].dim), np.float32)
            self._partition.table(table).read(ids, rows[table])
        return rows

    def _dense(self) -> dict[str, NDArray[Any]]:
        return {v.spec.name: v.values.reshape(v.spec.shape) for v in self._partition.dense.read(-1)}

    def _compute(self, group: list[tuple[Any, Any]]) -> Changes:
        lookups = self._programs.collect(*(ids for ids, _ in group), training=True)
        dense, rows = self._dense(), self._pull(lookups.unique)
        result = self._programs.steps(group, dense, rows, lookups)
        changes = {name: np.array(gradient).reshape(-1) for name, gradient in result.dense.items()}
        tables = {name: (lookups.unique[name], np.array(gradient)) for name, gradient in result.rows.items()}
        if not self._how.compensation:
            return Changes(changes, tables)
        before = {name: dense[name].reshape(-1) for name in changes}
        return Changes(changes, tables, pulled_dense=before, pulled_rows=rows)

    def _auc(self) -> float:
        self._model.assign(self._dense())
        metric = _zoo().eval_metrics_fn()["auc"]
        clicks = self._clicks
        for at in range(0, len(clicks.held_out_ids), _EVALUATED):
            ids = tf.constant(clicks.held_out_ids[at : at + _EVALUATED])
            lookups = self._programs.collect(ids, training=False)
            logits = self._programs.forward(ids, self._pull(lookups.unique), lookups)
            metric.update_state(clicks.held_out_labels[at : at + _EVALUATED][:, None], logits)
        return float(metric.result())


def _zoo(path: Path = ZOO / "deepfm.py") -> Any:
    spec = importlib.util.spec_from_file_location("zoo_deepfm_late", path)
    assert spec is not None and spec.loader is not None
    module = importlib.util.module_from_spec(spec)
    spec.loader.exec_module(module)
    return module

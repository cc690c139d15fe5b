"""A script's training loop as the replica of a group's member: its backward passes are the contributions."""

from __future__ import annotations

import hashlib
import zlib
from collections.abc import Sequence

import numpy as np

from elasticdl.data import Shard
from elasticdl.own_loop import FedMicrobatch
from elasticdl_core.errors import DataError
from elasticdl_core.job import JobSpec
from elasticdl_core.model import DenseKind, DenseSpec, OptimizerSpec
from elasticdl_core.skips import SkipReason, Skips
from elasticdl_core.task import Task
from elasticdl_worker.device import device_turn
from elasticdl_worker.group.replica import (
    HOST_MEMORY,
    Contribution,
    Flat,
    Memory,
    MicrobatchData,
    ModelLayout,
    ReplicaState,
)
from elasticdl_worker.own_loop.bridge import LoopBridge
from elasticdl_worker.own_loop.records import ScriptRecords

UPDATES = "elasticdl.updates"
OPTIMIZER = OptimizerSpec("script")
"""What a checkpoint says of the optimizer: that the script has it. Its state is among the values."""


class ScriptReplica:
    """The state that the script trains, driven by the group."""

    def __init__(self, spec: JobSpec, bridge: LoopBridge, records: ScriptRecords) -> None:
        self._spec = spec
        self._bridge = bridge
        self._records = records
        self._version = 0
        self._lengths = tuple(bridge.trained.lengths) or (1,)
        self._layout = self._lay_out()

    @property
    def memory(self) -> Memory:
        """The host's: that is where the script's gradients are brought."""
        return HOST_MEMORY

    @property
    def version(self) -> int:
        """Updates that were applied."""
        return self._version

    @property
    def lengths(self) -> Sequence[int]:
        """Length of each array of a contribution."""
        return self._lengths

    @property
    def layout(self) -> ModelLayout:
        """All arrays, as state: no server applies gradients to them."""
        return self._layout

    def read(self, task: Task, start: int, end: int) -> MicrobatchData:
        """Reads the records at positions of a task."""
        found, skips = self._records.read(Shard(task.shard.name, start, end), task.reading)
        return MicrobatchData(len(found), skips, (found, end - start == self._spec.microbatch_size))

    def compute(self, step: int, microbatch: int, data: MicrobatchData, epoch: int) -> Contribution:
        """Has the script's loop work on a minibatch."""
        found, full = data.content
        arrays, loss, measured, rows = self._bridge.compute(FedMicrobatch(found, epoch, full, step, microbatch))
        skips = Skips.of(SkipReason.FEED, len(found) - rows, "the script made no step of a batch")
        return Contribution(rows, arrays if rows else (), loss, skips, (lambda _due: measured) if measured else None)

    def apply(self, sums: Sequence[Flat], rows: int, epoch: int) -> None:
        """Makes one update, while the script waits."""
        trained = self._bridge.trained
        with device_turn():
            self._bridge.work(lambda: trained.apply(sums[: len(trained.lengths)], rows))
        self._version += 1
        self._bridge.release(self._version)

    def learning_rate(self) -> None:
        """Only the script knows it."""

    def digest(self) -> bytes:
        """16 bytes of the parameters."""
        found = hashlib.blake2b(digest_size=16)
        for values in self._bridge.work(self._bridge.trained.parameters):
            found.update(zlib.crc32(np.ascontiguousarray(values).data).to_bytes(4, "little"))
        return found.digest()

    def state(self) -> ReplicaState:
        """The present state."""
        values = self._bridge.work(lambda: dict(self._bridge.trained.values()))
        return ReplicaState(self._version, {**values, UPDATES: np.array([self._version], np.int64)}, {})

    def load(self, state: ReplicaState) -> None:
        """Takes over a state."""
        expected = {spec.name: spec.shape for spec in self._layout.dense}
        if {name: np.shape(value) for name, value in state.values.items()} != expected:
            raise DataError("the state is of another script or model", fix="begin with a state of this script")
        values = {name: value for name, value in state.values.items() if name != UPDATES}
        self._bridge.work(lambda: self._bridge.trained.load(values))
        self._version = state.version

    def _lay_out(self) -> ModelLayout:
        values = self.state().values
        dense = [
            DenseSpec(name, tuple(np.shape(value)), np.asarray(value).dtype.name, DenseKind.STATE)
            for name, value in values.items()
        ]
        return ModelLayout(dense, OPTIMIZER, ())

"""A stand-in for the parameter servers inside the test's process: one partition, plain SGD, numpy."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np

from elasticdl_core.errors import ElasticDLError
from elasticdl_core.model import DenseKind, DenseSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_runtime.initializers import first_rows
from elasticdl_worker.parameters import Gradients, PulledParameters, PullOutcome, PushResult


class MemoryParameters:
    """Keeps a model and applies SGD; refuses ``refuse`` pushes as stale, and pulls along by ``refuse_pull``."""

    def __init__(self, refuse: int = 0) -> None:
        self.refuse = refuse
        self.refuse_pull: ElasticDLError | None = None
        self.version = 0
        self.dense: dict[str, Any] = {}
        self.rows: dict[str, dict[int, Any]] = {}
        self.pushes: list[tuple[int, Gradients, float | None]] = []
        self.pulls: list[dict[str, Any]] = []
        self.together = 0
        self.optimizer: OptimizerSpec | None = None
        self.mode: UpdateMode | None = None
        self._kinds: dict[str, DenseKind] = {}
        self._tables: dict[str, TableSpec] = {}

    async def ensure_model(
        self,
        dense: Mapping[str, Any],
        specs: Sequence[DenseSpec],
        tables: Sequence[TableSpec],
        optimizer: OptimizerSpec,
        mode: UpdateMode,
    ) -> bool:
        if self.dense:
            return False
        self.dense = {name: np.array(value) for name, value in dense.items()}
        self._kinds = {spec.name: spec.kind for spec in specs}
        self._tables = {table.name: table for table in tables}
        self.rows = {table.name: {} for table in tables}
        self.optimizer, self.mode = optimizer, mode
        return True

    async def pull(self, ids: Mapping[str, Any], *, dense: bool = True, pin: int = 0) -> PulledParameters:
        self.pulls.append({"ids": dict(ids), "dense": dense, "pin": pin})
        rows = {table: np.stack([self._row(table, i) for i in wanted.tolist()]) for table, wanted in ids.items()}
        return PulledParameters(self.version, {k: v.copy() for k, v in self.dense.items()} if dense else {}, rows)

    async def push(
        self, gradients: Gradients, *, version: int, learning_rate: float | Sequence[float] | None = None
    ) -> PushResult:
        assert self.optimizer is not None
        if isinstance(learning_rate, Sequence):
            (learning_rate,) = learning_rate  # this optimizer has one group
        if self.refuse:
            self.refuse -= 1
            return PushResult(False, self.version, "stale")
        self.pushes.append((version, gradients, learning_rate))
        rate = float(self.optimizer.params["learning_rate"]) if learning_rate is None else learning_rate
        for name, gradient in gradients.dense.items():
            assert self._kinds[name] is DenseKind.TRAINABLE
            self.dense[name] = self.dense[name] - rate * gradient
        for name, change in gradients.state.items():
            assert self._kinds[name] is DenseKind.STATE
            moved = change.keep * self.dense[name].astype(np.float64) + change.add
            self.dense[name] = np.asarray(moved).astype(change.add.dtype)
        for table, (ids, values) in gradients.rows.items():
            assert len(set(ids.tolist())) == len(ids)
            for i, gradient in zip(ids.tolist(), values, strict=True):
                self.rows[table][i] = self._row(table, i) - rate * gradient
        self.version += 1
        return PushResult(True, self.version)

    async def push_pull(
        self,
        gradients: Gradients,
        ids: Mapping[str, Any],
        *,
        version: int,
        learning_rate: float | Sequence[float] | None = None,
        dense: bool = True,
    ) -> tuple[PushResult, PullOutcome]:
        assert self.mode is not None
        self.together += 1
        result = await self.push(gradients, version=version, learning_rate=learning_rate)
        if not self.mode.use_async and not result.accepted:
            return result, None
        return result, self.refuse_pull or await self.pull(ids, dense=dense)

    async def update_servers(self, addresses: Sequence[str], generation: str) -> None:
        return None

    async def close(self) -> None:
        return None

    def _row(self, table: str, i: int) -> Any:
        rows = self.rows[table]
        if i not in rows:
            rows[i] = first_rows(self._tables[table], np.array([i]))[0]
        return rows[i]

"""What a worker tells its master about the model."""

from __future__ import annotations

import math
from collections.abc import Iterable, Sequence
from typing import Any

from elasticdl.callbacks import MaxStepsStopping, SavedModelExporter
from elasticdl_core.job import JobSpec
from elasticdl_core.model import DenseSpec, OptimizerSpec, TableSpec
from elasticdl_worker.trainers.early_stopping import early_stopping_of
from elasticdl_worker.user_code import ModelModule

_FLOAT_BYTES = 4


def limits_of(callbacks: Sequence[Any]) -> list[int]:
    """The limits of updates that callbacks declare."""
    return [callback.max_steps for callback in callbacks if isinstance(callback, MaxStepsStopping)]


def max_steps_of(spec: JobSpec, callbacks: Sequence[Any]) -> int:
    """After how many updates of its own a job ends, by its specification and its callbacks; 0 for no limit."""
    return _least([spec.max_steps, *limits_of(callbacks)])


def describe(
    module: ModelModule,
    dense: Sequence[DenseSpec],
    tables: Iterable[TableSpec],
    optimizer: OptimizerSpec | None,
    callbacks: Sequence[Any],
    keras_version: str,
) -> dict[str, Any]:
    """The description as JSON data: what the module has, the sizes of the model, what the callbacks ask for."""
    tables = list(tables)
    stopping = early_stopping_of(callbacks)
    return {
        "has": module.has,
        "dense": [{"name": d.name, "shape": list(d.shape), "dtype": d.dtype, "kind": str(d.kind)} for d in dense],
        "tables": [{"name": t.name, "dim": t.dim, "input_dim": t.input_dim} for t in tables],
        "dense_bytes": sum(math.prod(d.shape) * _FLOAT_BYTES for d in dense),
        "table_bytes": sum((t.input_dim or 0) * t.dim * _FLOAT_BYTES for t in tables),
        "optimizer": {"name": optimizer.name, "params": dict(optimizer.params)} if optimizer else None,
        "callbacks": {
            "max_steps": _least(limits_of(callbacks)),
            "early_stopping": None if stopping is None else stopping.to_mapping(),
            "saved_model": any(isinstance(callback, SavedModelExporter) for callback in callbacks),
        },
        "keras": keras_version,
    }


def _least(limits: Sequence[int]) -> int:
    return min((limit for limit in limits if limit), default=0)

"""Describes the model for the master."""

from __future__ import annotations

import math
from collections.abc import Iterable, Mapping, Sequence

from elasticdl_core.model import DenseSpec, OptimizerSpec, TableSpec
from elasticdl_core.model_description import ModelDescription, optimizer_entry
from elasticdl_core.training_rules import DeclaredRules
from elasticdl_worker.user_code import ModelModule

_FLOAT_BYTES = 4


def describe(
    module: ModelModule,
    dense: Sequence[DenseSpec],
    tables: Iterable[TableSpec],
    optimizer: OptimizerSpec | None,
    declared: DeclaredRules,
    versions: Mapping[str, str],
    layers: Mapping[str, str],
) -> ModelDescription:
    """Makes the description, as JSON data."""
    tables = list(tables)
    return {
        "has": module.has,
        "dense": [{"name": d.name, "shape": list(d.shape), "dtype": d.dtype, "kind": str(d.kind)} for d in dense],
        "tables": [{"name": t.name, "dim": t.dim, "input_dim": t.input_dim} for t in tables],
        "dense_bytes": sum(math.prod(d.shape) * _FLOAT_BYTES for d in dense),
        "table_bytes": sum((t.input_dim or 0) * t.dim * _FLOAT_BYTES for t in tables),
        "optimizer": optimizer_entry(optimizer) if optimizer else None,
        "callbacks": declared.to_mapping(),
        "keras": versions.get("keras", ""),
        "layers": dict(layers),
    }

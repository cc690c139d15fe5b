"""Parameters on the wire: specifications as messages and JSON, arrays as buffers of frames."""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import (
    CLIPPED_BY,
    ConstraintSpec,
    DenseKind,
    DenseSpec,
    InitializerSpec,
    OptimizerSpec,
    RowPolicy,
    TableSpec,
    UpdateClipping,
    UpdateMode,
)
from elasticdl_proto.v1 import ps_pb2

WIRE_DTYPES = ("float32", "bfloat16")
MAX_ADMISSION = 255
"""Sightings are counted in bytes."""
_FIX = "send what ps.proto describes"


def dense_to_message(spec: DenseSpec, start: int, stop: int, buffer: int, version: int = 0) -> ps_pb2.Dense:
    """A slice of a dense parameter whose elements are in a buffer (-1: no values)."""
    return ps_pb2.Dense(
        name=spec.name,
        dtype=spec.dtype,
        shape=spec.shape,
        kind=str(spec.kind),
        weight_decay=spec.weight_decay,
        start=start,
        stop=stop,
        buffer=buffer,
        version=version,
        constraint="" if spec.constraint is None else json.dumps(_constraint_to_json(spec.constraint)),
        group=spec.group,
    )


def dense_from_message(message: ps_pb2.Dense) -> DenseSpec:
    """The parameter that a message describes.

    Raises:
        InvalidInputError: its kind is unknown, or its constraint cannot be read.
    """
    try:
        kind = DenseKind(message.kind)
    except ValueError:
        raise InvalidInputError(f"{message.name!r} is of the unknown kind {message.kind!r}", fix=_FIX) from None
    constraint = None
    if message.constraint:
        constraint = _constraint_from_json(_object(message.constraint, f"the constraint of {message.name!r}"))
    shape = tuple(message.shape)
    return DenseSpec(message.name, shape, message.dtype, kind, message.weight_decay, constraint, message.group)


def dense_to_json(spec: DenseSpec) -> dict[str, Any]:
    """A parameter as JSON."""
    found: dict[str, Any] = {
        "name": spec.name,
        "shape": list(spec.shape),
        "dtype": spec.dtype,
        "kind": str(spec.kind),
        "weight_decay": spec.weight_decay,
        "group": spec.group,
    }
    return found if spec.constraint is None else found | {"constraint": _constraint_to_json(spec.constraint)}


def dense_from_json(data: Mapping[str, Any]) -> DenseSpec:
    """Reads what ``dense_to_json`` wrote."""
    return DenseSpec(
        str(data["name"]),
        tuple(int(extent) for extent in data["shape"]),
        str(data["dtype"]),
        DenseKind(data["kind"]),
        bool(data["weight_decay"]),
        _constraint_from_json(data["constraint"]) if "constraint" in data else None,
        int(data.get("group", 0)),
    )


def table_to_message(spec: TableSpec) -> ps_pb2.Table:
    """A table."""
    return ps_pb2.Table(
        name=spec.name,
        dim=spec.dim,
        initializer=json.dumps(_initializer_to_json(spec.initializer)),
        input_dim=spec.input_dim or 0,
        undecayed=not spec.weight_decay,
        group=spec.group,
    )


def table_from_message(message: ps_pb2.Table) -> TableSpec:
    """The table that a message describes.

    Raises:
        InvalidInputError: its initialiser cannot be read.
    """
    data = _object(message.initializer, f"the initializer of {message.name!r}")
    initializer, limit = _initializer_from_json(data), message.input_dim or None
    return TableSpec(message.name, message.dim, initializer, limit, not message.undecayed, message.group)


def table_to_json(spec: TableSpec) -> dict[str, Any]:
    """A table as JSON."""
    return {
        "name": spec.name,
        "dim": spec.dim,
        "initializer": _initializer_to_json(spec.initializer),
        "input_dim": spec.input_dim,
        "weight_decay": spec.weight_decay,
        "group": spec.group,
    }


def table_from_json(data: Mapping[str, Any]) -> TableSpec:
    """Reads what ``table_to_json`` wrote."""
    return TableSpec(
        str(data["name"]),
        int(data["dim"]),
        _initializer_from_json(data["initializer"]),
        data["input_dim"],
        bool(data.get("weight_decay", True)),
        int(data.get("group", 0)),
    )


def optimizer_to_json(spec: OptimizerSpec) -> str:
    """An optimizer as JSON text."""
    groups = [dict(group) for group in spec.groups]
    return json.dumps({"name": spec.name, "params": dict(spec.params), "groups": groups})


def optimizer_from_json(text: str) -> OptimizerSpec:
    """Reads what ``optimizer_to_json`` wrote.

    Raises:
        InvalidInputError: the text is something else.
    """
    data = _object(text, "the optimizer")
    params, groups = data.get("params", {}), data.get("groups", [])
    odd = not isinstance(groups, list) or not all(isinstance(group, dict) for group in groups)
    if not isinstance(data.get("name"), str) or not isinstance(params, dict) or odd:
        raise InvalidInputError(f"the optimizer {text!r} has no name or odd parameters", fix=_FIX)
    return OptimizerSpec(data["name"], params, tuple(groups))


def _clipping_of(by: str = "", limit: float = 0.0, norm_type: str = "2.0", slack: float = 0.0) -> UpdateClipping:
    return UpdateClipping(str(by), float(limit), float(norm_type), float(slack))


def mode_to_json(mode: UpdateMode) -> str:
    """An update mode as JSON text."""
    return json.dumps(
        {
            "use_async": mode.use_async,
            "grads_to_wait": mode.grads_to_wait,
            "sync_version_tolerance": mode.sync_version_tolerance,
            "lr_staleness_modulation": mode.lr_staleness_modulation,
            "delay_compensation": mode.delay_compensation,
            "rows": {
                "admission": mode.rows.admission,
                "eviction_updates": mode.rows.eviction_updates,
                "max_rows": mode.rows.max_rows,
            },
            "stop_at": mode.stop_at,
            "clipping": {
                "by": mode.clipping.by,
                "limit": mode.clipping.limit,
                "norm_type": str(mode.clipping.norm_type),  # JSON has no infinity
                "slack": mode.clipping.slack,
            },
        }
    )


def mode_from_json(text: str) -> UpdateMode:
    """Reads what ``mode_to_json`` wrote.

    Raises:
        InvalidInputError: the text is something else, or the numbers are out of range.
    """
    data = _object(text, "the update mode")
    try:
        mode = UpdateMode(
            bool(data["use_async"]),
            int(data["grads_to_wait"]),
            int(data["sync_version_tolerance"]),
            bool(data["lr_staleness_modulation"]),
            RowPolicy(**{name: int(number) for name, number in data.get("rows", {}).items()}),
            float(data.get("delay_compensation", 0.0)),
            int(data.get("stop_at", 0)),
            _clipping_of(**data.get("clipping", {})),
        )
    except (AttributeError, KeyError, TypeError, ValueError) as error:
        raise InvalidInputError(f"the update mode {text!r} lacks something: {error}", fix=_FIX) from None
    if mode.grads_to_wait < 1 or mode.sync_version_tolerance < 0:
        raise InvalidInputError(
            f"grads_to_wait={mode.grads_to_wait}, sync_version_tolerance={mode.sync_version_tolerance} cannot work",
            fix="choose grads_to_wait >= 1 and sync_version_tolerance >= 0",
        )
    if not 0 <= mode.delay_compensation < math.inf:
        raise InvalidInputError(
            f"delay_compensation={mode.delay_compensation} cannot work", fix="choose a number of 0 or more"
        )
    clipping = mode.clipping
    if clipping.by not in CLIPPED_BY or (clipping.by and not 0 < clipping.limit < math.inf) or clipping.slack < 0:
        raise InvalidInputError(f"{clipping} cannot work", fix="give a limit over 0")
    if not (clipping.norm_type > 0):
        raise InvalidInputError(f"norm_type={clipping.norm_type} cannot work", fix="choose a norm over 0, such as 2")
    rows = mode.rows
    if not 1 <= rows.admission <= MAX_ADMISSION or rows.eviction_updates < 0 or rows.max_rows < 0:
        raise InvalidInputError(
            f"{rows} cannot work", fix=f"choose an admission of 1 to {MAX_ADMISSION}, and no negative numbers"
        )
    return mode


def array_of(buffers: Sequence[memoryview], index: int, dtype: str, size: int, what: str) -> NDArray[Any]:
    """A buffer as an array, without a copy.

    Args:
        buffers: the frame's.
        index: which one.
        dtype: numpy name of the dtype of its numbers.
        size: how many there must be.
        what: for the error.

    Raises:
        InvalidInputError: there is no such buffer, or it holds another number of elements.
    """
    if not 0 <= index < len(buffers):
        raise InvalidInputError(f"{what} refers to buffer {index} of {len(buffers)}", fix=_FIX)
    wanted = size * np.dtype(dtype).itemsize
    if len(buffers[index]) != wanted:
        raise InvalidInputError(f"{what} needs {wanted} bytes and has {len(buffers[index])}", fix=_FIX)
    return np.frombuffer(buffers[index], dtype)


def ids_of(buffers: Sequence[memoryview], index: int, what: str) -> NDArray[np.int64]:
    """A buffer of ids, int64 ``[n]``, without a copy.

    Raises:
        InvalidInputError: there is no such buffer, or its length is no multiple of eight.
    """
    size = len(buffers[index]) // 8 if 0 <= index < len(buffers) else 0
    ids: NDArray[np.int64] = array_of(buffers, index, "int64", size, what)
    return ids


def check_wire_dtype(dtype: str) -> str:
    """The dtype of rows on the wire; empty text means float32.

    Raises:
        InvalidInputError: rows cannot be sent so.
    """
    if (dtype or "float32") not in WIRE_DTYPES:
        raise InvalidInputError(f"rows cannot be sent as {dtype!r}", fix=f"use {' or '.join(WIRE_DTYPES)}")
    return dtype or "float32"


def to_bfloat16(values: NDArray[np.float32], out: NDArray[np.uint16] | None = None) -> NDArray[np.uint16]:
    """Rounds float32 numbers to the nearest bfloat16 (ties to even), as uint16 of the same shape."""
    bits = np.ascontiguousarray(values).view(np.uint32)
    # In place on one temporary: (bits + 0x7FFF + lowest kept bit) >> 16.
    rounded = bits >> np.uint32(16)
    rounded &= np.uint32(1)
    rounded += np.uint32(0x7FFF)
    rounded += bits
    rounded >>= np.uint32(16)
    if out is None:
        return rounded.astype(np.uint16)
    out[...] = rounded
    return out


def from_bfloat16(values: NDArray[np.uint16]) -> NDArray[np.float32]:
    """The float32 numbers that bfloat16 numbers, given as uint16, stand for."""
    bits = values.astype(np.uint32)
    bits <<= np.uint32(16)
    return bits.view(np.float32)


def _constraint_to_json(spec: ConstraintSpec) -> dict[str, Any]:
    return {"kind": spec.kind, "axes": list(spec.axes), "params": dict(spec.params)}


def _constraint_from_json(data: Mapping[str, Any]) -> ConstraintSpec:
    try:
        axes = tuple(int(axis) for axis in data["axes"])
        return ConstraintSpec(str(data["kind"]), axes, {str(k): float(v) for k, v in data["params"].items()})
    except (AttributeError, KeyError, TypeError, ValueError):
        raise InvalidInputError(f"the constraint {dict(data)!r} lacks something", fix=_FIX) from None


def _initializer_to_json(spec: InitializerSpec) -> dict[str, Any]:
    return {"kind": spec.kind, "params": dict(spec.params), "seed": spec.seed}


def _initializer_from_json(data: Mapping[str, Any]) -> InitializerSpec:
    params, seed = data.get("params", {}), data.get("seed", 0)
    if not isinstance(data.get("kind"), str) or not isinstance(params, dict) or not isinstance(seed, int):
        raise InvalidInputError(f"the initializer {dict(data)!r} has no kind or odd parameters", fix=_FIX)
    return InitializerSpec(data["kind"], params, seed)


def _object(text: str, what: str) -> dict[str, Any]:
    try:
        data = json.loads(text)
    except ValueError:
        data = None
    if not isinstance(data, dict):
        raise InvalidInputError(f"{what} is not a JSON object: {text!r}", fix=_FIX)
    return data

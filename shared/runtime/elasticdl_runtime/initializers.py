"""First values of embedding tables' rows: from a specification in Keras' words to numbers by id and column.

The parameter servers' kernels, local runs and exported models make the same rows by it. Numbers come from a counter,
not from a state: the SplitMix64 finaliser of (seed, id, column, attempt).
"""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass, replace

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import TableSpec
from elasticdl_runtime.partition import hash_ids

UNIFORM = 0
"""Between ``a`` and ``b``."""
NORMAL = 1
"""Mean ``a``, standard deviation ``b``."""
TRUNCATED_NORMAL = 2
"""As NORMAL, numbers further than two standard deviations from the mean drawn again."""
CONSTANT = 3
"""``a``."""
GOLDEN, ATTEMPT = 0x9E3779B97F4A7C15, 0xD1B54A32D192ED03
"""What counters go by, from column to column and from one attempt to the next."""
_BLOCK = 1 << 18
"""Numbers that are made at once, of whole rows; each takes some 40 bytes meanwhile."""
_TRUNCATED_STDDEV = 0.87962566103423978
"""Standard deviation of a standard normal distribution cut at two (its variance is 0.7737)."""
_DEFAULTS: Mapping[str, Mapping[str, float]] = {
    "uniform": {"minval": -0.05, "maxval": 0.05},
    "normal": {"mean": 0.0, "stddev": 0.05},
    "truncated_normal": {"mean": 0.0, "stddev": 0.05},
    "zeros": {},
    "ones": {},
    "constant": {"value": 0.0},
    "glorot_uniform": {},
    "glorot_normal": {},
    "he_uniform": {},
    "he_normal": {},
}
INITIALIZER_NAMES = tuple(_DEFAULTS)


@dataclass(frozen=True, slots=True)
class Initializer:
    """Computes ``initial_values``, and offers kernels of the same meaning.

    Attributes:
        kind: UNIFORM, NORMAL, TRUNCATED_NORMAL or CONSTANT.
        a: the kind's first number.
        b: its second.
        seed: between 0 and 2^63.
    """

    kind: int
    a: float
    b: float
    seed: int


def make_initializer(table: TableSpec) -> Initializer:
    """The initialiser of a table.

    Glorot's and He's kinds take the fan-in from ``input_dim``, as Keras does for an embedding's matrix; a table with
    an open id space has none, and ``dim`` stands in.

    Raises:
        InvalidInputError: the kind or one of its parameters is unknown or out of range.
    """
    spec = table.initializer
    where = f"the table {table.name!r}"
    if spec.kind not in _DEFAULTS:
        raise InvalidInputError(
            f"{where} has the unknown initializer {spec.kind!r}", fix=f"use one of {', '.join(INITIALIZER_NAMES)}"
        )
    params = dict(_DEFAULTS[spec.kind])
    for name, value in spec.params.items():
        if name not in params:
            raise InvalidInputError(
                f"{where}: the initializer {spec.kind} has no parameter {name!r}",
                fix=f"use some of {', '.join(params)}" if params else "give it no parameters",
            )
        if isinstance(value, bool) or not isinstance(value, int | float) or not math.isfinite(value):
            raise InvalidInputError(f"{where}: {name}={value!r} is no finite number", fix=f"give {name} a number")
        params[name] = float(value)
    if params.get("stddev", 0.0) < 0 or params.get("minval", 0.0) > params.get("maxval", math.inf):
        raise InvalidInputError(
            f"{where}: {spec.kind} with {params} is empty", fix="choose minval <= maxval and stddev >= 0"
        )
    return Initializer(*_kind(spec.kind, params, table), seed=spec.seed % (1 << 63))


def _kind(kind: str, params: Mapping[str, float], table: TableSpec) -> tuple[int, float, float]:
    match kind:
        case "uniform":
            return UNIFORM, params["minval"], params["maxval"]
        case "normal":
            return NORMAL, params["mean"], params["stddev"]
        case "truncated_normal":
            return TRUNCATED_NORMAL, params["mean"], params["stddev"]
        case "zeros":
            return CONSTANT, 0.0, 0.0
        case "ones":
            return CONSTANT, 1.0, 0.0
        case "constant":
            return CONSTANT, params["value"], 0.0
    fan_in = float(table.input_dim or table.dim)
    variance = 2.0 / (fan_in + table.dim) if kind.startswith("glorot") else 2.0 / fan_in
    if kind.endswith("uniform"):
        limit = math.sqrt(3.0 * variance)
        return UNIFORM, -limit, limit
    return TRUNCATED_NORMAL, 0.0, math.sqrt(variance) / _TRUNCATED_STDDEV


def initial_values(
    out: NDArray[np.float32], ids: NDArray[np.int64], dim: int, kind: int, a: float, b: float, seed: int
) -> None:
    """Sets ``out[i, :dim]`` to the first values of ``ids[i]``."""
    if kind == CONSTANT:
        out[:, :dim] = np.float32(a)
        return
    stream = _hash(ids.astype(np.uint64) + stream_of(seed))
    counters = stream[:, None] + np.arange(1, dim + 1, dtype=np.uint64) * np.uint64(GOLDEN)
    if kind in (NORMAL, TRUNCATED_NORMAL):
        numbers = _normal(_hash(counters))
        while kind == TRUNCATED_NORMAL and (far := np.abs(numbers) > 2.0).any():
            counters[far] += np.uint64(ATTEMPT)
            numbers[far] = _normal(_hash(counters[far]))
        out[:, :dim] = a + b * numbers
    else:
        out[:, :dim] = a + (b - a) * ((_hash(counters) >> np.uint64(11)) * (1.0 / (1 << 53)))


def first_rows(table: TableSpec, ids: NDArray[np.int64]) -> NDArray[np.float32]:
    """The rows that ids of a table begin with, ``[len(ids), dim]``."""
    made = make_initializer(table)
    out = np.empty((len(ids), table.dim), np.float32)
    step = max(1, _BLOCK // table.dim)
    for at in range(0, len(ids), step):
        part = slice(at, at + step)
        initial_values(out[part], ids[part], table.dim, made.kind, made.a, made.b, made.seed)
    return out


def whole_matrix(
    table: TableSpec, ids: NDArray[np.int64], rows: NDArray[np.float32], size: int
) -> NDArray[np.float32]:
    """All rows of a table, float32 ``[size, dim]``: ids without a row of their own have the one that they begin with.

    Args:
        table: the table.
        ids: that have a row, all below ``size``.
        rows: theirs, ``[len(ids), dim]``.
        size: number of ids; it may have grown since the table was made.

    Raises:
        InvalidInputError: an id is beyond ``size``.
    """
    if len(ids) and int(ids.max()) >= size:
        raise InvalidInputError(
            f"the table {table.name} has the id {int(ids.max())}, and takes ids from 0 to {size - 1} in the model",
            fix="use the model definition and model_params that the checkpoint was made with",
        )
    if table.input_dim is not None:
        table = replace(table, input_dim=size)
    unseen = np.ones(size, np.bool_)
    unseen[ids] = False
    (others,) = np.nonzero(unseen)
    matrix = np.empty((size, table.dim), np.float32)
    matrix[others] = first_rows(table, others)
    matrix[ids] = rows
    return matrix


def stream_of(seed: int) -> NDArray[np.uint64]:
    """The number added to ids before they are hashed, uint64 ``[1]``."""
    return _hash(np.array([seed]).astype(np.uint64) + np.uint64(GOLDEN))


def _hash(values: NDArray[np.uint64]) -> NDArray[np.uint64]:
    return hash_ids(values.view(np.int64))


def _normal(bits: NDArray[np.uint64]) -> NDArray[np.float64]:
    """Standard normal numbers (Box and Muller 1958) from 64 random bits each."""
    first = ((bits >> np.uint64(32)).astype(np.float64) + 0.5) / (1 << 32)
    second = (bits & np.uint64(0xFFFFFFFF)).astype(np.float64) / (1 << 32)
    result: NDArray[np.float64] = np.sqrt(-2.0 * np.log(first)) * np.cos(2.0 * np.pi * second)
    return result

"""Initialisers of embedding rows: from a specification in Keras' words to a kind and two numbers for the kernels."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import TableSpec
from elasticdl_ps.kernels import codes

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
    """What the kernels ``initialise`` and ``initial_values`` take.

    Attributes:
        kind: one of ``kernels.codes``.
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
            return codes.UNIFORM, params["minval"], params["maxval"]
        case "normal":
            return codes.NORMAL, params["mean"], params["stddev"]
        case "truncated_normal":
            return codes.TRUNCATED_NORMAL, params["mean"], params["stddev"]
        case "zeros":
            return codes.CONSTANT, 0.0, 0.0
        case "ones":
            return codes.CONSTANT, 1.0, 0.0
        case "constant":
            return codes.CONSTANT, params["value"], 0.0
    fan_in = float(table.input_dim or table.dim)
    variance = 2.0 / (fan_in + table.dim) if kind.startswith("glorot") else 2.0 / fan_in
    if kind.endswith("uniform"):
        limit = math.sqrt(3.0 * variance)
        return codes.UNIFORM, -limit, limit
    return codes.TRUNCATED_NORMAL, 0.0, math.sqrt(variance) / _TRUNCATED_STDDEV

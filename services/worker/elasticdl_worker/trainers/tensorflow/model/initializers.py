"""Keras initializers in the words of the parameter servers."""

from __future__ import annotations

import zlib

from elasticdl_core.model import InitializerSpec
from elasticdl_worker.trainers.tensorflow.types import KerasInitializer

_ARGUMENTS = {
    "zeros": (),
    "ones": (),
    "constant": ("value",),
    "uniform": ("minval", "maxval"),
    "normal": ("mean", "stddev"),
    "truncated_normal": ("mean", "stddev"),
    "glorot_uniform": (),
    "glorot_normal": (),
    "he_uniform": (),
    "he_normal": (),
}
_KINDS = {
    "Zeros": "zeros",
    "Ones": "ones",
    "Constant": "constant",
    "RandomUniform": "uniform",
    "RandomNormal": "normal",
    "TruncatedNormal": "truncated_normal",
    "GlorotUniform": "glorot_uniform",
    "GlorotNormal": "glorot_normal",
    "HeUniform": "he_uniform",
    "HeNormal": "he_normal",
}
KNOWN = tuple(_KINDS)


def initializer_spec(initializer: KerasInitializer, table: str, seed: int) -> InitializerSpec | None:
    """Translates a Keras initializer.

    Args:
        initializer: an instance from ``keras.initializers``.
        table: the table's name; tables differ though they share an initializer without a seed.
        seed: the job's seed.

    Returns:
        The specification, or None for an initializer that the parameter servers do not know.
    """
    kind = _KINDS.get(type(initializer).__name__.removesuffix("V2"))
    if kind is None or not type(initializer).__module__.split(".")[0].endswith("keras"):
        return None
    config = initializer.get_config()
    params = {}
    for name in _ARGUMENTS[kind]:
        value = config.get(name)
        if isinstance(value, bool) or not isinstance(value, int | float):
            return None
        params[name] = float(value)
    own = config.get("seed")
    mixed = own if isinstance(own, int) else zlib.crc32(table.encode()) ^ (seed * 0x9E3779B1 & 0xFFFFFFFF)
    return InitializerSpec(kind, params, mixed & 0x7FFFFFFF)

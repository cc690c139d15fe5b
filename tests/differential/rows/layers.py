"""Rows about layers: every family that Keras has, those without weights several in a model."""

from __future__ import annotations

from tests.differential.data import validated
from tests.differential.driver import Row
from tests.differential.zoo import module, net

SEQUENCE = "h = layers.Reshape((4, 3))(layers.Dense(12)(h))"
IMAGE = "h = layers.Reshape((4, 4, 2))(layers.Dense(32)(h))"
VOLUME = "h = layers.Reshape((3, 3, 3, 2))(layers.Dense(54)(h))"
FLAT = "h = layers.Flatten()(h)"


def chain(name: str, *calls: str, before: str = "", family: str = "layers", **more: object) -> Row:
    """A row whose model calls layers one after the other."""
    lines = [line for line in (before, *(f"h = {call}(h)" for call in calls), FLAT) if line]
    return Row(name, module(net(*lines)), family, **more)  # type: ignore[arg-type]


def noisy(name: str, *calls: str, before: str = "", family: str = "random", **more: object) -> Row:
    """A row whose model draws random numbers, so that runs agree only in what they learn."""
    return chain(name, *calls, before=before, family=family, one="close", two="close", data=validated, **more)


ROWS = [
    # Dense and its kin
    # Convolutions
    # Pooling
    # Normalisation
    # Recurrence and attention
    # Randomness
]

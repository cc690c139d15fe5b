"""Counts of the parameter servers: the records that are in the model, by task."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass

Counts = Mapping[tuple[int, int], int]
"""Records by epoch and index of the task."""


@dataclass(frozen=True)
class Tallied:
    """The counts of one PS.

    Attributes:
        counts: records that are in its parameters.
        complete: whether all of its gradients were counted.
    """

    counts: Counts
    complete: bool = True

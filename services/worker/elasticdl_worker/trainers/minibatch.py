"""Minibatches: records of a task as the model sees them, in the tensors of any framework."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, TypeAlias

from elasticdl.data import Shard
from elasticdl_core.errors import UserCodeError
from elasticdl_core.shuffling import Reading, described

Tensors: TypeAlias = Any
"""Tensors of the framework in use, nested in dicts, tuples and lists as the user's ``feed`` and model like it."""


def not_a_pair(given: Any, path: Path, mode: str) -> UserCodeError:
    """The error for what a ``feed`` gives in place of features and labels.

    Args:
        given: by it, of one or more records.
        path: the file of the ``feed``.
        mode: training or evaluation.
    """
    several = isinstance(given, tuple | list)
    shape = f"a {type(given).__name__}" + (f" of {len(given)}" if several else "")
    weights = '; what weighs records is part of the labels, as in (features, {"y": labels, "weight": weights}), '
    return UserCodeError(
        f"feed in {path} gives {shape} for each record in mode {mode}",
        fix="give (features, labels)"
        + (f"{weights}and `loss` and metrics weigh by it" if several and len(given) == 3 else ""),
    )


@dataclass(frozen=True)
class Minibatch:
    """Records as the model sees them.

    Attributes:
        features: nested tensors.
        labels: nested tensors; None in prediction.
        records: number of records.
        shard: where they are from.
        first: position of the first of them in the shard's source; None if they may be any of the shard's.
        reading: where the records of the positions lie, if they are shuffled.
    """

    features: Tensors
    labels: Tensors
    records: int
    shard: Shard | None = None
    first: int | None = None
    reading: Reading | None = None

    @property
    def where(self) -> str:
        """The records that it is made of, in words."""
        shard = self.shard
        if shard is None:
            return f"{self.records} records"
        if self.first is not None:
            return described(self._records(Shard(shard.name, self.first, self.first + self.records)))
        return f"{self.records} of the {described(self._records(shard))}"

    def _records(self, positions: Shard) -> Sequence[Shard]:
        return [positions] if self.reading is None else self.reading.records(positions.start, positions.end)

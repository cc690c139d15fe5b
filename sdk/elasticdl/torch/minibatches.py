"""Ready minibatches from ``feed``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from typing import Any


class Minibatches:
    """Says that what ``feed`` returns are whole minibatches, not samples: they are taken as they are.

    Args:
        minibatches: of ``(features, labels)``, in prediction of ``features``; the first dimension of each tensor is
            that of the records.
    """

    def __init__(self, minibatches: Iterable[Any]) -> None:
        self._minibatches = minibatches

    def __iter__(self) -> Iterator[Any]:
        return iter(self._minibatches)

"""Measures an order of records: that of data sorted by class, against full shuffles of it.

By chance alone a stretch of a shuffled order has somewhat more of one class and less of another. An order whose
stretches differ by more shows a model first one part of the data and then another.
"""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import numpy.typing as npt

Numbers = npt.NDArray[np.int64]
CLASSES = 5
_SHUFFLES = 5
_NEAR = 32


@dataclass(frozen=True)
class OrderQuality:
    """An order's deviations as multiples of full shuffles'.

    Attributes:
        in_minibatch: the standard deviation of the share of a class in a minibatch.
        in_256: likewise, in 256 records that follow each other.
        in_8_minibatches: likewise, in 8 minibatches that follow each other.
        neighbours: how many of a minibatch's records are from one neighbourhood of 32.
        correlation: of a record's place in the data with the next one's; not a multiple.
    """

    in_minibatch: float
    in_256: float
    in_8_minibatches: float
    neighbours: float
    correlation: float

    @property
    def worst(self) -> float:
        """The largest multiple."""
        return max(self.in_minibatch, self.in_256, self.in_8_minibatches, self.neighbours)


def deviation(numbers: Numbers, run: int, classes: int = CLASSES) -> float:
    """The standard deviation of the share of a class in ``run`` records that follow each other.

    Args:
        numbers: the places of the records in data sorted by class, in the order that is measured; each place once.
        run: records.
        classes: classes of as many records each.
    """
    rows = numbers[: len(numbers) // run * run].reshape(-1, run) * classes // len(numbers)
    shares = np.stack([(rows == one).mean(axis=1) for one in range(classes)])
    return float(np.sqrt(((shares - 1 / classes) ** 2).mean()))


def crowding(numbers: Numbers, run: int) -> float:
    """The mean number of records of ``run`` that are from one neighbourhood."""
    rows = numbers[: len(numbers) // run * run].reshape(-1, run) // _NEAR
    return float(np.mean([run / len(np.unique(row)) for row in rows]))


def order_quality(orders: list[Numbers], minibatch: int = 64) -> OrderQuality:
    """Measures orders of the same data, such as those of several seeds or epochs."""
    random = np.random.default_rng(0)
    full = [random.permutation(len(orders[0])) for _ in range(_SHUFFLES)]

    def multiple(run: int) -> float:
        found, expected = ([deviation(one, run) for one in some] for some in (orders, full))
        return float(np.mean(found) / np.mean(expected))

    crowds = [np.mean([crowding(one, minibatch) for one in some]) for some in (orders, full)]
    return OrderQuality(
        multiple(minibatch),
        multiple(256),
        multiple(8 * minibatch),
        float(crowds[0] / crowds[1]),
        float(np.mean([np.corrcoef(one[:-1], one[1:])[0, 1] for one in orders])),
    )

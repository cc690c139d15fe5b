"""The model that generated clicks are drawn from, and their fast encoding.

The logit of a click is that of a factorisation machine (Rendle 2010): a bias, a weight for each id, and for each pair
of fields the dot product of the ids' vectors. Labels are drawn with that chance, so no model can order records better
than the true chances do: their AUC is the ceiling.
"""

from __future__ import annotations

import itertools
from collections.abc import Iterator
from dataclasses import dataclass
from typing import Any

import numpy as np
import numpy.typing as npt

from elasticdl.data.errors import DataError
from elasticdl.data.example import encode_feature, varint, varints

_RANK = 4
_WEIGHT_SCALE = 0.35
_VECTOR_SCALE = 0.24
_BIAS = -1.0


@dataclass(frozen=True)
class ClickBatch:
    """A batch of clicks.

    Attributes:
        ids: int64 ``[n, fields]``.
        chances: float64 ``[n]``, the true chance of a click.
        labels: int64 ``[n]``, 0 or 1.
    """

    ids: npt.NDArray[np.int64]
    chances: npt.NDArray[np.float64]
    labels: npt.NDArray[np.int64]


class ClickTruth:
    """The factorisation machine that clicks are drawn from.

    Args:
        num_fields: ids in a record.
        ids: number of ids of all fields together.
        zipf: exponent of the frequencies of ids within a field.
        seed: of the machine and of the records.

    Raises:
        DataError: there are fewer ids than fields, or an argument is not positive.
    """

    def __init__(self, num_fields: int, ids: int, zipf: float, seed: int) -> None:
        if num_fields < 1 or ids < num_fields or zipf < 0:
            raise DataError(
                f"clicks with {num_fields} fields, {ids} ids and zipf {zipf} cannot be made",
                fix="give at least 1 field, at least as many ids as fields, and zipf of at least 0",
            )
        self._settings = {"num_fields": num_fields, "ids": ids, "zipf": zipf, "seed": seed}
        self._seed = seed
        random = np.random.default_rng([seed, 0])
        self._weights = random.normal(0, _WEIGHT_SCALE, ids).astype(np.float32)
        self._vectors = random.normal(0, _VECTOR_SCALE, (ids, _RANK)).astype(np.float32)
        bounds = np.linspace(0, ids, num_fields + 1).astype(np.int64)
        # Frequent ids lie scattered over a field, as they do in real data.
        self._by_rank = [low + random.permutation(high - low) for low, high in itertools.pairwise(bounds)]
        self._cumulative = [_cumulative_zipf(len(field), zipf) for field in self._by_rank]

    def describe(self) -> dict[str, Any]:
        """The settings and scales of the machine, as JSON values."""
        return {
            **self._settings, "rank": _RANK, "weight_scale": _WEIGHT_SCALE, "vector_scale": _VECTOR_SCALE,
            "bias": _BIAS,
        }  # fmt: skip

    def draw(self, records: int, stream: int, batch: int) -> Iterator[ClickBatch]:
        """Draws records in batches; equal arguments give equal records.

        Args:
            records: how many in all.
            stream: records of different streams are independent.
            batch: how many at a time.
        """
        random = np.random.default_rng([self._seed, 1, stream])
        for start in range(0, records, batch):
            count = min(batch, records - start)
            ids = np.empty((count, len(self._by_rank)), dtype=np.int64)
            for column, (by_rank, cumulative) in enumerate(zip(self._by_rank, self._cumulative, strict=True)):
                ids[:, column] = by_rank[np.searchsorted(cumulative, random.random(count), side="right")]
            chances = self.chances(ids)
            yield ClickBatch(ids, chances, (random.random(count) < chances).astype(np.int64))

    def chances(self, ids: npt.NDArray[np.int64]) -> npt.NDArray[np.float64]:
        """The true chance of a click of each record: int64 ``[n, fields]`` to float64 ``[n]``."""
        vectors = self._vectors[ids].astype(np.float64)
        total = vectors.sum(axis=1)
        pairs = 0.5 * ((total * total).sum(axis=1) - (vectors * vectors).sum(axis=(1, 2)))
        logits = _BIAS + self._weights[ids].astype(np.float64).sum(axis=1) + pairs
        chances: npt.NDArray[np.float64] = 1 / (1 + np.exp(-logits))
        return chances


def _cumulative_zipf(count: int, exponent: float) -> npt.NDArray[np.float64]:
    cumulative: npt.NDArray[np.float64] = np.cumsum(np.arange(1, count + 1, dtype=np.float64) ** -exponent)
    cumulative /= cumulative[-1]
    cumulative[-1] = 1.0
    return cumulative


def expected_auc(chances: npt.NDArray[np.float64]) -> float:
    """The AUC to expect from ordering records by their true chances, over the draw of their labels.

    It is the share of (clicked, not clicked) pairs in right order, each pair with the chance that it is one: pairs of
    equal chance count half. No model does better on average.

    Args:
        chances: float64 ``[n]``, the true chance of each record.
    """
    order = np.sort(chances)
    unclicked_before = np.concatenate([[0.0], np.cumsum(1 - order)])
    low = np.searchsorted(order, order, side="left")
    high = np.searchsorted(order, order, side="right")
    below = unclicked_before[low]
    equal = unclicked_before[high] - below - (1 - order)  # a record makes no pair with itself
    pairs = order.sum() * (1 - order).sum() - (order * (1 - order)).sum()
    return float((order * (below + 0.5 * equal)).sum() / pairs) if pairs > 0 else 0.5


def encode_clicks(ids: npt.NDArray[np.int64], labels: npt.NDArray[np.int64]) -> list[bytes]:
    """The same bytes as ``encode_example({"ids": ids[i], "label": labels[i]})`` for each i, many times faster.

    Only the packed ids differ in more than their size, so all else is taken from a table.

    Args:
        ids: int64 ``[n, fields]``.
        labels: int64 ``[n]``, 0 or 1.
    """
    packed, sizes = varints(ids.ravel())
    ends = np.cumsum(sizes.reshape(ids.shape).sum(axis=1)).tolist()
    tails = [_entry("label", encode_feature([label])) for label in (0, 1)]
    heads: dict[int, bytes] = {}
    records = []
    start = 0
    for end, label in zip(ends, labels.tolist(), strict=True):
        size = end - start
        head = heads.get(size)
        if head is None:
            head = heads[size] = _head(size, len(tails[0]))
        records.append(head + packed[start:end] + tails[label])
        start = end
    return records


def _head(size: int, after: int) -> bytes:
    """The bytes before packed ids of a size in an Example, when ``after`` bytes follow them."""
    feature = b"\x0a" + varint(size)  # Int64List.value, packed
    feature = b"\x1a" + varint(len(feature) + size) + feature  # Feature.int64_list
    entry = b"\x0a\x03ids" + b"\x12" + varint(len(feature) + size) + feature
    entry = b"\x0a" + varint(len(entry) + size) + entry  # Features.feature
    return b"\x0a" + varint(len(entry) + size + after) + entry  # Example.features


def _entry(name: str, feature: bytes) -> bytes:
    entry = b"\x0a" + varint(len(name)) + name.encode() + b"\x12" + varint(len(feature)) + feature
    return b"\x0a" + varint(len(entry)) + entry

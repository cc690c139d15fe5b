"""Sums of buckets over the fixed tree: what all adapters share. How partial sums travel is the carriers' affair."""

from __future__ import annotations

from abc import ABC, abstractmethod
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from functools import lru_cache
from typing import Protocol

import numpy as np

from elasticdl_core.errors import InvalidInputError
from elasticdl_worker.collectives.mesh import Mesh
from elasticdl_worker.collectives.port import Leaf
from elasticdl_worker.collectives.tree import Array, PartialSum, PartialSumLeaves, partial_sums_of

_DTYPES = ("float32", "float64")


@dataclass(frozen=True, slots=True)
class SumShape:
    """The shape of a sum.

    Attributes:
        lengths: elements of each bucket.
        owners: by microbatch, the rank that brings its leaf.
        dtype: of leaves and sums.
        fused: whether the order of additions is the carrier's.
    """

    lengths: tuple[int, ...]
    owners: tuple[int, ...]
    dtype: str
    fused: bool

    @classmethod
    def of(cls, lengths: Sequence[int], owners: Sequence[int] | None, dtype: str, size: int) -> SumShape:
        """Checks what a caller asks for.

        Raises:
            InvalidInputError: it cannot be.
        """
        if dtype not in _DTYPES:
            raise InvalidInputError(
                f"sums of {dtype} are not made", fix=f"use one of {', '.join(_DTYPES)}; narrower leaves are widened"
            )
        if any(length < 0 for length in lengths):
            raise InvalidInputError("a bucket has a negative length", fix="give the number of its elements")
        if owners is None:
            return cls(tuple(lengths), tuple(range(size)), dtype, True)
        if not owners or not all(0 <= owner < size for owner in owners):
            raise InvalidInputError(
                f"owners {list(owners)} are not all ranks of {size} members", fix="give the rank of each microbatch"
            )
        return cls(tuple(lengths), tuple(owners), dtype, False)

    @property
    def itemsize(self) -> int:
        """Bytes of an element."""
        return np.dtype(self.dtype).itemsize

    def partial_sums(self) -> tuple[PartialSum, ...]:
        """From left to right."""
        return _known_partial_sums(self.owners)


@lru_cache(maxsize=64)
def _known_partial_sums(owners: tuple[int, ...]) -> tuple[PartialSum, ...]:
    """The partial sums of owners, which stay the same for many sums and are asked for several times in each."""
    return partial_sums_of(owners)


class SumCarrier(Protocol):
    """The carrier that brings the partial sums of a group together."""

    def begin(self, operation: int, shape: SumShape, timeout_s: float) -> CarriedSum:
        """Begins a sum.

        Args:
            operation: its number, the same at all members.
            shape: what is summed.
            timeout_s: for how long members that live are waited for.
        """
        ...


class OwnLeaves:
    """The leaves that this member brings, merged into its partial sums as they come.

    Args:
        shape: what is summed.
        rank: this member's.
        homes: for each bucket, the memory of each of this member's partial sums.
        spares: by length, memory for leaves that are not merged yet; kept from sum to sum.
        write: copies a leaf to memory, after looking whether it fits.
    """

    def __init__(
        self,
        shape: SumShape,
        rank: int,
        homes: Sequence[Sequence[Array]],
        spares: dict[int, list[Array]],
        write: Callable[[Array, Leaf], None] | None = None,
    ) -> None:
        self._write = write or _write
        own = [partial_sum for partial_sum in shape.partial_sums() if partial_sum.owner == rank]
        self._shape, self._rank = shape, rank
        self._of_microbatch = {
            m: at for at, partial_sum in enumerate(own) for m in range(partial_sum.first, partial_sum.end)
        }
        self._leaves = [
            [
                PartialSumLeaves(partial_sum, home, spares.setdefault(length, []))
                for partial_sum, home in zip(own, partial_sums, strict=True)
            ]
            for length, partial_sums in zip(shape.lengths, homes, strict=True)
        ]

    def leaf(self, microbatch: int, bucket: int) -> Array:
        """Memory for a leaf that is still to be brought."""
        return self._find(microbatch, bucket).leaf(microbatch)

    def add(self, microbatch: int, bucket: int, values: Leaf | None) -> bool:
        """Takes a leaf; returns whether all of the bucket's are there now."""
        leaves = self._find(microbatch, bucket)
        memory = leaves.leaf(microbatch)
        if values is not None and values is not memory:
            self._write(memory, values)
        leaves.merge(microbatch)
        return self.is_whole(bucket)

    def is_whole(self, bucket: int) -> bool:
        """Whether all leaves of a bucket were brought."""
        return all(leaves.is_whole for leaves in self._leaves[bucket])

    def require_all(self) -> None:
        """Refuses to go on without a leaf.

        Raises:
            InvalidInputError: one is missing.
        """
        for bucket, partial_sums in enumerate(self._leaves):
            for leaves in partial_sums:
                if not leaves.is_whole:
                    raise InvalidInputError(
                        f"microbatches {sorted(leaves.missing)} of bucket {bucket} were not brought",
                        fix="add each leaf that this member owns, then finish",
                    )

    def _find(self, microbatch: int, bucket: int) -> PartialSumLeaves:
        at = self._of_microbatch.get(microbatch)
        if at is None:
            raise InvalidInputError(
                f"microbatch {microbatch} is not rank {self._rank}'s", fix="bring those that it owns"
            )
        if not 0 <= bucket < len(self._leaves):
            raise InvalidInputError(f"there is no bucket {bucket}", fix=f"there are {len(self._leaves)}")
        leaves = self._leaves[bucket][at]
        if microbatch not in leaves.missing:
            raise InvalidInputError(
                f"microbatch {microbatch} of bucket {bucket} was brought before", fix="bring each leaf once"
            )
        return leaves


def _write(memory: Array, values: Leaf) -> None:
    fits = values.dtype == memory.dtype or np.can_cast(values.dtype, memory.dtype, "safe")
    check_leaf(values.shape, memory.shape, None if fits else (str(values.dtype), str(memory.dtype)))
    np.copyto(memory, values)


def check_leaf(shape: tuple[int, ...], wanted: tuple[int, ...], narrowed: tuple[str, str] | None) -> None:
    """Refuses a leaf that does not fit.

    Args:
        shape: its own.
        wanted: of its memory.
        narrowed: its type and the sum's, if the latter is narrower.

    Raises:
        InvalidInputError: it does not fit.
    """
    if shape != wanted:
        raise InvalidInputError(
            f"a leaf has shape {shape}, its bucket {wanted}", fix="bring a flat buffer of its length"
        )
    if narrowed is not None:
        raise InvalidInputError(
            f"a leaf of {narrowed[0]} does not fit into a sum of {narrowed[1]}",
            fix="begin the sum with a wider dtype, or convert the leaf",
        )


class CarriedSum(ABC):
    """A sum under way.

    Args:
        mesh: of the group.
        leaves: this member's.
        buckets: how many there are.

    Attributes:
        is_over: whether it was finished, or cannot be.
    """

    def __init__(self, mesh: Mesh, leaves: OwnLeaves, buckets: int) -> None:
        self.is_over = False
        self._mesh = mesh
        self._leaves = leaves
        self._buckets = buckets

    def start(self) -> None:
        """Brings the buckets for which this member has no leaves."""
        for bucket in range(self._buckets):
            if self._leaves.is_whole(bucket):
                self._bring(bucket)

    def leaf(self, microbatch: int, bucket: int) -> Leaf:
        """Memory for a leaf; see the port."""
        return self._leaves.leaf(microbatch, bucket)

    def add(self, microbatch: int, bucket: int, values: Leaf | None = None) -> None:
        """Brings a leaf; see the port."""
        self._mesh.check()
        if self._leaves.add(microbatch, bucket, values):
            self._bring(bucket)

    def finish(self) -> list[Leaf]:
        """Waits for the sums; see the port."""
        self._leaves.require_all()
        try:
            results = self._collect()
        finally:
            self.is_over = True
            self.let_go()
        self._protect(results)
        return results

    def _protect(self, results: list[Leaf]) -> None:
        """Has nobody write to the sums."""
        for result in results:
            result.flags.writeable = False

    @abstractmethod
    def _bring(self, bucket: int) -> None:
        """Has a bucket summed: all of this member's partial sums of it are whole. Does not wait."""

    @abstractmethod
    def _collect(self) -> list[Leaf]:
        """Waits for the sums."""

    def let_go(self) -> None:  # noqa: B027 - not all hold anything
        """Drops what belongs to the group: a sum that is over may be kept for longer than that."""

"""The dense parameters of one partition: flat slices, with optimizer slots where they are trained."""

from __future__ import annotations

import threading
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import DenseKind, DenseSpec
from elasticdl_ps.constraints import Constrain, check_constraint, make_constraint
from elasticdl_ps.kernels import KernelSet
from elasticdl_ps.optimizers import Optimizer, UpdateNumbers
from elasticdl_ps.store.compensation import Delay
from elasticdl_ps.store.merging import StateUpdate

_STATE = "fiub"
_ONLY_ROW = np.zeros(1, np.int64)
"""A dense parameter is a table of one row."""


@dataclass(slots=True, eq=False)
class DensePart:
    """A slice of one dense parameter.

    Attributes:
        spec: the whole parameter.
        start: first element of the flattened parameter that is here.
        stop: one past the last.
        record: trained: float32 ``[1, (1 + slots) * size]``, the value and then the slots, as a row of a table;
            state: ``[1, size]`` of its own dtype.
        version: the partition's version at the last change.
        steps: how many updates its slots are of.
        size: number of elements here.
        values: the elements, ``[size]``; a view.
        as_bytes: the same, uint8.
        constrain: what is done to ``values`` after each update, if anything.
    """

    spec: DenseSpec
    start: int
    stop: int
    record: NDArray[Any]
    version: int
    steps: int
    size: int = field(init=False)
    values: NDArray[Any] = field(init=False)
    as_bytes: NDArray[np.uint8] = field(init=False)
    constrain: Constrain | None = field(init=False)

    def __post_init__(self) -> None:
        self.size = self.stop - self.start
        self.values = self.record[0, : self.size]
        self.as_bytes = self.values.view(np.uint8)
        self.constrain = make_constraint(self.spec)


@dataclass(frozen=True, slots=True)
class DenseValue:
    """A copy of a slice, as it is sent and saved.

    Attributes:
        spec: the whole parameter.
        start: first element.
        stop: one past the last.
        values: ``[stop - start]``; with slots ``[(1 + slots) * (stop - start)]``.
        version: the partition's version at the last change.
        steps: how many updates its slots are of.
    """

    spec: DenseSpec
    start: int
    stop: int
    values: NDArray[Any]
    version: int
    steps: int


class DenseStore:
    """All dense slices of a partition. Methods may be called from any thread.

    Args:
        optimizer: gives the slots and the update.
        kernels: the kernels.
    """

    def __init__(self, optimizer: Optimizer, kernels: KernelSet) -> None:
        self._optimizer = optimizer
        self._update = kernels.update(optimizer.kernel)
        self._lock = threading.Lock()
        self._parts: dict[str, DensePart] = {}
        self._by_name: tuple[DensePart, ...] = ()
        self.value_bytes = 0
        """Size of the values alone: what a pull of all of them sends."""

    @property
    def nbytes(self) -> int:
        """Memory of values and slots."""
        return sum(part.record.nbytes for part in list(self._parts.values()))

    @property
    def specs(self) -> list[DenseSpec]:
        """The parameters of which this partition holds something, by name."""
        return [part.spec for part in self._by_name]

    @property
    def slices(self) -> set[tuple[str, int, int]]:
        """Name, first element and one past the last of each slice."""
        return {(part.spec.name, part.start, part.stop) for part in self._by_name}

    def part(self, name: str) -> DensePart | None:
        """The slice of a parameter; its arrays are live."""
        return self._parts.get(name)

    def add(self, spec: DenseSpec, start: int, stop: int, values: NDArray[Any], version: int, steps: int = 0) -> None:
        """Takes a slice with fresh slots, or, if ``values`` has them, with those.

        Args:
            spec: the parameter.
            start: first element.
            stop: one past the last.
            values: ``[stop - start]``, or all of a record.
            version: the partition's version.
            steps: how many updates the slots are of; none of fresh ones.
        """
        size = stop - start
        if spec.kind is DenseKind.STATE:
            record = np.array(values, dtype=np.dtype(spec.dtype)).reshape(1, size)
        else:
            slots = self._optimizer.slot_values(spec.group)
            record = np.empty((1, size * (1 + len(slots))), np.float32)
            for index, value in enumerate(slots):
                record[0, size * (1 + index) : size * (2 + index)] = value
            record[0, : len(values)] = values
        with self._lock:
            self._parts[spec.name] = DensePart(spec, start, stop, record, version, steps)
            self._by_name = tuple(part for _, part in sorted(self._parts.items()))
            self.value_bytes = sum(part.as_bytes.nbytes for part in self._by_name)

    def apply(
        self,
        changes: Mapping[str, NDArray[Any]],
        numbers: UpdateNumbers,
        version: int,
        delays: Mapping[str, Delay],
    ) -> None:
        """Applies gradients to trained slices.

        Args:
            changes: by name of the parameter, float32 ``[size]``.
            numbers: of this update.
            version: the partition's version after this update.
            delays: by name of the parameter, for gradients that are to be compensated.
        """
        with self._lock:
            for name, change in changes.items():
                part = self._parts[name]
                part.steps += 1
                if part.size:
                    if name in delays:
                        change = delays[name].compensate(change, part.values)
                    self._update(part.record, _ONLY_ROW, change.reshape(1, -1), numbers.of(part.spec, part.steps))
                    if part.constrain is not None:
                        part.constrain(part.values)
                part.version = version

    def declare_anew(self, specs: Iterable[DenseSpec]) -> None:
        """Takes what a model says now of parameters that are here: their weight decay, group and constraints.

        What is trained now and was not, or the other way round, has its record of ``reform``.
        """
        with self._lock:
            for spec in specs:
                part = self._parts[spec.name]
                part.spec, part.constrain = spec, make_constraint(spec)

    def reform(self) -> None:
        """Gives the records that are not of their parameters' present kind or type that form, with fresh slots."""
        for part in list(self._parts.values()):
            trained = part.spec.kind is DenseKind.TRAINABLE
            size = part.size * (1 + len(self._optimizer.slots) if trained else 1)
            if part.record.size != size or part.record.dtype != np.dtype(part.spec.dtype):
                self.add(part.spec, part.start, part.stop, part.values.copy(), part.version)

    def change_state(self, changes: Mapping[str, StateUpdate], version: int) -> None:
        """Changes slices of state; ``version`` is the partition's after this update."""
        with self._lock:
            for name, change in changes.items():
                part = self._parts[name]
                change.apply(part.values)
                part.version = version

    def changed(self, since: int) -> tuple[DensePart, ...]:
        """The slices that changed after version ``since`` (-1: all), by name; copy them with ``copy``."""
        parts = self._by_name
        changed = tuple(part for part in parts if part.version > since)
        return parts if len(changed) == len(parts) else changed

    def copy(self, values: Sequence[NDArray[np.uint8]], places: Sequence[NDArray[np.uint8]]) -> None:
        """Copies values of slices as bytes, wholly before or after an update."""
        with self._lock:
            for value, place in zip(values, places, strict=True):
                place[:] = value

    def read(self, since: int, *, with_slots: bool = False) -> list[DenseValue]:
        """Copies of the slices that changed after version ``since`` (-1: all), by name."""
        with self._lock:
            return [_copy(part, with_slots) for part in self._by_name if part.version > since]

    def replace_optimizer(self, optimizer: Optimizer, kernels: KernelSet) -> None:
        """Takes another optimizer; slots stay if it has the same ones, else they start anew."""
        with self._lock:
            same = list(optimizer.slots) == list(self._optimizer.slots)
            self._optimizer, self._update = optimizer, kernels.update(optimizer.kernel)
        if not same:
            for part in list(self._parts.values()):
                self.add(part.spec, part.start, part.stop, part.values.copy(), part.version)


def check_specs(specs: Iterable[tuple[DenseSpec, int, int]]) -> None:
    """Checks declared slices.

    Raises:
        InvalidInputError: a name comes twice, a slice is not within its parameter, a dtype cannot be held, or a
            constraint cannot be kept.
    """
    seen: set[str] = set()
    for spec, start, stop in specs:
        _check_shape(spec.name, spec.shape)
        if spec.name in seen:
            raise InvalidInputError(f"the dense parameter {spec.name!r} comes twice", fix="send each one once")
        seen.add(spec.name)
        if not 0 <= start <= stop <= spec.size:
            raise InvalidInputError(
                f"the dense parameter {spec.name!r} has {spec.size} elements, not [{start}, {stop})",
                fix="send a slice that lies within the parameter",
            )
        try:
            dtype = np.dtype(spec.dtype)
        except TypeError:
            dtype = np.dtype(object)
        if dtype.kind not in _STATE or (spec.kind is DenseKind.TRAINABLE and dtype != np.float32):
            raise InvalidInputError(
                f"the dense parameter {spec.name!r} ({spec.kind}) has the dtype {spec.dtype!r}",
                fix="send trained parameters as float32, and state as floating-point numbers, integers or booleans",
            )
        check_constraint(spec, start, stop)


def _check_shape(name: str, shape: Sequence[int]) -> None:
    if any(extent < 0 for extent in shape):
        raise InvalidInputError(f"the dense parameter {name!r} has the shape {shape}", fix="send extents >= 0")


def _copy(part: DensePart, with_slots: bool) -> DenseValue:
    values = part.record[0] if with_slots else part.values
    return DenseValue(part.spec, part.start, part.stop, values.copy(), part.version, part.steps)

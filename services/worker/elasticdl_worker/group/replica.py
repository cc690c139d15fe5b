"""The model of a member, as the group drives it: what a framework implements to be trained by AllReduce.

All members hold the same model. A step is cut into *microbatches*, a fixed number of them whatever the number of
members. A member computes the *contributions* of the microbatches that are dealt to it. The group sums the
contributions of all microbatches, in an order that does not depend on who computed them, and every member applies the
sum. So all of them stay equal to the last bit, if these promises are kept:

- ``compute`` depends on the parameters, the batch, the step and the number of the microbatch alone. What is random
  (dropout, augmentation) is seeded by the last two.
- ``compute`` changes nothing that a later call, or ``apply``, would see: the change of moving averages and
  counters is part of the contribution.
- ``apply`` depends on the state before, and on its arguments, alone.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol, TypeAlias, runtime_checkable

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.model import DenseSpec, OptimizerSpec
from elasticdl_core.skips import Skips
from elasticdl_core.task import Task

Flat: TypeAlias = NDArray[np.float32]
"""A one-dimensional array of float32, in one piece; a tensor, if the replica's memory is a device's."""


class Memory(Protocol):
    """The memory of the arrays of contributions and of sums."""

    @property
    def adapter(self) -> str:
        """Of the collectives, that sums there."""

    def zeros(self, length: int) -> Flat:
        """An array of its own."""

    def copy(self, target: Flat, source: Flat) -> None:
        """Copies an array there or in the host's memory to one that is there."""

    def on_host(self, array: Flat) -> Flat:
        """An array in the host's memory, which may be the same one."""


class HostMemory:
    """The memory of the host, whose arrays are numpy's."""

    adapter = "auto"

    def zeros(self, length: int) -> Flat:
        """An array of its own."""
        return np.zeros(length, np.float32)

    def copy(self, target: Flat, source: Flat) -> None:
        """Copies an array."""
        np.copyto(target, source)

    def on_host(self, array: Flat) -> Flat:
        """The array itself."""
        return array


HOST_MEMORY: Memory = HostMemory()


def copies(memory: Memory, arrays: Sequence[Flat]) -> list[Flat]:
    """Arrays that stay as they are, whatever becomes of others."""
    found = [memory.zeros(len(array)) for array in arrays]
    for target, source in zip(found, arrays, strict=True):
        memory.copy(target, source)
    return found


@dataclass(frozen=True)
class MicrobatchData:
    """The records of one microbatch, ready for ``Replica.compute``.

    Attributes:
        fed: rows that came out of the user's ``feed``; 0 if none did.
        skips: records that the reader passed over.
        content: the framework's own: features and labels. The group only passes it on.
    """

    fed: int
    skips: Skips = field(default_factory=Skips)
    content: Any = None


Measure = Callable[[bool], Mapping[str, float]]
"""Has the metrics of the epoch take what was computed; gives their values if they are due, else nothing."""


def take_all(measures: Sequence[Measure], due: bool) -> dict[str, float]:
    """Has the metrics take all that an update was made of; gives their values if they are due, else nothing."""
    values: Mapping[str, float] = {}
    for number, one in enumerate(measures, 1):
        values = one(due and number == len(measures))
    return dict(values)


@dataclass(frozen=True)
class LossFraction:
    """A loss by its numerator and denominator; a denominator of 0 is that of a plain sum."""

    numerator: float = 0.0
    denominator: float = 0.0

    def __add__(self, other: LossFraction) -> LossFraction:
        return LossFraction(self.numerator + other.numerator, self.denominator + other.denominator)

    @property
    def value(self) -> float:
        """The loss."""
        return self.numerator / (self.denominator or 1.0)


@dataclass(frozen=True)
class Contribution:
    """The contribution of one microbatch to a step.

    Attributes:
        rows: rows that the gradient is of: its weight in the step. 0 if the microbatch has no rows, or was left out.
        arrays: what is summed over the microbatches, each as long as ``Replica.lengths`` says: first the gradients,
            then how other variables change. Where the loss is a mean over the rows, the gradient is multiplied by
            ``rows``, so that the sum divided by all rows is the gradient of the mean over the whole step; so are
            changes of moving averages. A loss with a denominator of its own has that in place of the rows, and adds
            it to the arrays. They may be read until the next call of ``compute``. Empty if ``rows`` is 0.
        loss: of the rows.
        skips: rows that came out of ``feed`` and were left out, because they are not finite and the job says skip; or
            records that a script's own loop made no step of, which count as not fed.
        measure: gives the training metrics of these rows, by name, or raises what they raise; None if there are none.
        denominator: of the loss, in which it and the gradient count; 0 where losses add up to that of the step as
            they are. None is the rows.
    """

    rows: int
    arrays: Sequence[Flat]
    loss: float
    skips: Skips = field(default_factory=Skips)
    measure: Measure | None = None
    denominator: float | None = None

    @property
    def fraction(self) -> LossFraction:
        """The loss as a fraction of which numerators and denominators add up to those of the step's loss."""
        if not self.rows:
            return LossFraction()
        denominator = float(self.rows) if self.denominator is None else self.denominator
        return LossFraction(self.loss * (denominator or 1.0), denominator)


@dataclass(frozen=True)
class ModelLayout:
    """A checkpoint's layout of the model, in the words of parameter servers, so that either strategy reads it.

    Attributes:
        dense: the parameters, trained ones and others.
        optimizer: the optimizer.
        slots: names of its slots, each of the shape of a trained parameter, as the parameter servers name them and in
            their order.
        looked_up: names of the parameters that a minibatch needs some rows of (embeddings).
        layers: what names of layers stand for in the module, as far as it says that.
        closed: names of the tables that parameter servers would hold of this model.
    """

    dense: Sequence[DenseSpec]
    optimizer: OptimizerSpec
    slots: tuple[str, ...]
    looked_up: frozenset[str] = frozenset()
    layers: Mapping[str, str] = field(default_factory=dict)
    closed: tuple[str, ...] = ()


@dataclass(frozen=True)
class ReplicaState:
    """Everything that training goes on from.

    Attributes:
        version: updates that were applied.
        values: each parameter of the layout, by name, in its shape and dtype.
        slots: of each trained parameter, by name, its slots in the layout's order, float32.
        extra: what else the replica needs to go on exactly, by name, in its own words; may be missing when the state
            comes from a checkpoint of parameter servers.
        steps: how many updates the slots of each trained parameter are of, by name.
    """

    version: int
    values: Mapping[str, NDArray[Any]]
    slots: Mapping[str, Sequence[NDArray[np.float32]]]
    extra: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    steps: Mapping[str, int] = field(default_factory=dict)


def copied(state: ReplicaState) -> ReplicaState:
    """A state that stays as it is, whatever becomes of the arrays of another."""
    return ReplicaState(
        state.version,
        {name: np.array(value) for name, value in state.values.items()},
        {name: [np.array(value) for value in values] for name, values in state.slots.items()},
        {name: np.array(value) for name, value in state.extra.items()},
        dict(state.steps),
    )


@runtime_checkable
class ComputesTogether(Protocol):
    """A replica that can compute several microbatches at once, on cores that one alone leaves idle."""

    def most_at_once(self, members: int) -> int:
        """The number of microbatches computed at once, at least 1, where so many members share the machine."""

    def compute_at_once(
        self, step: int, microbatches: Sequence[tuple[int, MicrobatchData]], epoch: int
    ) -> list[Contribution]:
        """Does what ``Replica.compute`` does with each, with the same bits.

        Args:
            step: as for ``compute``.
            microbatches: their numbers and records, all with some fed.
            epoch: as for ``compute``.

        Returns:
            The contributions, whose arrays may be read until the next call of this or of ``compute``.

        Raises:
            UserCodeError: as ``compute``.
        """


@runtime_checkable
class AppliesWhileComputing(Protocol):
    """A replica that can apply what it computes while it computes, where a step is one pass of one member."""

    @property
    def about_to_compile(self) -> bool:
        """Whether the next ``update`` takes as long as a first step may."""

    def update(self, step: int, microbatch: int, data: MicrobatchData, epoch: int) -> Contribution:
        """Does what ``Replica.compute`` does, and may make the update meanwhile.

        If it does, what it holds afterwards has the bits that ``apply`` would give, if the job asks for equal bits.
        ``apply`` with the contribution's arrays has to follow in any case; after an error nothing of the model may be
        used any more.

        Raises:
            UserCodeError: as ``compute``.
        """


class Replica(Protocol):
    """The whole model in one member. All calls but ``read`` come from one thread."""

    @property
    def memory(self) -> Memory:
        """The memory of the arrays of contributions, where sums are taken."""

    @property
    def version(self) -> int:
        """Updates that were applied: the model version."""

    @property
    def lengths(self) -> Sequence[int]:
        """Length of each array of a contribution."""

    @property
    def layout(self) -> ModelLayout:
        """A checkpoint's layout of the model."""

    def read(self, task: Task, start: int, end: int) -> MicrobatchData:
        """Reads the records at positions ``[start, end)`` of a training task. One thread calls this, not the others'.

        Raises:
            DataError: the data cannot be read.
            UserCodeError: ``feed`` or the user's reader raised.
        """

    def compute(self, step: int, microbatch: int, data: MicrobatchData, epoch: int) -> Contribution:
        """Runs the model forward and backward on one microbatch, at the present parameters.

        Args:
            step: the version that the step begins with; with ``microbatch`` it seeds all that is random.
            microbatch: number within the step: 0, 1, ...
            data: what ``read`` gave; not called where ``fed`` is 0.
            epoch: of the task, for schedules that go by epoch.

        Raises:
            UserCodeError: the user's code raised, or the loss is not finite and the job says that this fails.
        """

    def apply(self, sums: Sequence[Flat], rows: int, epoch: int) -> None:
        """Makes one update, in this worker's turn of a device that it shares: nothing is under way there afterwards.

        Args:
            sums: the sum of each array over the contributions of all microbatches; they must not be written.
            rows: the sum of their rows, more than 0.
            epoch: as for ``compute``.
        """

    def learning_rate(self) -> float | None:
        """The rate of the latest update, of the first group of parameters; None where nobody knows one."""

    def digest(self) -> bytes:
        """At most 16 bytes that are equal for equal states and, in all likelihood, for no others."""

    def state(self) -> ReplicaState:
        """The present state; its arrays stay as they are until the next ``apply``."""

    def load(self, state: ReplicaState) -> None:
        """Takes over a state, of another member or of a checkpoint.

        Raises:
            DataError: it is of another model or optimizer.
        """

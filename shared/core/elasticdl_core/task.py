"""Tasks and leases: what is worked on, why, and by whom."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass, field, replace

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.mixed_order import Span
from elasticdl_core.shard import Shard
from elasticdl_core.shuffling import Reading


class TaskType(enum.StrEnum):
    """Types of tasks."""

    TRAINING = "training"
    EVALUATION = "evaluation"
    PREDICTION = "prediction"
    LIST_SHARDS = "list_shards"
    EVALUATION_SUMMARY = "evaluation_summary"
    EXPORT = "export"


_LETTERS = {
    TaskType.TRAINING: "t",
    TaskType.EVALUATION: "e",
    TaskType.PREDICTION: "p",
    TaskType.LIST_SHARDS: "l",
    TaskType.EVALUATION_SUMMARY: "s",
    TaskType.EXPORT: "x",
}
_TYPES = {letter: kind for kind, letter in _LETTERS.items()}
TASK_PATTERN = rf"^[{''.join(_TYPES)}](:-?[0-9]{{1,18}}){{4}}$"
"""The form of a task's id as a text."""


@dataclass(frozen=True, slots=True, order=True)
class TaskId:
    """Names a task wholly, so that a queue need store nothing else: ``t:<epoch>:<index>:<start>:<end>``.

    Attributes:
        type: what the task is for.
        epoch: which pass over the data (training, prediction); of an evaluation, its number.
        index: position in the plan of that pass, before shuffling.
        start: first record; differs from the plan's when the front part is done already.
        end: one past the last record.
    """

    type: TaskType
    epoch: int
    index: int
    start: int
    end: int

    def __str__(self) -> str:
        return f"{_LETTERS[self.type]}:{self.epoch}:{self.index}:{self.start}:{self.end}"

    @classmethod
    def parse(cls, text: str) -> TaskId:
        """Reads what ``str()`` wrote.

        Raises:
            InvalidInputError: the text is no task id.
        """
        try:
            letter, *numbers = text.split(":")
            epoch, index, start, end = (int(number) for number in numbers)
            return cls(_TYPES[letter], epoch, index, start, end)
        except (ValueError, KeyError):
            raise InvalidInputError(f"{text!r} is not a task id", fix="use the id that the lease gave") from None

    @property
    def records(self) -> int:
        """Number of records that the task covers."""
        return self.end - self.start

    def rest_from(self, position: int) -> TaskId:
        """The part of the task from ``position`` on."""
        return replace(self, start=position)

    def front_until(self, position: int) -> TaskId:
        """The part of the task before ``position``."""
        return replace(self, end=position)


@dataclass(frozen=True, slots=True)
class Task:
    """A shard handed out for one purpose.

    Attributes:
        id: the task's name.
        shard: the records to process.
        model_version: the version to evaluate at; -1 where it does not matter.
        payload: JSON text that the type of task needs (export path, metric states), else empty.
        reading: where the records lie, if they are shuffled: the shard's range is one of positions then.
        fingerprints: what the sources of the records were like when they were listed, where that is known.
    """

    id: TaskId
    shard: Shard
    model_version: int = -1
    payload: str = ""
    reading: Reading | None = None
    fingerprints: Mapping[str, str] = field(default_factory=dict, hash=False)

    def records(self, start: int | None = None, end: int | None = None) -> list[Shard]:
        """The very records at the task's positions ``[start, end)``, as ranges; of the whole task by default."""
        first = self.shard.start if start is None else start
        last = self.shard.end if end is None else end
        return [Shard(*one) for one in self.spans(first, last)]

    def spans(self, start: int, end: int) -> list[Span]:
        """The same of the positions ``[start, end)``, as plain tuples."""
        if self.reading is not None:
            return self.reading.spans(start, end)
        return [(self.shard.name, start, end)] if start < end else []


@dataclass(frozen=True, slots=True)
class LeaseToken:
    """The right to work on a task, unforgeable by accident and never reused.

    Attributes:
        epoch: the master's epoch, owned by Postgres; orders masters.
        counter: counts the leases of that master.
        nonce: 64 random bits as 16 hex digits, so that a store that lost its tail cannot repeat a token.
    """

    epoch: int
    counter: int
    nonce: str

    def __str__(self) -> str:
        return f"{self.epoch}.{self.counter}.{self.nonce}"

    @classmethod
    def parse(cls, text: str) -> LeaseToken:
        """Reads what ``str()`` wrote.

        Raises:
            InvalidInputError: the text is no lease token.
        """
        try:
            epoch, counter, nonce = text.split(".")
            return cls(int(epoch), int(counter), nonce)
        except ValueError:
            raise InvalidInputError(
                f"{text!r} is not a lease token", fix="use the token that came with the task"
            ) from None


def lease_order(token: str) -> tuple[int, int]:
    """The sort key of a group's leases: none, an empty text, comes first."""
    if not token:
        return (0, 0)
    parsed = LeaseToken.parse(token)
    return parsed.epoch, parsed.counter


@dataclass(frozen=True, slots=True)
class Lease:
    """A task in somebody's hands.

    Attributes:
        task: what is worked on.
        owner: the worker's incarnation, e.g. ``worker-3.1``.
        token: proves the right.

    When the right ends is the business of the queue's store, which alone has the clock for it.
    """

    task: TaskId
    owner: str
    token: LeaseToken

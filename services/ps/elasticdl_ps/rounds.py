"""Synchronous mode: which gradients make the next update, agreed on by all PS.

A worker first leaves its gradient with every other PS (*prepare*), then gives the first PS its part, which counts it
(*commit*). The first PS alone decides: when it has counted enough, it fixes the members of the round, applies their
mean and tells the worker. Whoever pulls from the first PS after that hears of the round as well, and has the others
apply the same members before it reads there; who finds PS further apart fetches the closed rounds from the first PS
and passes them on. Applying one twice changes nothing. So an update counts on all PS or on none, and nobody waits for
a worker that is gone: see ``arrivals``.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass

from elasticdl_core.errors import ConflictError, FencedError
from elasticdl_ps.store.merging import Changes
from elasticdl_ps.store.partition import Partition

_HISTORY = 64
STALE = "stale"
"""The reason of a refusal because the gradient is too old."""
HELD = "held"
"""Why a gradient is not counted now: no round may begin. It is to be committed again when one may."""


@dataclass(frozen=True, slots=True)
class Member:
    """One push of one worker."""

    worker: str
    sequence: int


@dataclass(frozen=True, slots=True)
class Round:
    """A closed round.

    Attributes:
        number: the version that it started from; it makes the next one.
        members: the gradients whose mean is applied.
        learning_rates: of each of the optimizer's groups; none for its own.
    """

    number: int
    members: tuple[Member, ...]
    learning_rates: tuple[float, ...]


@dataclass(frozen=True, slots=True)
class PushOutcome:
    """Outcomes of a push or a commit.

    Attributes:
        accepted: whether it counts.
        version: the partition's version after it.
        reason: why it does not count.
        closed: the round that this commit closed.
        replay: whether it had been answered before.
    """

    accepted: bool
    version: int
    reason: str = ""
    closed: Round | None = None
    replay: bool = False


def owner_of(worker: str) -> str:
    """Whose pushes these are: a program with several clients counts those of each by itself, behind a slash."""
    return worker.partition("/")[0]


class Incarnations:
    """Knows the newest incarnation of each worker, so that a push of one that was replaced is refused."""

    def __init__(self) -> None:
        self._newest: dict[str, int] = {}

    def check(self, worker: str) -> str | None:
        """Notes a worker such as ``worker-3.1``; returns the name that it replaces, if any.

        Raises:
            FencedError: a newer incarnation has pushed already.
        """
        name, _, text = owner_of(worker).rpartition(".")
        number = int(text) if text.isdecimal() else 0
        newest = self._newest.get(name)
        if newest is not None and number < newest:
            raise FencedError(f"{worker} was replaced by {name}.{newest}", fix="stop")
        self._newest[name] = number
        return f"{name}.{newest}" if newest is not None and newest != number else None


@dataclass(frozen=True, slots=True)
class _Prepared:
    changes: Changes
    version: int
    learning_rates: tuple[float, ...]


class Rounds:
    """The rounds of one partition. Calls are made one at a time, by the partition's writer.

    Args:
        partition: takes the updates; its mode says how many gradients make a round and how old they may be.
        may_begin: whether a round may begin; it is asked with the first gradient of each.
    """

    def __init__(self, partition: Partition, may_begin: Callable[[], bool] = lambda: True) -> None:
        self._partition = partition
        self._may_begin = may_begin
        self.reset()

    def reset(self) -> None:
        """Begins anew: the partition has another model, or another mode."""
        self._prepared: dict[Member, _Prepared] = {}
        self._present: list[Member] = []
        self._rates: tuple[float, ...] = ()
        self._closed: deque[Round] = deque(maxlen=_HISTORY + self._partition.mode.sync_version_tolerance)
        self._applied: dict[str, int] = {}
        self._answers: dict[str, tuple[int, PushOutcome]] = {}

    @property
    def version(self) -> int:
        """The partition's version."""
        return self._partition.version

    @property
    def missing(self) -> int:
        """The number of gradients that the present round still takes."""
        return self._partition.mode.grads_to_wait - len(self._present)

    @property
    def is_open(self) -> bool:
        """Whether the present round has gradients, which no version has yet."""
        return bool(self._present)

    @property
    def last(self) -> Round | None:
        """The round closed last on this PS, as its decider."""
        return self._closed[-1] if self._closed else None

    def knows(self, member: Member) -> bool:
        """Whether a gradient was taken before: it may be asked about again."""
        sequence, _ = self._answers.get(member.worker, (-1, None))
        return member in self._prepared or max(self._applied.get(member.worker, -1), sequence) >= member.sequence

    def prepare(
        self, member: Member, changes: Changes, version: int, learning_rates: tuple[float, ...] = ()
    ) -> PushOutcome:
        """Keeps a gradient until its round is applied.

        Args:
            member: who sends it.
            changes: the checked gradient.
            version: of the parameters that it was computed on.
            learning_rates: for its round; of each of the optimizer's groups, none for its own.
        """
        now = self._partition.version
        if member in self._prepared or self._applied.get(member.worker, -1) >= member.sequence:
            return PushOutcome(True, now, replay=True)
        if self._is_stale(version):
            return PushOutcome(False, now, STALE)
        held = sum(other.worker == member.worker for other in self._prepared)
        mode = self._partition.mode
        if held > mode.grads_to_wait * (mode.sync_version_tolerance + 2):
            raise ConflictError(
                f"{member.worker} has {held} gradients waiting for their rounds",
                fix="commit each gradient that was pushed",
            )
        self._prepared[member] = _Prepared(changes, version, learning_rates)
        return PushOutcome(True, now)

    def commit(self, member: Member, version: int) -> PushOutcome:
        """Counts a prepared gradient, and closes the round if that makes it full (first PS only).

        Where no round may begin, the gradient stays prepared, and the outcome has the reason ``HELD``.

        Raises:
            ConflictError: the gradient was not prepared here.
        """
        sequence, answer = self._answers.get(member.worker, (-1, None))
        if answer is not None and sequence == member.sequence:
            return PushOutcome(answer.accepted, self._partition.version, answer.reason, answer.closed, replay=True)
        prepared = self._prepared.get(member)
        if self._is_stale(version if prepared is None else prepared.version):
            self._prepared.pop(member, None)
            answer = PushOutcome(False, self._partition.version, STALE)
        elif prepared is None:
            raise ConflictError(
                f"gradient {member.sequence} of {member.worker} was not prepared here", fix="push it again"
            )
        elif not (self._present or self._may_begin()):
            return PushOutcome(False, self._partition.version, HELD)
        else:
            self._present.append(member)
            self._rates = prepared.learning_rates
            full = len(self._present) >= self._partition.mode.grads_to_wait
            closed = self._close() if full else None
            answer = PushOutcome(True, self._partition.version, closed=closed)
        self._answers[member.worker] = (member.sequence, answer)
        return answer

    def flush(self) -> PushOutcome:
        """Closes the present round if it has any gradient; ``closed`` is the last round in either case."""
        if self._present:
            self._close()
        return PushOutcome(True, self._partition.version, closed=self.last)

    def apply(self, round_: Round) -> int:
        """Applies a round that the first PS has closed; one applied before changes nothing. Returns the version.

        Raises:
            ConflictError: an earlier round is missing, or a member's gradient is.
        """
        now = self._partition.version
        if round_.number < now:
            return now
        if round_.number > now:
            raise ConflictError(
                f"round {round_.number} cannot follow version {now}", fix="apply the closed rounds in between first"
            )
        lost = [member for member in round_.members if member not in self._prepared]
        if lost:
            raise ConflictError(
                f"the gradient {lost[0].sequence} of {lost[0].worker} for round {round_.number} is not here",
                fix="restore all parameter servers from the last checkpoint",
            )
        return self._apply(round_)

    def closed_since(self, version: int) -> list[Round]:
        """The closed rounds from a version on, oldest first.

        Raises:
            ConflictError: they are no longer known.
        """
        rounds = [round_ for round_ in self._closed if round_.number >= version]
        if len(rounds) != max(0, self._partition.version - version):
            raise ConflictError(
                f"the rounds since version {version} are not known any more",
                fix="restore all parameter servers from the last checkpoint",
            )
        return rounds

    def forget(self, worker: str) -> None:
        """Drops what a replaced worker left, except members of the present round."""
        self._applied = {name: last for name, last in self._applied.items() if owner_of(name) != worker}
        self._answers = {name: last for name, last in self._answers.items() if owner_of(name) != worker}

    def _close(self) -> Round:
        round_ = Round(self._partition.version, tuple(self._present), self._rates)
        self._present = []
        self._apply(round_)
        self._closed.append(round_)
        return round_

    def _apply(self, round_: Round) -> int:
        prepared = [self._prepared.pop(member) for member in round_.members]
        version = self._partition.apply([part.changes for part in prepared], round_.learning_rates)
        for member in round_.members:
            self._applied[member.worker] = max(self._applied.get(member.worker, -1), member.sequence)
        keep = set(self._present)
        # What is too old now can be no member of a later round.
        old = [m for m, part in self._prepared.items() if self._is_stale(part.version) and m not in keep]
        for member in old:
            del self._prepared[member]
        return version

    def _is_stale(self, version: int) -> bool:
        return version < self._partition.version - self._partition.mode.sync_version_tolerance

"""Handling of a push: checked for its sender and its age, it is applied, kept for a round, or refused."""

from __future__ import annotations

import math
from collections.abc import Callable
from functools import partial

from elasticdl_core.errors import PermissionDeniedError
from elasticdl_core.ports.launcher import Role
from elasticdl_ps.pushes import PushRequest, check_learning_rates, read_changes
from elasticdl_ps.rounds import HELD, Incarnations, Member, PushOutcome, Round, Rounds, owner_of
from elasticdl_ps.store.partition import Partition
from elasticdl_runtime.failpoints import failpoint
from elasticdl_runtime.telemetry.spans import traced
from elasticdl_runtime.tokens import Claims

LIMIT = "limit"
"""Why a push is refused after the job's last update."""


class Updates:
    """Takes pushes, one at a time.

    Args:
        partition: the parameters.
        first: whether this is the first PS, which decides on rounds.
        may_begin: whether a round may begin.

    Attributes:
        rounds: of synchronous mode.
        made: how many updates were made.
        rejected: how many pushes were refused.
    """

    def __init__(self, partition: Partition, *, first: bool, may_begin: Callable[[], bool] = lambda: True) -> None:
        self.rounds = Rounds(partition, may_begin)
        self.made = 0
        self.rejected = 0
        self._partition = partition
        self._first = first
        self._incarnations = Incarnations()
        self._answers: dict[str, tuple[int, PushOutcome]] = {}
        self._gradient_cost = math.inf

    def reset(self) -> None:
        """Begins anew: the partition has another model, or other values."""
        self.rounds.reset()
        self._answers = {}

    def take(self, push: PushRequest, caller: Claims) -> PushOutcome:
        """Takes a push; one that came before gets the answer of that time.

        An outcome with the reason ``rounds.HELD`` is none: the push is to be taken again when rounds may begin.

        Raises:
            PermissionDeniedError: a worker pushes in another's name.
            FencedError: the worker was replaced.
            ConflictError: there is no model, or too many gradients wait for their rounds.
            InvalidInputError: the gradients cannot be applied.
        """
        partition = self._partition
        _require_own(push.worker, caller)
        check_learning_rates(push.learning_rates)
        self._note(push.worker)
        if not partition.declared or (push.generation and push.generation != partition.generation):
            # Whoever pulls again hears that the model is to be declared, if it is.
            self.rejected += 1
            return PushOutcome(False, partition.version, "generation")
        partition.require_initialised()
        partition.optimizer.check_learning_rates(push.learning_rates)
        with traced("take a push", "ps", partial(_told, push), version=partition.version):
            return self._apply_now(push) if partition.mode.use_async else self._count(push)

    def flush(self) -> PushOutcome:
        """Closes the present round with what it has."""
        before = self._partition.version
        answer = self.rounds.flush()
        self.made += self._partition.version - before
        return answer

    def apply(self, round_: Round) -> int:
        """Applies a round that the first PS has closed; returns the version.

        Raises:
            ConflictError: an earlier round is missing, or a member's gradient is.
            InvalidInputError: its learning rates are not those of the optimizer's groups.
        """
        self._partition.optimizer.check_learning_rates(round_.learning_rates)
        before = self._partition.version
        with traced("apply a round", "ps", version=before, pushes=len(round_.members)):
            version = self.rounds.apply(round_)
        self.made += version - before
        return version

    def estimate_cost(self, push: PushRequest) -> float:
        """About how many bytes a push makes this PS touch, with the round that it may close."""
        cost = push.estimate_cost()
        mode = self._partition.mode
        if mode.use_async:
            return cost
        self._gradient_cost = cost
        return cost * mode.grads_to_wait if self._first and self.rounds.missing <= 1 else cost

    def estimate_round_cost(self, round_: Round) -> float:
        """The same of a round, judging by the last push."""
        return len(round_.members) * self._gradient_cost

    def _apply_now(self, push: PushRequest) -> PushOutcome:
        partition, rates = self._partition, push.learning_rates
        sequence, last = self._answers.get(push.worker, (-1, None))
        if last is not None and push.sequence <= sequence:
            return PushOutcome(last.accepted, partition.version, last.reason, replay=True)
        if self._at_limit:
            self.rejected += 1
            return PushOutcome(False, partition.version, LIMIT)
        changes = read_changes(partition, push)
        staleness = partition.version - push.version
        if partition.mode.lr_staleness_modulation and staleness > 1:
            rates = tuple(rate / staleness for rate in rates or partition.optimizer.learning_rates)
        failpoint("ps.before_apply")
        answer = PushOutcome(True, partition.apply([changes], rates))
        failpoint("ps.after_apply")
        self.made += 1
        self._answers[push.worker] = (push.sequence, answer)
        return answer

    def _count(self, push: PushRequest) -> PushOutcome:
        before = self._partition.version
        member = Member(push.worker, push.sequence)
        if self._at_limit and not self.rounds.knows(member):
            self.rejected += 1
            return PushOutcome(False, before, LIMIT)
        answer = self.rounds.prepare(member, read_changes(self._partition, push), push.version, push.learning_rates)
        if answer.accepted and self._first:
            answer = self.rounds.commit(member, push.version)
            self.made += self._partition.version - before
        self.rejected += not (answer.accepted or answer.reason == HELD)
        return answer

    @property
    def _at_limit(self) -> bool:
        """Whether the last update was made. The first PS decides for all: they are asked after it."""
        stop_at = self._partition.mode.stop_at
        return self._first and 0 < stop_at <= self._partition.version

    def _note(self, worker: str) -> None:
        replaced = self._incarnations.check(worker)
        if replaced is not None:
            self._answers = {name: last for name, last in self._answers.items() if owner_of(name) != replaced}
            self.rounds.forget(replaced)


def _told(push: PushRequest) -> dict[str, str | int | float]:
    """The attributes of a push in a trace."""
    told: dict[str, str | int | float] = {"worker": push.worker, "records": push.records, "based on": push.version}
    return told if push.task is None else {**told, "task": f"{push.task[0]}.{push.task[1]}"}


def _require_own(worker: str, caller: Claims) -> None:
    """A worker pushes in its own name only."""
    if caller.role is Role.WORKER and owner_of(worker) != caller.owner:
        raise PermissionDeniedError(
            f"{caller.owner} may not push as {worker!r}", fix="push under the token's own name"
        )

"""What becomes of a push: checked for its sender and its age, it is applied, kept for a round, or refused."""

from __future__ import annotations

import math
from dataclasses import replace

from elasticdl_core.errors import InvalidInputError, PermissionDeniedError
from elasticdl_core.ports.launcher import Role
from elasticdl_ps import wire
from elasticdl_ps.forms import Forms, PushMessage
from elasticdl_ps.rounds import Incarnations, Member, PushOutcome, Round, Rounds
from elasticdl_ps.store.merging import Changes
from elasticdl_ps.store.partition import Partition
from elasticdl_runtime.failpoints import failpoint
from elasticdl_runtime.tokens import Claims

LIMIT = "limit"
"""Why a push is refused after the job's last update."""


class Updates:
    """Takes pushes, one at a time.

    Args:
        partition: the parameters.
        forms: what pushes name.
        first: whether this is the first PS, which decides on rounds.

    Attributes:
        rounds: of synchronous mode.
        made: how many updates were made.
        rejected: how many pushes were refused.
    """

    def __init__(self, partition: Partition, forms: Forms, *, first: bool) -> None:
        self.rounds = Rounds(partition)
        self.made = 0
        self.rejected = 0
        self._partition = partition
        self._forms = forms
        self._first = first
        self._incarnations = Incarnations()
        self._answers: dict[str, tuple[int, PushOutcome]] = {}
        self._gradient_cost = math.inf

    def reset(self) -> None:
        """Begins anew: the partition has another model, or other values."""
        self.rounds.reset()
        self._answers = {}

    def take(self, push: PushMessage, caller: Claims) -> PushOutcome:
        """Takes a push; one that came before gets the answer of that time.

        Raises:
            PermissionDeniedError: a worker pushes in another's name.
            FencedError: the worker was replaced.
            ConflictError: there is no model, or too many gradients wait for their rounds.
            InvalidInputError: the gradients cannot be applied.
        """
        partition, request = self._partition, push.request
        _require_own(request.worker, caller)
        rate = wire.read_learning_rate(request)
        partition.optimizer.check_learning_rate(rate)
        self._note(request.worker)
        if request.generation and request.generation != partition.generation:
            self.rejected += 1
            return PushOutcome(False, partition.version, "generation")
        partition.require_initialised()
        return self._apply_now(push, rate) if partition.mode.use_async else self._count(push, rate)

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
        """
        before = self._partition.version
        version = self.rounds.apply(round_)
        self.made += version - before
        return version

    def cost(self, push: PushMessage) -> float:
        """About how many bytes a push makes this PS touch, with the round that it may close; see ``PushMessage``."""
        cost = push.cost()
        mode = self._partition.mode
        if mode.use_async:
            return cost
        self._gradient_cost = cost
        return cost * mode.grads_to_wait if self._first and self.rounds.missing <= 1 else cost

    def round_cost(self, round_: Round) -> float:
        """The same of a round, judging by the last push."""
        return len(round_.members) * self._gradient_cost

    def _apply_now(self, push: PushMessage, rate: float | None) -> PushOutcome:
        partition, request = self._partition, push.request
        sequence, last = self._answers.get(request.worker, (-1, None))
        if last is not None and request.sequence <= sequence:
            return PushOutcome(last.accepted, partition.version, last.reason, replay=True)
        if self._at_limit:
            self.rejected += 1
            return PushOutcome(False, partition.version, LIMIT)
        changes = self._changes(push)
        staleness = partition.version - request.version
        if partition.mode.lr_staleness_modulation and staleness > 1:
            rate = (partition.optimizer.learning_rate if rate is None else rate) / staleness
        failpoint("ps.before_apply")
        answer = PushOutcome(True, partition.apply([changes], rate))
        failpoint("ps.after_apply")
        self.made += 1
        self._answers[request.worker] = (request.sequence, answer)
        return answer

    def _count(self, push: PushMessage, rate: float | None) -> PushOutcome:
        request, before = push.request, self._partition.version
        member = Member(request.worker, request.sequence)
        if self._at_limit and not self.rounds.knows(member):
            self.rejected += 1
            return PushOutcome(False, before, LIMIT)
        answer = self.rounds.prepare(member, self._changes(push), request.version, rate)
        if answer.accepted and self._first:
            answer = self.rounds.commit(member, request.version)
            self.made += self._partition.version - before
        self.rejected += not answer.accepted
        return answer

    @property
    def _at_limit(self) -> bool:
        """Whether the last update was made. The first PS decides for all: they are asked after it."""
        stop_at = self._partition.mode.stop_at
        return self._first and 0 < stop_at <= self._partition.version

    def _changes(self, push: PushMessage) -> Changes:
        form = push.form or self._forms.learn_push(push.request, push.header)
        records = push.request.records
        if records < 1 and not self._partition.mode.use_async:
            raise InvalidInputError(
                f"a gradient of {records} records cannot count in a round", fix="say how many records it is of"
            )
        changes = wire.read_changes(self._partition, form, push.frame, push.buffers, records)
        changes = replace(changes, steps=max(1, push.request.steps))
        if not push.request.HasField("task"):
            return changes
        return replace(changes, task=(push.request.task.round, push.request.task.index))

    def _note(self, worker: str) -> None:
        replaced = self._incarnations.check(worker)
        if replaced is not None:
            self._answers.pop(replaced, None)
            self.rounds.forget(replaced)


def _require_own(worker: str, caller: Claims) -> None:
    """A worker pushes in its own name only."""
    if caller.role is Role.WORKER and worker != caller.owner:
        raise PermissionDeniedError(
            f"{caller.owner} may not push as {worker!r}", fix="push under the token's own name"
        )

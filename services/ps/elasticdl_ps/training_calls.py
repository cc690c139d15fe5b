"""The calls of a training step: pulls and pushes, done by the threads, or by the event loop while those are idle."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable
from dataclasses import dataclass, replace

from elasticdl_core.errors import ConflictError, InvalidInputError
from elasticdl_core.ports.launcher import Role
from elasticdl_ps import codec
from elasticdl_ps.pulls import PullAnswer, PullRequest, describe_state, read_parameters
from elasticdl_ps.pushes import PushRequest
from elasticdl_ps.round_waiter import LONGEST_WAIT_S, RoundHold, RoundWaiter
from elasticdl_ps.rounds import HELD, PushOutcome, Round
from elasticdl_ps.store.partition import Partition
from elasticdl_ps.threads import Threads
from elasticdl_ps.updates import Updates
from elasticdl_runtime.rpc.framing import Frame, FrameBytes
from elasticdl_runtime.telemetry.spans import traced
from elasticdl_runtime.tokens import Claims

_SHORT = 4 << 20
"""The cost up to which the event loop does pushes and pulls itself: about a millisecond."""
_LONGEST_HOLD_S = 600.0
AnswerFrame = Frame | bytes
"""The frame that answers a call; a large one is encoded by the thread that made it."""


@dataclass(frozen=True, slots=True)
class HeldRounds:
    """The way in which rounds are held.

    Attributes:
        version: stays meanwhile.
        open: whether the present round has gradients, which are not in the version.
        expected: whether those that it misses were still to be expected when the time for one call was over.
    """

    version: int
    open: bool
    expected: bool


class TrainingCalls:
    """Answers pulls and pushes of workers: with a frame, or with an awaitable of one.

    Args:
        partition: the parameters.
        index: the number of this PS.
        threads: do what is not short.
    """

    def __init__(self, partition: Partition, index: int, threads: Threads) -> None:
        self._partition = partition
        self._index = index
        self._threads = threads
        self._hold = RoundHold()
        self.updates = Updates(partition, first=index == 0, may_begin=self._hold.may_begin)
        self._waiter = RoundWaiter(self.updates.rounds)
        threads.written = self._waiter.wake

    def reset(self) -> None:
        """Begins anew: the partition has another model, another mode, or other values."""
        self.updates.reset()

    def stop(self) -> None:
        """Lets nobody wait for others any more."""
        self._hold.end()
        self._waiter.stop()

    async def hold_rounds(self, seconds: float, *, between_rounds: bool = False) -> HeldRounds:
        """Lets no round end for some seconds.

        Args:
            seconds: after so many it ends by itself.
            between_rounds: let the present round end, as long as the gradients that it misses are to be expected,
                and no other one begin.

        Raises:
            InvalidInputError: there are no rounds, this PS does not decide on them, or the time makes no sense.
        """
        self.require_first()
        if self._partition.mode.use_async or not 0 < seconds <= _LONGEST_HOLD_S:
            raise InvalidInputError(
                f"rounds cannot be held for {seconds} s",
                fix=f"in synchronous mode, hold them up to {_LONGEST_HOLD_S:g} s",
            )
        expected = False
        if between_rounds:
            self._hold.begin(seconds + LONGEST_WAIT_S, between_rounds=True)
            expected = await self._waiter.wait_for_gradients()
        self._hold.begin(seconds, between_rounds=between_rounds)
        # What has come before this is done first.
        return await self._threads.write(
            lambda: HeldRounds(self._partition.version, self.updates.rounds.is_open, expected)
        )

    def release_rounds(self) -> None:
        """Lets rounds end again."""
        self._hold.end()

    def pull(self, frame: FrameBytes, caller: Claims) -> AnswerFrame | Awaitable[AnswerFrame]:
        """Reads rows and changed dense parameters."""
        pull = codec.read_pull(frame)
        return self._pull_soon(pull) if self._partition.mode.use_async else self._pull_in_round(pull, caller)

    def push(self, frame: FrameBytes, caller: Claims) -> AnswerFrame | Awaitable[AnswerFrame]:
        """Applies a gradient (asynchronous mode), or keeps it for a round or counts it (synchronous mode)."""
        push = codec.read_push(frame)
        if not self._hold.active and self._is_free(self.updates.estimate_cost(push)):
            return self._answer_push(self.updates.take(push, caller), caller)
        return self._push_later(push, caller)

    def push_pull(self, frame: FrameBytes, caller: Claims) -> AnswerFrame | Awaitable[AnswerFrame]:
        """A push and a pull, in one message and one thread."""
        push, pull = codec.read_push_pull(frame)
        if pull.pin:
            raise InvalidInputError(
                "a pull that goes along with a push has no pin", fix="send PushGradients, then Pull"
            )
        if not self._partition.mode.use_async:
            return self._push_pull_in_round(push, pull, caller)
        if self._is_free(push.estimate_cost() + pull.estimate_cost(self._partition)):
            return self._push_and_read(push, pull, caller)
        return self._threads.write(lambda: _encoded_if_large(self._push_and_read(push, pull, caller)))

    async def take(self, push: PushRequest, caller: Claims) -> PushOutcome:
        """Takes a push as soon as rounds are not held. Raises what ``Updates.take`` does."""
        await self._hold.wait_to_push()
        while True:
            if self._is_free(self.updates.estimate_cost(push)):
                outcome = self.updates.take(push, caller)
            else:
                outcome = await self._threads.write(lambda: self.updates.take(push, caller))
            if outcome.reason != HELD:
                return outcome
            await self._hold.wait()

    async def prepare_pull(self, pull: PullRequest, caller: Claims) -> bool:
        """Brings this PS to the version that a pull in synchronous mode is for; False if it is to be asked again."""
        if self._partition.mode.use_async or pull.pin:
            return True
        # A PS that lost a gradient of the round was replaced: the master restores it.
        if pull.apply is not None and pull.apply.number == self._partition.version:
            with contextlib.suppress(ConflictError):
                await self.apply_round(pull.apply)
        if self._index == 0 and caller.role is Role.WORKER:
            if await self._waiter.wait(caller.owner, pull.wait_for):
                return False
            self._waiter.note_pull(caller.owner)
        return True

    async def apply_round(self, round_: Round) -> int:
        """Applies a round that the first PS has closed; returns the version. Raises what ``Updates.apply`` does."""
        if self._threads.idle and self.updates.estimate_round_cost(round_) <= _SHORT:
            return self.updates.apply(round_)
        return await self._threads.write(lambda: self.updates.apply(round_))

    def answer_pending(self) -> PullAnswer:
        """The answer to a pull that is to be asked again."""
        return describe_state(self._partition, pending=True)

    def require_first(self) -> None:
        """Refuses what only the first PS decides.

        Raises:
            InvalidInputError: this is another one.
        """
        if self._index != 0:
            raise InvalidInputError(
                f"PS {self._index} does not decide on rounds", fix="send this to the first parameter server"
            )

    async def _pull_in_round(self, pull: PullRequest, caller: Claims) -> AnswerFrame:
        if not await self.prepare_pull(pull, caller):
            return codec.pull_frame(self.answer_pending())
        answer = self._pull_soon(pull)
        return answer if isinstance(answer, Frame | bytes) else await answer

    def _pull_soon(self, pull: PullRequest) -> AnswerFrame | Awaitable[AnswerFrame]:
        if self._is_free(pull.estimate_cost(self._partition)):
            return codec.pull_frame(self._read(pull))
        return self._threads.read(lambda: _encoded_if_large(codec.pull_frame(self._read(pull))))

    async def _push_later(self, push: PushRequest, caller: Claims) -> AnswerFrame:
        return self._answer_push(await self.take(push, caller), caller)

    def _push_and_read(self, push: PushRequest, pull: PullRequest, caller: Claims) -> Frame:
        return self._answer_both(self.updates.take(push, caller), pull)

    def _answer_both(self, outcome: PushOutcome, pull: PullRequest) -> Frame:
        """Answers a push that was taken, and the pull after it. Whether that fails or not, the push is what it is."""
        try:
            answer: PullAnswer | Exception = self._read(pull)
        except Exception as error:
            answer = error
        return codec.push_pull_frame(outcome, answer)

    async def _push_pull_in_round(self, push: PushRequest, pull: PullRequest, caller: Claims) -> AnswerFrame:
        """In synchronous mode a pull comes after the end of the round that the push counts for."""
        self.require_first()
        outcome = await self.take(push, caller)
        self._waiter.note_push(caller.owner)
        if not outcome.accepted:
            return codec.push_pull_frame(outcome, None)
        try:
            ready = await self.prepare_pull(pull, caller)
        except Exception as error:
            return codec.push_pull_frame(outcome, error)
        if not ready:
            return codec.push_pull_frame(outcome, self.answer_pending())
        if self._is_free(pull.estimate_cost(self._partition)):
            return self._answer_both(outcome, pull)
        return await self._threads.read(lambda: _encoded_if_large(self._answer_both(outcome, pull)))

    def _answer_push(self, outcome: PushOutcome, caller: Claims) -> Frame:
        """The answer to a push; in synchronous mode others may be waiting for what it did."""
        if not self._partition.mode.use_async and self._index == 0:
            self._waiter.note_push(caller.owner)
        return codec.push_frame(outcome)

    def _read(self, pull: PullRequest) -> PullAnswer:
        with traced("read parameters", "ps", version=self._partition.version):
            if self._partition.mode.use_async or pull.pin:
                return read_parameters(self._partition, pull)
            # In synchronous mode a pull sees one version, not the half of an update.
            with self._partition.lock():
                return replace(read_parameters(self._partition, pull), round=self.updates.rounds.last)

    def _is_free(self, cost: float) -> bool:
        """Whether the event loop may do something of this cost itself: sooner than a thread would get it.

        Row policies may have more to do than a message says, and so they are left to threads.
        """
        return cost <= _SHORT and self._threads.idle and not self._partition.mode.rows.active


def _encoded_if_large(frame: Frame) -> AnswerFrame:
    """Joins a large frame in the calling thread: the event loop has others to serve."""
    return frame.encode() if frame.nbytes > _SHORT else frame

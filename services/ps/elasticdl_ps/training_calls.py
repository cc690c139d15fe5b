"""The calls of a training step: pulls and pushes, done by the threads, or by the event loop while those are idle."""

from __future__ import annotations

import contextlib
from collections.abc import Awaitable

from elasticdl_core.errors import ConflictError, InvalidInputError
from elasticdl_core.ports.launcher import Role
from elasticdl_proto.v1 import ps_pb2
from elasticdl_ps import wire
from elasticdl_ps.forms import Forms, PullMessage, PushMessage
from elasticdl_ps.round_waiter import RoundHold, RoundWaiter
from elasticdl_ps.rounds import PushOutcome, Round
from elasticdl_ps.store.partition import Partition
from elasticdl_ps.threads import Threads
from elasticdl_ps.updates import Updates
from elasticdl_runtime.tokens import Claims

_SHORT = 4 << 20
"""The cost up to which the event loop does pushes and pulls itself: about a millisecond."""
_LONGEST_HOLD_S = 60.0
Response = ps_pb2.PullResponse | ps_pb2.PushPullResponse


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
        self._forms = Forms(partition)
        self.updates = Updates(partition, self._forms, first=index == 0)
        self._waiter = RoundWaiter(self.updates.rounds)
        self._hold = RoundHold()

    def reset(self) -> None:
        """Begins anew: the partition has another model, another mode, or other values."""
        self.updates.reset()
        self._forms.forget()

    def forget_forms(self) -> None:
        """Lets go of what names stood for."""
        self._forms.forget()

    def look(self) -> None:
        """Has workers that wait for the end of a round look whether it has come."""
        self._waiter.look()

    def stop(self) -> None:
        """Lets nobody wait for others any more."""
        self._hold.end()
        self._waiter.stop()

    async def hold(self, seconds: float) -> int:
        """Lets no round end for some seconds; returns the version that stays meanwhile.

        Raises:
            InvalidInputError: there are no rounds, this PS does not decide on them, or the time makes no sense.
        """
        self.require_first()
        if self._partition.mode.use_async or not 0 < seconds <= _LONGEST_HOLD_S:
            raise InvalidInputError(
                f"rounds cannot be held for {seconds} s",
                fix=f"in synchronous mode, hold them up to {_LONGEST_HOLD_S:g} s",
            )
        self._hold.begin(seconds)
        # What has come before this is done first.
        return await self._threads.write(lambda: self._partition.version)

    def release(self) -> None:
        """Lets rounds end again."""
        self._hold.end()

    def pull(self, frame: bytes, caller: Claims) -> bytes | Awaitable[bytes]:
        """Reads rows and changed dense parameters."""
        if not self._partition.mode.use_async:
            return self._pull_in_round(frame, caller)
        return self._pull_soon(frame)

    def push(self, frame: bytes, caller: Claims) -> bytes | Awaitable[bytes]:
        """Applies a gradient (asynchronous mode), or keeps it for a round or counts it (synchronous mode)."""
        if self._is_free(frame) and not self._hold.active:
            push = self._forms.read_push(frame)
            if self.updates.cost(push) <= _SHORT:
                return self._answered(self.updates.take(push, caller), caller)
        return self._push_later(frame, caller)

    def push_pull(self, frame: bytes, caller: Claims) -> bytes | Awaitable[bytes]:
        """A push and a pull, in one message and one thread."""
        if not self._partition.mode.use_async:
            return self._push_pull_in_round(frame, caller)
        if self._is_free(frame):
            push, pull = self._forms.read_push_pull(frame)
            if push.cost() + pull.cost(self._partition) <= _SHORT:
                return self._push_pull(push, pull, caller)
        return self._threads.write(lambda: self._push_pull(*self._forms.read_push_pull(frame), caller))

    def pull_rows(self, frame: bytes) -> Awaitable[bytes]:
        """Reads rows only."""

        def work() -> bytes:
            pull = self._forms.read_pull(frame)
            pull.request.dense_version = wire.NO_DENSE
            return self._pull(pull, ps_pb2.PullResponse())

        return self._threads.read(work)

    async def is_due(self, request: ps_pb2.PullRequest, caller: Claims) -> bool:
        """Brings this PS to the version that a pull in synchronous mode is for; False if it is to be asked again."""
        if self._partition.mode.use_async or request.pin:
            return True
        if request.HasField("apply"):
            round_ = wire.round_from_message(request.apply)
            if round_.number == self._partition.version:
                # A PS that lost a gradient of the round was replaced: the master restores it.
                with contextlib.suppress(ConflictError):
                    await self.apply(round_)
        if self._index == 0 and caller.role is Role.WORKER:
            if await self._waiter.wait(caller.owner, request.wait_for):
                return False
            self._waiter.pulled(caller.owner)
        return True

    async def apply(self, round_: Round) -> int:
        """Applies a round that the first PS has closed; returns the version. Raises what ``Updates.apply`` does."""
        if self._threads.idle and self.updates.round_cost(round_) <= _SHORT:
            return self.updates.apply(round_)
        return await self._threads.write(lambda: self.updates.apply(round_))

    def pending(self) -> bytes:
        """The answer to a pull that is to be asked again."""
        return wire.header_frame(self._pending(ps_pb2.PullResponse()))

    def require_first(self) -> None:
        """Refuses what only the first PS decides.

        Raises:
            InvalidInputError: this is another one.
        """
        if self._index != 0:
            raise InvalidInputError(
                f"PS {self._index} does not decide on rounds", fix="send this to the first parameter server"
            )

    async def _pull_in_round(self, frame: bytes, caller: Claims) -> bytes:
        if not await self.is_due(self._forms.read_pull(frame).request, caller):
            return self.pending()
        answer = self._pull_soon(frame)
        return answer if isinstance(answer, bytes) else await answer

    def _pull_soon(self, frame: bytes) -> bytes | Awaitable[bytes]:
        if self._is_free(frame):
            pull = self._forms.read_pull(frame)
            if pull.cost(self._partition) <= _SHORT:
                return self._pull(pull, ps_pb2.PullResponse())
        return self._threads.read(lambda: self._pull(self._forms.read_pull(frame), ps_pb2.PullResponse()))

    async def _push_later(self, frame: bytes, caller: Claims) -> bytes:
        await self._hold.wait()
        answer = await self._threads.write(lambda: self.updates.take(self._forms.read_push(frame), caller))
        return self._answered(answer, caller)

    def _push_pull(self, push: PushMessage, pull: PullMessage, caller: Claims) -> bytes:
        _refuse_pin(pull)
        answer = self.updates.take(push, caller)
        return self._answer(pull, ps_pb2.PushPullResponse(push=wire.answer_message(answer)))

    async def _push_pull_in_round(self, frame: bytes, caller: Claims) -> bytes:
        """In synchronous mode a pull comes after the end of the round that the push counts for."""
        self.require_first()
        await self._hold.wait()
        push, pull = self._forms.read_push_pull(frame)
        _refuse_pin(pull)
        if self._is_free(frame) and self.updates.cost(push) <= _SHORT:
            answer = self.updates.take(push, caller)
        else:
            answer = await self._threads.write(
                lambda: self.updates.take(self._forms.read_push_pull(frame)[0], caller)
            )
        response = ps_pb2.PushPullResponse(push=wire.answer_message(answer))
        self._waiter.pushed(caller.owner)
        if not answer.accepted:
            return wire.header_frame(response)
        if not await self.is_due(pull.request, caller):
            self._pending(response.pull)
            return wire.header_frame(response)
        # What names stand for may have changed while this waited.
        if self._is_free(frame):
            _, pull = self._forms.read_push_pull(frame)
            if pull.cost(self._partition) <= _SHORT:
                return self._pull(pull, response)
        return await self._threads.read(lambda: self._pull(self._forms.read_push_pull(frame)[1], response))

    def _answered(self, answer: PushOutcome, caller: Claims) -> bytes:
        """The frame of an answer to a push; in synchronous mode others may be waiting for what it did."""
        if not self._partition.mode.use_async and self._index == 0:
            self._waiter.pushed(caller.owner)
        return wire.header_frame(wire.answer_message(answer))

    def _pending(self, response: ps_pb2.PullResponse) -> ps_pb2.PullResponse:
        partition = self._partition
        response.version, response.generation = partition.version, partition.generation
        response.initialized, response.pending = partition.initialised, True
        return response

    def _pull(self, pull: PullMessage, answer: Response) -> bytes:
        if self._partition.mode.use_async or pull.request.pin:
            return self._answer(pull, answer)
        # In synchronous mode a pull sees one version, not the half of an update.
        with self._partition.lock():
            if self.updates.rounds.last is not None:
                response = answer if isinstance(answer, ps_pb2.PullResponse) else answer.pull
                response.round.CopyFrom(wire.round_to_message(self.updates.rounds.last))
            return self._answer(pull, answer)

    def _answer(self, pull: PullMessage, answer: Response) -> bytes:
        response = answer if isinstance(answer, ps_pb2.PullResponse) else answer.pull
        wire.begin_answer(self._partition, pull.request, response)
        if not self._partition.initialised:
            return wire.header_frame(answer)
        form = pull.form or self._forms.learn_pull(pull.request, pull.header)
        return wire.pull_frame(self._partition, pull.request, form, pull.buffers, answer)

    def _is_free(self, frame: bytes) -> bool:
        """Whether the event loop may do a push or a pull itself, if that is short: sooner than a thread would get it.

        Row policies may have more to do than a message says, and so they are left to threads.
        """
        return self._threads.idle and len(frame) <= _SHORT and not self._partition.mode.rows.active


def _refuse_pin(pull: PullMessage) -> None:
    if pull.request.pin:
        raise InvalidInputError("a pull that goes along with a push has no pin", fix="send PushGradients, then Pull")

"""Synchronous training: the gradients of several workers make one update, on all parameter servers alike."""

from __future__ import annotations

from elasticdl_core.errors import ElasticDLError
from elasticdl_core.model import UpdateMode
from elasticdl_worker.parameters.codec import PullReply, PushReply, push_pull_frame, read_push_pull_reply
from elasticdl_worker.parameters.group import Ids, ServerGroup, WantedRows
from elasticdl_worker.parameters.partial_pull import PartialPull
from elasticdl_worker.parameters.pulls import PullMoment
from elasticdl_worker.parameters.rounds import follow, pass_on, prepare, pull_of_round
from elasticdl_worker.parameters.types import LIMIT, Gradients, PulledParameters, PullOutcome, PushResult, Rates
from elasticdl_worker.parameters.waiting import outcome_of


class SynchronousMode:
    """Pulls and pushes of synchronous training.

    All PS keep the gradients, and the first PS counts them for the present round, or refuses them as stale. The next
    pull then waits for the end of the round, while enough other workers are on the way with gradients for it.

    Args:
        group: the parameter servers.
        mode: how updates are made.
    """

    def __init__(self, group: ServerGroup, mode: UpdateMode) -> None:
        self._group = group
        self._tolerance = mode.sync_version_tolerance
        self._wait_for = 0

    def forget(self) -> None:
        """Forgets what is known of the PS: some were replaced. Nothing is kept here."""

    async def pull(self, ids: Ids, *, dense: bool) -> PulledParameters:
        """Reads rows and changed dense parameters, all of one version."""
        group = self._group
        wanted = group.cut(ids)
        pull = group.puller_of(wanted, dense=dense)
        parts = await pull_of_round(group.servers, pull, self._wait_for, group.patience_s)
        return group.assemble(parts, wanted, dense=dense)

    async def push(self, gradients: Gradients, version: int, rates: Rates) -> PushResult:
        """Has gradients counted for the present round."""
        group = self._group
        async with group.pushing:
            pushes = group.build_pushes(gradients, version, rates)
            reply = await prepare(group.servers, pushes, group.push_to)
            reply = reply or await group.push_to(group.servers[0], pushes[0])
            if reply.closed is not None:
                # The gradient counts, whether the others hear of it now or with the next pull.
                await outcome_of(pass_on(group.servers, reply.closed))
            return self._note(reply, version)

    async def push_pull(
        self, gradients: Gradients, ids: Ids, version: int, rates: Rates, *, dense: bool
    ) -> tuple[PushResult, PullOutcome]:
        """A push and the pull after it, to the first PS in one message; nothing is pulled if the push is refused."""
        group = self._group
        if not group.fits_one_message(gradients, ids, dense=dense):
            result = await self.push(gradients, version, rates)
            return result, None if result.reason == LIMIT else await outcome_of(self.pull(ids, dense=dense))
        servers, wanted = group.servers, group.cut(ids)
        first: PullReply | ElasticDLError | None = None
        async with group.pushing:
            pushes = group.build_pushes(gradients, version, rates)
            reply = await prepare(servers, pushes, group.push_to)
            if reply is None:
                moment = PullMoment(wait_for=self._version_after(version))
                frame = push_pull_frame(pushes[0], group.pull_along(wanted, 0, moment, dense=dense))
                expected = servers[0].dense_bytes + group.placement.rows_bytes(wanted.parts[0])
                reply, first = read_push_pull_reply(await servers[0].call("PushPull", frame, answer_bytes=expected))
            result = self._note(reply, version)
        if not result.accepted:
            return result, None
        assert first is not None
        return result, await outcome_of(self._pulled(first, wanted, dense))

    async def _pulled(self, reply: PullReply | ElasticDLError, wanted: WantedRows, dense: bool) -> PulledParameters:
        """The answers of all PS to a pull of which the first has answered its part, along with a push."""
        if isinstance(reply, ElasticDLError):
            raise reply
        group, first = self._group, PartialPull()
        first.add(reply, wanted.parts[0])
        pull = group.puller_of(wanted, dense=dense)
        if first.pending or not first.initialised:
            parts = await pull_of_round(group.servers, pull, self._wait_for, group.patience_s)
        else:
            parts = await follow(group.servers, first, pull, group.patience_s)
        return group.assemble(parts, wanted, dense=dense)

    def _version_after(self, version: int) -> int:
        """The version to wait for after a gradient of a version counts; 0 where older ones may be used as well."""
        return 0 if self._tolerance else version + 1

    def _note(self, reply: PushReply, version: int) -> PushResult:
        """Returns the result of a push; notes what the next pull is to wait for."""
        self._group.answered = self._group.sequence
        self._wait_for = self._version_after(version) if reply.accepted else 0
        return PushResult(reply.accepted, reply.version, reply.reason)

"""Asynchronous training: each parameter server applies its part of a push at once."""

from __future__ import annotations

from collections.abc import Sequence

from elasticdl_core.errors import ElasticDLError
from elasticdl_core.model import UpdateMode
from elasticdl_worker.parameters.codec import PullReply, PushReply, push_pull_frame, read_push_pull_reply
from elasticdl_worker.parameters.connection import answers_of
from elasticdl_worker.parameters.group import Ids, ServerGroup, WantedRows
from elasticdl_worker.parameters.hot_rows import HotRows
from elasticdl_worker.parameters.partial_pull import PartialPull
from elasticdl_worker.parameters.pulls import PullMoment
from elasticdl_worker.parameters.types import LIMIT, Gradients, PulledParameters, PullOutcome, PushResult, Rates
from elasticdl_worker.parameters.waiting import outcome_of, together

NEAR = 256
"""So many updates before the last one pushes go to the first PS first. Others may make some between pull and push."""


class AsynchronousMode:
    """Pulls and pushes of asynchronous training.

    Args:
        group: the parameter servers.
        mode: how updates are made.
    """

    def __init__(self, group: ServerGroup, mode: UpdateMode) -> None:
        self._group = group
        self._stop_at = mode.stop_at

    def forget(self) -> None:
        """Forgets what is known of the PS: some were replaced. Nothing is kept here."""

    async def pull(self, ids: Ids, *, dense: bool) -> PulledParameters:
        """Reads rows and changed dense parameters, each PS at its own version."""
        return await self._group.pull_all(ids, dense=dense)

    async def push(self, gradients: Gradients, version: int, rates: Rates) -> PushResult:
        """Applies gradients; they count if any PS took its part."""
        group = self._group
        async with group.pushing:
            rest = list(zip(group.servers, group.build_pushes(gradients, version, rates), strict=True))
            replies = []
            if self._is_near_limit(version):
                # The first PS decides which update is the last one, so that no other takes more.
                replies = [await group.push_to(*rest.pop(0))]
                if not replies[0].accepted and replies[0].reason == LIMIT:
                    group.answered = group.sequence
                    return PushResult(False, replies[0].version, LIMIT)
            replies += await together([group.push_to(server, push) for server, push in rest])
            group.answered = group.sequence
            return _result_of(replies)

    async def push_pull(
        self, gradients: Gradients, ids: Ids, version: int, rates: Rates, *, dense: bool
    ) -> tuple[PushResult, PullOutcome]:
        """A push and the pull after it; nothing is pulled after the job's last update."""
        if self._is_near_limit(version) or not self._group.fits_one_message(gradients, ids, dense=dense):
            result = await self.push(gradients, version, rates)
            return result, None if result.reason == LIMIT else await outcome_of(self.pull(ids, dense=dense))
        return await self._push_pull_at_once(gradients, ids, version, rates, dense=dense)

    async def _push_pull_at_once(
        self, gradients: Gradients, ids: Ids, version: int, rates: Rates, *, dense: bool
    ) -> tuple[PushResult, PulledParameters | ElasticDLError]:
        """A push and the pull after it, in one message to each PS."""
        group = self._group
        async with group.pushing:
            servers, placement, wanted = group.servers, group.placement, group.cut(ids)
            pushes = group.build_pushes(gradients, version, rates)
            calls = []
            for server, push, asked in zip(servers, pushes, wanted.parts, strict=True):
                frame = push_pull_frame(push, group.pull_along(wanted, server.index, PullMoment(), dense=dense))
                expected = server.dense_bytes + placement.rows_bytes(asked)
                calls.append(server.begin("PushPull", frame, answer_bytes=expected))
            answers = await answers_of(calls)
            group.answered = group.sequence
        replies = [read_push_pull_reply(answer) for answer in answers]
        result = _result_of([pushed for pushed, _ in replies])
        return result, await outcome_of(self._pulled([pulled for _, pulled in replies], wanted, dense))

    async def _pulled(
        self, replies: Sequence[PullReply | ElasticDLError], wanted: WantedRows, dense: bool
    ) -> PulledParameters:
        """The answers of the PS to the pull that went along with a push."""
        group = self._group
        parts: list[PartialPull] = []
        for index, (reply, asked) in enumerate(zip(replies, wanted.parts, strict=True)):
            if isinstance(reply, ElasticDLError):
                raise reply
            part = PartialPull()
            part.add(reply, asked)
            if not part.initialised:
                part = await group.puller_of(wanted, dense=dense)(index, PullMoment())
            parts.append(part)
        return group.assemble(parts, wanted, dense=dense)

    def _is_near_limit(self, version: int) -> bool:
        """Whether a gradient on parameters of a version may be the last one, or too late, for several PS at once."""
        return bool(self._stop_at) and len(self._group.servers) > 1 and version + NEAR >= self._stop_at


class HotRowsMode(AsynchronousMode):
    """Asynchronous training that keeps the rows that it sees often, and pulls the others.

    Args:
        group: the parameter servers.
        mode: how updates are made.
        hot: the rows that are kept.
    """

    def __init__(self, group: ServerGroup, mode: UpdateMode, hot: HotRows) -> None:
        super().__init__(group, mode)
        self._hot = hot

    def forget(self) -> None:
        """Forgets the rows that are kept: some PS were replaced."""
        self._hot.forget()

    async def pull(self, ids: Ids, *, dense: bool) -> PulledParameters:
        """Reads the rows that are not kept here, or too old, and changed dense parameters."""
        if not ids:
            return await super().pull(ids, dense=dense)
        _, pulled = await self._pull_cold(ids, dense, None)
        if isinstance(pulled, ElasticDLError):
            raise pulled
        return pulled

    async def _push_pull_at_once(
        self, gradients: Gradients, ids: Ids, version: int, rates: Rates, *, dense: bool
    ) -> tuple[PushResult, PulledParameters | ElasticDLError]:
        if not ids:
            return await super()._push_pull_at_once(gradients, ids, version, rates, dense=dense)
        result, pulled = await self._pull_cold(ids, dense, (gradients, version, rates))
        assert result is not None
        return result, pulled

    async def _pull_cold(
        self, ids: Ids, dense: bool, push: tuple[Gradients, int, Rates] | None
    ) -> tuple[PushResult | None, PulledParameters | ElasticDLError]:
        """Pulls what is not kept, along with a push if there is one, and puts it together with what is."""
        group, hot = self._group, self._hot
        epoch, surely, generations = hot.epoch, group.answered, group.generations
        found = {
            table: hot.find(table, wanted, group.placement.dim(table), group.sequence)
            for table, wanted in ids.items()
        }
        cold = {table: ids[table][known.missing] for table, known in found.items()}
        result: PushResult | None = None
        pulled: PulledParameters | ElasticDLError
        if push is None:
            pulled = await super().pull(cold, dense=dense)
        else:
            gradients, version, rate = push
            result, pulled = await super()._push_pull_at_once(gradients, cold, version, rate, dense=dense)
        if isinstance(pulled, ElasticDLError):
            return result, pulled
        replaced = group.generations != generations or hot.epoch != epoch
        if replaced:
            # What is kept may be of a PS that was replaced meanwhile.
            hot.forget()
            if any(len(known.missing) < len(known.rows) for known in found.values()):
                whole = await outcome_of(super().pull(ids, dense=False))
                if isinstance(whole, ElasticDLError):
                    return result, whole
                return result, PulledParameters(pulled.version, pulled.dense, whole.rows)
        for table, known in found.items():
            known.rows[known.missing] = pulled.rows[table]
            if not replaced:
                hot.keep(table, cold[table], pulled.rows[table], surely)
        return result, PulledParameters(
            pulled.version, pulled.dense, {table: known.rows for table, known in found.items()}
        )


def _result_of(replies: Sequence[PushReply]) -> PushResult:
    """The result of a push: it counts if any PS took its part (a PS that was replaced refuses its part)."""
    latest = max(reply.version for reply in replies)
    accepted = any(reply.accepted for reply in replies)
    refused = next((reply for reply in replies if not reply.accepted), None)
    return PushResult(accepted, latest, "" if accepted or refused is None else refused.reason)

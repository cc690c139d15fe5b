"""A member's standing with its master: says how the member is several times a second, and hears the orders."""

from __future__ import annotations

import asyncio
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from typing import Any

import structlog

from elasticdl_core.errors import ElasticDLError, UnavailableError
from elasticdl_core.group.member import GroupCommands, ReplicaMetadata
from elasticdl_core.group.steps import HeldTask
from elasticdl_runtime.lifecycle import end_all
from elasticdl_worker.group.entries import entry_of, take_news
from elasticdl_worker.master.client import MasterClient, WorkerDirective
from elasticdl_worker.master.group_client import GroupDirective, MemberStatus, SpokenReport, WrittenShare, meet
from elasticdl_worker.master.session import Session

_PAUSE_S = 0.1
_LEAST_S = 0.02
_MOST_REFUSED = 50
"""Refusals in a row, some seconds of them, after which a member leaves: its group would wait for its word."""
_log = structlog.get_logger(__name__)


class MasterSession:
    """Meets the master; the coroutine ``run`` does it, the other methods are the training thread's.

    Args:
        master: the master's client.
        session: says when the member shall leave.
        owner: this member's name.
        endpoint: where other members reach this one.
        abort: gives the present group up, and ends the forming of one.
    """

    def __init__(
        self, master: MasterClient, session: Session, owner: str, endpoint: bytes, abort: Callable[[str], None]
    ) -> None:
        self._owner = owner
        self._master = master
        self._session = session
        self._abort = abort
        self._loop = asyncio.get_running_loop()
        self._changed = threading.Condition()
        self._standing = MemberStatus(endpoint, finished=0, generation=0, holds=False, leaving=False)
        self._shares: dict[int, WrittenShare] = {}
        self._told: GroupDirective | None = None
        self._exhausted: GroupDirective | None = None
        self._acknowledged: set[str] = set()
        self._given: set[str] = set()
        self._busy_since: float | None = None
        self._urgent = asyncio.Event()
        self._calls: set[asyncio.Task[None]] = set()
        self._saved = 0
        self._refused = 0
        self._running: asyncio.Task[None] | None = None

    # -- the event loop's ------------------------------------------------------------------------------------------

    async def run(self) -> None:
        """Meets the master until cancelled; one that is away is tried again."""
        while True:
            began = self._loop.time()
            self._urgent.clear()
            call = self._loop.create_task(self._meet(), name="meet the master")
            self._calls.add(call)
            call.add_done_callback(self._calls.discard)
            urgent = self._loop.create_task(self._urgent.wait(), name="news for the master")
            try:
                await asyncio.wait({call, urgent}, return_when=asyncio.FIRST_COMPLETED)
                if not urgent.done():  # else the master waits for it, and perhaps all members do
                    await asyncio.wait({urgent}, timeout=max(0.0, _LEAST_S - (self._loop.time() - began)))
            finally:
                urgent.cancel()

    async def close(self) -> None:
        """Meets the master no more."""
        running = [self._running] if self._running is not None else []
        await end_all(*running, *self._calls)

    async def _meet(self) -> None:
        try:
            told = await meet(self._master, self._now())
        except UnavailableError:
            await asyncio.sleep(_PAUSE_S)
            return
        except Exception as error:
            self._refused += 1
            _log.error("the master does not take a member's word", error=str(error), times=self._refused)
            if self._refused == _MOST_REFUSED:
                await self._session.complain("what a member of the group says", error, leaves=True)
            await asyncio.sleep(_PAUSE_S)
            return
        self._refused = 0
        self._hear(told)

    def _now(self) -> MemberStatus:
        with self._changed:
            busy = time.monotonic() - self._busy_since if self._busy_since is not None else 0.0
            report = self._standing.report
            if report is not None and self._acknowledged:  # by the time that steps take, these would be told again
                report = replace(report, ended=[one for one in report.ended if one.token not in self._acknowledged])
            return replace(
                self._standing,
                report=report,
                leaving=self._session.drain.is_set(),
                busy_s=busy,
                seen=self._told.revision if self._told is not None else 0,
                shares=tuple(self._shares.values()),
            )

    def _hear(self, told: GroupDirective) -> None:
        if told.directive is WorkerDirective.FINISHED:
            self._session.finished.set()
        elif told.directive is WorkerDirective.DRAIN:
            self._session.request_drain()
        over = False
        with self._changed:
            before = self._told
            if before is not None and told.orders.generation < before.orders.generation:
                return
            self._told = told
            self._acknowledged |= set(told.acknowledged)
            for order in told.shares:
                self._shares.pop(order, None)
            mine = self._standing.generation
            if mine:
                over = told.orders.generation > mine or told.orders.is_over or self._session.finished.is_set()
            self._changed.notify_all()
        if over:
            self._abort("the master ended this generation")

    # -- the training thread's -------------------------------------------------------------------------------------

    def start(self) -> None:
        """This member is ready to be in a group: begins to meet the master."""
        self._loop.call_soon_threadsafe(self._begin)

    def _begin(self) -> None:
        self._running = self._loop.create_task(self.run(), name="meetings")

    def next_orders(self, finished: int) -> GroupDirective | None:
        """Waits for a generation that this member is in; None if it shall go."""
        with self._changed:
            while True:
                told = self._told
                if self._session.finished.is_set():
                    return None
                if told is not None and self._session.drain.is_set() and told.dismissed:
                    return None
                if told is not None and told.orders.generation > finished and self._may_enter(told):
                    return told
                self._changed.wait(_PAUSE_S)

    def _may_enter(self, told: GroupDirective) -> bool:
        """Whether this member is of the generation, and its master, perhaps a new one, knows where the others are."""
        return self._owner in told.orders.members and all(told.endpoints)

    def enter(self, generation: int, *, holds: bool) -> None:
        """This member takes part in a generation from now on."""
        self._given.clear()
        self._put(generation=generation, suspects=(), holds=holds, refused="", refused_fix="")

    def get_out(self, finished: int, *, holds: bool, suspects: Sequence[str]) -> None:
        """This member is done with a generation: the master hears it at once."""
        self._put(generation=0, finished=finished, holds=holds, suspects=tuple(suspects), report=None)
        self._loop.call_soon_threadsafe(self._urgent.set)

    def refuse(self, why: ElasticDLError) -> None:
        """The checkpoint to begin with cannot be used."""
        self._put(refused=why.message, refused_fix=why.fix)
        self._loop.call_soon_threadsafe(self._urgent.set)

    def set_busy(self, *, busy: bool) -> None:
        """Whether the others wait for this member, or it for them."""
        with self._changed:
            self._busy_since = time.monotonic() if busy else None

    def speak(self, metadata: ReplicaMetadata, size_bytes: int, records_per_second: float, *, pinned: int) -> None:
        """Makes the first member's reports for the group from now on."""
        with self._changed:
            wanted = self._told is not None and self._told.tally
            # The master gives tasks to who has said what the group has: one that has none waits for that.
            waits = self._standing.report is None and not metadata.schedule.entries
        tally = dict(metadata.tally) if wanted else None
        schedule = metadata.schedule
        report = SpokenReport(
            version=metadata.version,
            steps=schedule.steps,
            size_bytes=size_bytes,
            last_token=schedule.last,
            left=len(schedule.entries),
            ended=tuple(metadata.ended.values()),
            pinned=pinned,
            tally=tally,
            records_per_second=records_per_second,
        )
        self._put(report=report)
        if waits:
            self._loop.call_soon_threadsafe(self._urgent.set)

    def hold(self) -> None:
        """This member holds the model from now on."""
        self._put(holds=True)

    def add_share(self, share: WrittenShare) -> None:
        """This member's share of a checkpoint is written."""
        with self._changed:
            self._shares[share.order] = share
        self._loop.call_soon_threadsafe(self._urgent.set)

    def commands(self, metadata: ReplicaMetadata, generation: int) -> GroupCommands:
        """The commands of the master for the group, as they were heard last."""
        with self._changed:
            told = self._told
            if told is None or told.orders.generation != generation:
                return GroupCommands()
            fresh, void = self._news_of(told, metadata)
            acknowledged = [token for token in metadata.ended if token in self._acknowledged]
            self._acknowledged &= metadata.ended.keys()
            solo = [one for one in told.solo if one.token not in self._given]
            self._given |= {one.token for one in solo[: len(told.orders.members)]}
            save = told.save if told.save is not None and told.save["order"] > self._saved else None
            if save is not None:
                self._saved = int(save["order"])
            return GroupCommands(
                entries=fresh,
                acknowledged=acknowledged,
                regroup=told.orders.regroup,
                drop=void,
                pin=told.pin,
                solo=[entry_of(one) for one in solo[: len(told.orders.members)]],
                save=save,
                limit=told.limit,
                pause_at=told.pause_at,
            )

    def _news_of(self, told: GroupDirective, metadata: ReplicaMetadata) -> tuple[list[HeldTask], bool]:
        """The news of an answer for the group; one that had nothing more is not gone through again in each step."""
        if told is self._exhausted:
            return [], False
        fresh, void = take_news(told.tasks, metadata, drop=told.drop)
        if not fresh and not void:
            self._exhausted = told
        return fresh, void

    def wait(self, seconds: float) -> None:
        """Waits until the master said something, or a moment."""
        with self._changed:
            self._changed.wait(seconds)

    def _put(self, **changes: Any) -> None:
        with self._changed:
            self._standing = replace(self._standing, **changes)

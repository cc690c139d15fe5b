"""The service of a group's members: their reports, their orders, and the tasks that they get."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Mapping, Sequence
from dataclasses import replace
from typing import Any

from elasticdl_core.errors import UnavailableError
from elasticdl_core.group.rendezvous import Meeting
from elasticdl_core.task import TaskId, TaskType, lease_order
from elasticdl_master.dispatcher import TaskDispatcher
from elasticdl_master.group_calls import EndedTask, GroupReport, MemberAnswer, MemberCall, Share
from elasticdl_master.pending_requests import DispatchedTask
from elasticdl_master.state import events as ev
from elasticdl_master.state.tally import Tallied
from elasticdl_master.state.workers import GROUP
from elasticdl_runtime.failpoints import failpoint
from elasticdl_runtime.lifecycle import wait_for_event

HOLD_S = 0.2
"""An answer waits so long for news: a member is heard of a little more often than that."""
_LOOK_S = 0.1
_AHEAD_S = 90.0
"""The group holds tasks for so long, so that it goes on without a master."""
_LEAST_AHEAD = 4
_MOST_AHEAD = 4096
_TASKS_PER_ANSWER = 256
_TASKS_PER_LEASE = 64


class _WaitingCalls:
    """The news for some members, and the requests that wait for them to change.

    Attributes:
        revision: another one each time that it has changed.
    """

    def __init__(self) -> None:
        self.revision = 0
        self._summary: object = None
        self._changed = asyncio.Event()

    def show(self, summary: object, revision: int) -> None:
        """Shows what there is to tell; wakes those that wait, if it is something else."""
        if summary != self._summary:
            self._summary, self.revision = summary, revision
            self._changed.set()
            self._changed = asyncio.Event()

    async def news(self) -> None:
        """Waits until there is something else to tell, for a moment at most."""
        await wait_for_event(self._changed, HOLD_S)


class GroupService:
    """Answers the members of the group.

    Args:
        dispatcher: serves requests, one at a time.

    Attributes:
        report: the newest of the present group; None before the first.
        foundation: the checkpoint that the group is founded on; None for initial values.
        pin: the evaluation that the parameters shall stay as they are for; 0 for none.
        save: the order to write a checkpoint, if there is one.
        tally_wanted: whether the first member shall tell what is in the model.
        tally: what it told.
        shares: of the present order, by rank.
        noted: for each checkpoint that was ordered and is not over, oldest first, the tasks by token that the group
            held when it was ordered, and those that it got since: of one that came back half done, what was done.
        refused: why the foundation cannot be used; empty if nobody said so.
        refused_fix: what to do about it.
        heard: set when a member said something.
    """

    def __init__(self, dispatcher: TaskDispatcher) -> None:
        self._dispatcher = dispatcher
        self._machine = dispatcher.machine
        self.report: GroupReport | None = None
        self.foundation: Mapping[str, Any] | None = None
        self.pin = 0
        self.save: Mapping[str, Any] | None = None
        self.tally_wanted = False
        self.tally: Tallied | None = None
        self.shares: dict[int, Share] = {}
        self.noted: deque[dict[str, TaskId]] = deque()
        self.refused = self.refused_fix = ""
        self.heard = asyncio.Event()
        self._endpoints: dict[str, bytes] = {}
        self._spoken_in = 0
        self._for_all, self._for_first = _WaitingCalls(), _WaitingCalls()
        self._revision = 0

    # -- members ---------------------------------------------------------------------------------------------------

    async def meet(self, call: MemberCall) -> MemberAnswer:
        """Takes in what a member says; answers as soon as there is news for it, or after a moment."""
        self._endpoints[call.owner] = call.endpoint
        meeting = Meeting(call.owner, call.finished, call.holds, call.leaving, call.suspects)
        await self._dispatcher.tell(ev.MemberMet(meeting, call.busy_s))
        failpoint("master.after_meeting")
        acknowledged: list[str] = []
        first_word = False
        if call.report is not None and self._speaks_for_all(call):
            first_word, self._spoken_in = self._spoken_in != call.generation, call.generation
            acknowledged = await self._take(call.report)
        shares = [self._take_share(share) for share in call.shares]
        if call.refused:
            self.refused, self.refused_fix = call.refused, call.refused_fix
        self.heard.set()
        self.refresh()
        board = self._board(call.owner)
        # That a task's end was heard nobody waits for: the next task is leased at once, and that is news.
        if not shares and not first_word and call.seen == board.revision:
            await board.news()
        return self._answer(call, acknowledged, shares)

    def refresh(self) -> None:
        """Looks whether there is news for the members, and wakes those that wait for it."""
        orders, leases = self._machine.group.orders, self._machine.workers.group_leases
        decision = self._machine.lifecycle.decision
        for_all = (
            replace(orders, regroup=False),
            self._endpoints_of(orders.members),
            decision.directive if decision is not None else None,
        )
        # What comes next is the first member's word: who else is told in the midst of that only takes the master's
        # time, which all wait for when the next generation is formed.
        for_first = (
            for_all,
            orders.regroup,
            str(leases[-1].token) if leases else "",
            self.pin,
            self._machine.evaluations.pause_at,
            self.save["order"] if self.save is not None else 0,
            self.tally_wanted,
        )
        self._revision += 1
        for board, summary in ((self._for_all, for_all), (self._for_first, for_first)):
            board.show(summary, self._revision)

    async def watch(self) -> None:
        """Notices who falls silent, and leases tasks for the group, until cancelled."""
        while True:
            await self.look()
            await asyncio.sleep(_LOOK_S)

    async def look(self) -> None:
        """Notices once who fell silent, and leases tasks for the group."""
        wanted = self._wanted
        await self._dispatcher.tell(ev.GroupLooked(wanted))
        await self._lease(wanted)
        self.refresh()

    # -- inside ----------------------------------------------------------------------------------------------------

    def _board(self, owner: str) -> _WaitingCalls:
        """The board of a member's news."""
        return self._for_first if self._machine.group.orders.members[:1] == (owner,) else self._for_all

    def _endpoints_of(self, members: Sequence[str]) -> list[bytes]:
        """The addresses of members; empty for those that a new master has not heard of yet."""
        return [self._endpoints.get(owner, b"") for owner in members]

    def _speaks_for_all(self, call: MemberCall) -> bool:
        group = self._machine.group
        orders = group.orders
        first = orders.members[:1] == (call.owner,)
        return first and group.established and call.generation == orders.generation and not orders.is_over

    async def _take(self, report: GroupReport) -> list[str]:
        self.report = report
        if report.tally is not None:
            self.tally, self.tally_wanted = report.tally, False
        acknowledged = []
        for ended in report.ended:
            try:
                await self._settle(ended)
            except UnavailableError:
                break
            acknowledged.append(str(ended.token))
        if (
            self._machine.version.present < report.version
            and 0 < self._machine.evaluations.pause_at <= report.version
        ):
            await self._dispatcher.tell(ev.GroupPaused(report.version))
        return acknowledged

    async def _settle(self, ended: EndedTask) -> None:
        """A task is done, or comes back; whatever the queue says, the group need not tell it again."""
        result = ended.account.within(b"")
        if ended.position >= ended.task.end:
            await self._dispatcher.report(
                ended.task, ended.token, GROUP, result=result, model_version=ended.model_version
            )
        else:
            for known in self.noted:
                if str(ended.token) in known:
                    known[str(ended.token)] = ended.task.front_until(ended.position)
            await self._dispatcher.give_back(
                ended.task, ended.token, GROUP, ended.position, result, model_version=ended.model_version
            )

    def _take_share(self, share: Share) -> int:
        if self.save is not None and share.order == self.save["order"]:
            self.shares[share.rank] = share
        return share.order

    def _answer(self, call: MemberCall, acknowledged: list[str], shares: list[int]) -> MemberAnswer:
        machine, group = self._machine, self._machine.group
        directive = machine.directive(call.owner)
        machine.note_told(call.owner, directive)
        orders = group.orders
        leads = orders.members[:1] == (call.owner,)
        # Who has not said what the group has would be given all that it holds, while all wait to form the next group.
        tasks, solo, drop = self._work(call.report) if leads and call.report is not None else ([], [], False)
        return MemberAnswer(
            revision=self._board(call.owner).revision,
            generation=orders.generation,
            members=orders.members,
            endpoints=self._endpoints_of(orders.members),
            base=orders.base,
            is_over=orders.is_over,
            regroup=orders.regroup,
            dismissed=group.dismisses(call.owner),
            foundation=self.foundation,
            directive=directive,
            tasks=tasks,
            solo=solo,
            acknowledged=acknowledged,
            drop=drop,
            pin=self.pin if leads else 0,
            save=self.save if leads and self._save_is_of(orders.generation) else None,
            tally=self.tally_wanted and leads,
            limit=machine.gate.step_limit,
            pause_at=machine.evaluations.pause_at if leads else 0,
            shares=shares,
        )

    def _save_is_of(self, generation: int) -> bool:
        return self.save is not None and self.save["generation"] == generation

    def _work(self, report: GroupReport) -> tuple[list[DispatchedTask], list[DispatchedTask], bool]:
        """The training tasks that the first member does not know, the others, and whether those it knows are void."""
        if not self._machine.group.established or not self._machine.servers.ready:
            return [], [], False  # the leases of before may be taken back: what the group is founded on decides that
        last = lease_order(report.last_token)
        training: list[DispatchedTask] = []
        solo: list[DispatchedTask] = []
        known = 0
        for lease in self._machine.workers.group_leases:
            if lease.task.type is not TaskType.TRAINING:
                solo.append(DispatchedTask(self._machine.task(lease), lease))
            elif (lease.token.epoch, lease.token.counter) <= last:
                known += 1
            elif len(training) < _TASKS_PER_ANSWER:
                training.append(DispatchedTask(self._machine.task(lease), lease))
        return training, solo, report.left > 0 and known == 0

    @property
    def _wanted(self) -> int:
        """The number of training tasks that the group shall hold."""
        machine = self._machine
        if not machine.group.established or not machine.servers.ready or machine.lifecycle.ending:
            return 0
        rate = self.report.records_per_second if self.report is not None else 0.0
        ahead = int(_AHEAD_S * rate / machine.spec.records_per_task)
        return min(max(ahead, _LEAST_AHEAD), _MOST_AHEAD)

    async def _lease(self, wanted: int) -> None:
        """Gets tasks for the group: training for a while ahead, and whatever else there is."""
        machine = self._machine
        if not wanted:
            return
        held = sum(lease.task.type is TaskType.TRAINING for lease in machine.workers.group_leases)
        missing = wanted - held
        if machine.single_tasks.pending or machine.evaluations.pending():
            missing = max(missing, _TASKS_PER_LEASE)
        if missing > 0:
            for lease in await self._dispatcher.lease_to_group(min(missing, _TASKS_PER_LEASE)):
                for known in self.noted:
                    known[str(lease.token)] = lease.task

"""The group of a job that trains by AllReduce: its generations, its members, and the tasks that it holds.

To all other parts the group is one PS: it holds the model, it can be lost, restored, pinned and saved.
"""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticdl_core.group.rendezvous import Orders, Rendezvous, RendezvousRecord
from elasticdl_core.ports.launcher import ProcessState, Role
from elasticdl_master.state import events as ev
from elasticdl_master.state.context import JobContext
from elasticdl_master.state.instructions import Instruction, LoseGroup, tell
from elasticdl_master.state.workers import Worker

MUTE_S = 3.0
"""A member that has spoken, is to stay and is silent for so long is replaced where those who hold the model wait."""
_STRIDE = 1 << 20
"""Generations of one master: the next one's are larger."""


class Group:
    """Forms the group, and loses it.

    Args:
        job: what all parts share.
    """

    def __init__(self, job: JobContext) -> None:
        self._job = job
        self._active = job.spec.by_group
        self._rendezvous = Rendezvous(job.setup.epoch * _STRIDE)
        self._told_lost = self._told_spare = False
        self._spoke: dict[str, float] = {}
        if self._active:
            job.workers.add_group()

    def handle(self, event: ev.Event, now: float) -> list[Instruction]:
        """Takes in what members say, and what becomes of them."""
        if not self._active:
            return []
        out: list[Instruction] = []
        match event:
            case ev.MemberMet(meeting, busy_s):
                self._rendezvous.meet(meeting, now)
                self._spoke[meeting.owner] = now
                out += self._look_at(meeting.owner, busy_s)
            case ev.GroupLooked():
                self._rendezvous.look(now)
                out += self._keep_the_model(now)
            case ev.GroupAllowed():
                self._told_lost = False
                self._rendezvous.found(now)
            case ev.GroupVoided():
                self._told_lost = True
                self._rendezvous.forbid()
            case ev.ProcessChanged(status) if status.id.role is Role.WORKER and status.state is ProcessState.EXITED:
                self._rendezvous.lost(status.id.owner, f"{status.id.owner} ended", now)
        return [*out, *self._tell()]

    # -- questions -------------------------------------------------------------------------------------------------

    @property
    def established(self) -> bool:
        """Whether a member holds the model."""
        return self._rendezvous.established

    @property
    def orders(self) -> Orders:
        """The orders for all members."""
        return self._rendezvous.orders()

    def dismisses(self, owner: str) -> bool:
        """Whether a member that wants to leave may go."""
        worker = self._job.workers.by_owner(owner)
        return self._rendezvous.dismisses(owner) and not (worker is not None and worker.awaited)

    # -- takeovers -------------------------------------------------------------------------------------------------

    def record(self) -> dict[str, Any]:
        """The facts that the next master needs."""
        return self._rendezvous.record().to_json() if self._active else {}

    def restore(self, record: Mapping[str, Any], now: float) -> None:
        """Goes on where an earlier master was."""
        if self._active and record:
            self._rendezvous.restore(RendezvousRecord.from_json(record), now)

    # -- inside ----------------------------------------------------------------------------------------------------

    def _keep_the_model(self, now: float) -> list[Instruction]:
        """Lets no member leave before one that stays holds the model; replaces who is to stay and does not speak."""
        workers, rendezvous = self._job.workers, self._rendezvous
        holders = [worker for worker in workers.living if self.established and rendezvous.holds(worker.owner)]
        goes_on = not self._job.lifecycle.ending and any(worker.staying for worker in workers.living)
        last = holders if goes_on and not any(worker.staying for worker in holders) else []
        for worker in workers.living:
            worker.holds_model = worker in holders or not holders
            if worker.awaited and worker not in last:
                worker.leave_at = now + self._job.limits.drain_s
            # Not for ever: who is to follow may wait for the very slot that this one has.
            worker.awaited = worker in last and now < worker.leave_at + self._job.limits.start_s
        self._spoke = {
            worker.owner: self._spoke[worker.owner] for worker in workers.living if worker.owner in self._spoke
        }
        # A newcomer that still loads its model has not spoken yet; `overdue` looks after it.
        mute = [worker for worker in workers.running if now - self._spoke.get(worker.owner, now) > MUTE_S]
        out: list[Instruction] = []
        for worker in mute if last else ():
            worker.stuck = True
            words = f"{worker.owner} does not speak, and those who hold the model are to leave; it is replaced"
            out += [tell("worker_stuck", words), *workers.stop(worker, self._job.limits.leave_s)]
        return out

    def _look_at(self, owner: str, busy_s: float) -> list[Instruction]:
        """Replaces a member that keeps the others waiting for much too long."""
        worker = self._job.workers.by_owner(owner)
        if worker is None or not worker.staying or busy_s <= self._allowed(worker):
            return []
        worker.stuck = True
        words = f"{owner} made no progress for {busy_s:.0f} s while {worker.phase or 'working'}; it is replaced"
        return [tell("worker_stuck", words), *self._job.workers.stop(worker, self._job.limits.leave_s)]

    def _allowed(self, worker: Worker) -> float:
        limits = self._job.limits
        usual = max(limits.stuck_s, limits.stuck_steps * worker.step_p95_s)
        if worker.phase in ("starting", "compiling", "listing"):
            return max(usual, limits.start_s)
        return max(usual, limits.export_s) if worker.phase == "exporting" else usual

    def _tell(self) -> list[Instruction]:
        news, self._rendezvous.news = self._rendezvous.news, []
        out: list[Instruction] = [tell("group", words) for words in news if not self._job.lifecycle.ending]
        members, minibatches = len(self._rendezvous.members), self._job.spec.microbatches_per_step
        if members > minibatches and not self._told_spare:
            self._told_spare = True
            words = (
                f"{members - minibatches} of {members} members only stand by, as an update is cut into {minibatches} "
            )
            words += f"part{'s' if minibatches > 1 else ''} (microbatches)"
            out.append(tell("group", words))
        if self._rendezvous.lost_model and not self._told_lost:
            self._told_lost = True
            out.append(LoseGroup())
        return out

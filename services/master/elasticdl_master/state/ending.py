"""How a job ends: workers leave, a last checkpoint where it makes sense, PS leave, the state is posted."""

from __future__ import annotations

import enum
from collections.abc import Mapping
from typing import TYPE_CHECKING, Any

from elasticdl_core.job import JobState, JobType
from elasticdl_master.state.checkpoints import SUSPEND
from elasticdl_master.state.instructions import Depart, Finish, SetState

if TYPE_CHECKING:
    from elasticdl_master.state.core import MachineCore


class Directive(enum.StrEnum):
    """What a worker is told."""

    CONTINUE = "continue"
    WAIT = "wait"
    DRAIN = "drain"
    FINISHED = "finished"


class Step(enum.StrEnum):
    """How far the end has come."""

    BEGIN = "begin"
    DRAINING = "draining"
    SAVING = "saving"
    LEAVING = "leaving"


_PAUSES = (JobState.SUSPENDED, JobState.QUEUED, None)


class Ending:
    """The way from a decision to end to nothing being left.

    Args:
        to: the state that the job will be in; None if it stays in its state, for the next master to go on.
        reason: why, for the user.
        detail: more for the user: traceback, fix.
        crashed: a worker whose last output belongs into the detail.
    """

    def __init__(self, to: JobState | None, reason: str, detail: Mapping[str, Any], crashed: str = "") -> None:
        self.to = to
        self.reason = reason
        self.step = Step.BEGIN
        self._detail = detail
        self._crashed = crashed
        self._posted = False
        self._save_asked = False
        self._deadline = 0.0

    @property
    def directive(self) -> Directive:
        """What workers are told meanwhile."""
        return Directive.DRAIN if self.to in _PAUSES else Directive.FINISHED

    def yields_to(self, wanted: JobState) -> bool:
        """Whether another wish takes precedence."""
        return wanted is JobState.CANCELLED and not self._posted and (self.to in _PAUSES or self.to.succeeded)

    def advance(self, machine: MachineCore, now: float) -> bool:
        """Goes on as far as possible; returns whether all is over."""
        before = None
        while before is not self.step:
            before = self.step
            if self.step is Step.BEGIN:
                self._begin(machine, now)
            elif self.step is Step.DRAINING:
                self._drain(machine, now)
            elif self.step is Step.SAVING:
                self._save(machine, now)
            elif self._left(machine, now):
                return True
        return False

    def _begin(self, machine: MachineCore, now: float) -> None:
        limits = machine.limits
        if self.to is JobState.FAILED:
            self._post(machine)
        if self.to in (JobState.FAILED, JobState.CANCELLED):
            self._leave(machine, now)
            return
        self.step = Step.DRAINING
        pausing = self.to in _PAUSES
        for_leaving = limits.depart_s if self.to is None else limits.drain_s
        self._deadline = now + (for_leaving if pausing else limits.finish_s)
        for worker in machine.workers.living:
            if not pausing:
                worker.finished = True
            if pausing or not worker.last_heartbeat:
                machine.emit(*machine.workers.drain(worker, now))

    def _drain(self, machine: MachineCore, now: float) -> None:
        living = machine.workers.living
        if now >= self._deadline:
            for worker in living:
                if worker.state != "leaving":
                    machine.emit(*machine.workers.stop(worker, machine.limits.leave_s))
        if not living or now >= self._deadline + 2 * machine.limits.leave_s:
            self.step = Step.SAVING

    def _save(self, machine: MachineCore, now: float) -> None:
        if machine.checkpoints.saving and machine.servers.ready:
            return
        latest = machine.checkpoints.latest
        current = (machine.servers.version, machine.work.snapshot())
        wanted = (
            self.to in _PAUSES
            and machine.spec.type is JobType.TRAINING
            and machine.servers.ready
            and machine.work.main.listed
            # Who has trained has a model; that the PS say so may be a second old.
            and machine.work.records_done > 0
        )
        stale = latest is None or (latest["version"], latest["done"]) != current
        if wanted and stale and not self._save_asked:
            self._save_asked = True
            machine.begin_save(SUSPEND, now)
            return
        self._leave(machine, now)

    def _leave(self, machine: MachineCore, now: float) -> None:
        self.step = Step.LEAVING
        if self.to is None:
            return  # whoever goes down ends the processes that are left
        self._deadline = now + 2 * machine.limits.leave_s
        machine.emit(*machine.servers.stop(machine.limits.leave_s))
        for worker in machine.workers.living:
            machine.emit(*machine.workers.stop(worker, machine.limits.leave_s))

    def _left(self, machine: MachineCore, now: float) -> bool:
        if self.to is None:
            machine.emit(Depart())
            return True
        gone = not machine.workers.living and machine.servers.all_gone
        if not gone and now < self._deadline:
            return False
        self._post(machine)
        machine.emit(Finish())
        return True

    def _post(self, machine: MachineCore) -> None:
        if not self._posted and self.to is not None:
            self._posted = True
            machine.state = self.to
            machine.emit(SetState(self.to, self.reason, self._detail, self._crashed))

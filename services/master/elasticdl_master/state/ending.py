"""The end of a job: workers leave, a last checkpoint where it makes sense, PS leave, the state is posted."""

from __future__ import annotations

import enum

from elasticdl_core.job import JobState, JobType
from elasticdl_core.job.life import Desired
from elasticdl_master.state import events as ev
from elasticdl_master.state.checkpoints import SUSPEND, Checkpoints
from elasticdl_master.state.context import JobContext
from elasticdl_master.state.epochs import Epochs
from elasticdl_master.state.instructions import Depart, Finish, Instruction, tell
from elasticdl_master.state.lifecycle import EndDecision
from elasticdl_master.state.workers import WorkerState

_WISHES = {"cancel": JobState.CANCELLED, "suspend": JobState.SUSPENDED, "evict": JobState.QUEUED}


class EndingStep(enum.StrEnum):
    """Steps of the end."""

    BEGIN = "begin"
    DRAINING = "draining"
    SAVING = "saving"
    LEAVING = "leaving"
    OVER = "over"


class JobEnding:
    """Carries out the decision to end: from there to nothing being left.

    Args:
        job: what all parts share.
        epochs: what is done of the main work.
        checkpoints: take the checkpoints.
    """

    def __init__(self, job: JobContext, epochs: Epochs, checkpoints: Checkpoints) -> None:
        self._job = job
        self._epochs = epochs
        self._checkpoints = checkpoints
        self._step = EndingStep.BEGIN
        self._carried_out: EndDecision | None = None
        self._save_asked = False
        self._deadline = 0.0

    @property
    def over(self) -> bool:
        """Whether nothing is left to do."""
        return self._step is EndingStep.OVER

    def handle(self, event: ev.Event, now: float) -> list[Instruction]:
        """Takes in the desired state, and failures that have nothing to do with any work."""
        match event:
            case ev.Directed(desired=desired) if desired in _WISHES:
                self._job.lifecycle.end(_WISHES[desired], Desired(desired).reason_to_stop)
            case ev.GoingDown() if not self._job.lifecycle.ending:
                self._job.lifecycle.end(None, "the cluster goes down")
                return [tell("going_down", "the cluster goes down: workers leave, and the job is saved")]
            case ev.JobFailed(message, fix, traceback, kind):
                self._job.lifecycle.fail(message, fix=fix, traceback=traceback, kind=kind)
        return []

    def advance(self, decision: EndDecision, now: float) -> list[Instruction]:
        """Goes on as far as possible with what was decided; a new decision begins anew."""
        if decision is not self._carried_out:
            self._carried_out, self._step, self._save_asked = decision, EndingStep.BEGIN, False
        out: list[Instruction] = []
        before = None
        while before is not self._step:
            before = self._step
            out += self._go_on(decision, now)
        return out

    def _go_on(self, decision: EndDecision, now: float) -> list[Instruction]:
        match self._step:
            case EndingStep.BEGIN:
                return self._begin(decision, now)
            case EndingStep.DRAINING:
                return self._drain(now)
            case EndingStep.SAVING:
                return self._save(decision, now)
            case EndingStep.LEAVING:
                return self._leave(decision, now)
        return []

    def _begin(self, decision: EndDecision, now: float) -> list[Instruction]:
        if decision.to is JobState.FAILED:
            return [*self._job.lifecycle.announce_end(), *self._stop_all(decision, now)]
        if decision.to is JobState.CANCELLED:
            return self._stop_all(decision, now)
        # The workers of a group take the model with them.
        saves_first = self._job.spec.by_group and decision.pauses
        self._step = EndingStep.SAVING if saves_first else EndingStep.DRAINING
        for_leaving = self._job.limits.depart_s if decision.to is None else self._job.limits.drain_s
        self._deadline = now + (for_leaving if decision.pauses else self._job.limits.finish_s)
        out: list[Instruction] = []
        if saves_first:
            return out
        for worker in self._job.workers.living:
            if not decision.pauses:
                worker.finished = True
            if decision.pauses or not worker.last_heartbeat:
                out += self._job.workers.drain(worker, now)
        return out

    def _drain(self, now: float) -> list[Instruction]:
        living = self._job.workers.living
        out: list[Instruction] = []
        if now >= self._deadline:
            for worker in living:
                if worker.state is not WorkerState.LEAVING:
                    out += self._job.workers.stop(worker, self._job.limits.leave_s)
        if not living or now >= self._deadline + 2 * self._job.limits.leave_s:
            self._step = EndingStep.SAVING
        return out

    def _save(self, decision: EndDecision, now: float) -> list[Instruction]:
        book = self._checkpoints.book
        if book.saving and self._job.servers.ready:
            return []
        if self._has_unsaved(decision) and not self._save_asked:
            self._save_asked = True
            return self._checkpoints.save(SUSPEND, now)
        return self._stop_all(decision, now)

    def _has_unsaved(self, decision: EndDecision) -> bool:
        """Whether the job will go on, and more is done than its last checkpoint has."""
        trains = self._job.spec.type is JobType.TRAINING and self._job.servers.ready and self._job.plans.main.listed
        # Who has trained has a model; that the PS say so may be a second old.
        if not decision.pauses or not trains or self._epochs.records_done == 0:
            return False
        latest = self._checkpoints.book.latest
        if self._checkpoints.candidate is not None:
            return True  # the best model so far is not kept yet
        current = (self._job.servers.version, self._epochs.snapshot())
        return latest is None or (latest["version"], latest["done"]) != current

    def _stop_all(self, decision: EndDecision, now: float) -> list[Instruction]:
        self._step = EndingStep.LEAVING
        if decision.to is None:
            return []  # whoever goes down ends the processes that are left
        self._deadline = now + 2 * self._job.limits.leave_s
        out = self._job.servers.stop(self._job.limits.leave_s)
        for worker in self._job.workers.living:
            out += self._job.workers.stop(worker, self._job.limits.leave_s)
        return out

    def _leave(self, decision: EndDecision, now: float) -> list[Instruction]:
        if decision.to is None:
            self._step = EndingStep.OVER
            return [Depart()]
        gone = not self._job.workers.living and self._job.servers.all_gone
        if not gone and now < self._deadline:
            return []
        self._step = EndingStep.OVER
        return [*self._job.lifecycle.announce_end(), Finish()]

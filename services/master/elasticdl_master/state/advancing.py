"""Going on: from round to round, to the closing, to the end."""

from __future__ import annotations

from elasticdl_core.job import JobState, JobType
from elasticdl_master.state import events as ev
from elasticdl_master.state import instructions as do
from elasticdl_master.state.auditing import audit
from elasticdl_master.state.checkpoints import FINAL
from elasticdl_master.state.recovering import Recovering


class Advancing(Recovering):
    """Decides what comes next, whenever anything has happened."""

    def _advance(self, now: float, *, staffed: bool) -> None:
        if self.ending is not None:
            self.finished = self.ending.advance(self, now)
            return
        if not staffed:
            self._out += self.workers.reconcile(self.target_workers, now)
        self._advance_servers(now)
        if not self.servers.ready or self.ending is not None:
            return
        if self.state is JobState.STARTING and any(worker.leases for worker in self.workers.running):
            self.state = JobState.RUNNING
            self._emit(do.SetState(JobState.RUNNING, "the first worker is at work"))
        self._check_steps(now)
        self._advance_rounds()
        self._advance_evaluations()
        self._hold_training()
        if self.ending is None:
            self._advance_closing(now)

    def _check_steps(self, now: float) -> None:
        if self.spec.type is not JobType.TRAINING:
            return
        limit = self.step_limit
        if limit and self.version >= limit and not self.work.trained:
            self._stop_at_limit(f"max_steps reached: {limit - self.start_version} updates", now)
        validation = self.work.validation
        if self._evaluation_due(self.version) and not self.work.evaluations and validation and validation.listed:
            self._begin_evaluation(boundary=False, training_epoch=self.work.rounds_done)
        kind = self.checkpoints.due(self.version, now)
        ready = self.servers.initialized and self.work.main.listed and now >= self._retry_save_at
        if kind and ready and not self.work.trained:
            self.begin_save(kind, now)

    def _advance_rounds(self) -> None:
        work = self.work
        if not work.uses_rounds or work.stopped or not work.round.complete or self._boundary is not None:
            return
        if self._awaits_verdict(self.version):
            return
        validation = work.validation if self.spec.type is JobType.TRAINING else None
        if self._closed_round != work.round.number:
            if validation is not None and not validation.listed:
                return
            self._closed_round = work.round.number
            if self.spec.type is JobType.TRAINING and not self.spec.use_async:
                self._emit(do.FlushRound())
            if validation is not None:
                one = self._begin_evaluation(boundary=True, training_epoch=work.round.number + 1)
                self._boundary = one.number
                return
        if work.round.number + 1 < work.main.rounds:
            forgotten = work.next_round()
            if forgotten:
                self._emit(do.ForgetTasks(forgotten))
            if not work.held:
                self._emit(do.AddTasks(work.todo()))

    def _advance_closing(self, now: float) -> None:
        work = self.work
        if self.spec.type is JobType.EVALUATION:
            if work.main.listed and self.servers.initialized and not work.evaluations and not self.evaluated:
                self._begin_evaluation(boundary=True, training_epoch=0)
            if self.evaluated and not work.evaluations:
                self._succeed(now)
            return
        if not work.trained or self._boundary is not None:
            return
        if self.spec.type is JobType.PREDICTION:
            self._succeed(now)
            return
        if now < self._retry_save_at or self._training_comes_back(now):
            return
        if not work.listed:
            # Training can stop (a limit of steps) before the listing is complete; what follows needs it.
            return
        if work.stopped and work.validation is not None and not self._last_evaluation_begun:
            self._last_evaluation_begun = True
            if self._evaluated_version != self.version:
                self._begin_evaluation(boundary=True, training_epoch=work.rounds_done)
        if self.final is None and not self.checkpoints.saving:
            self.begin_save(FINAL, now)
        if self.final is not None:
            self._finalise(self.final)
            if (self.exported or not self.formats) and not work.evaluations and not self.checkpoints.saving:
                self._audit_then_succeed(now)

    def _audit_then_succeed(self, now: float) -> None:
        """Nothing succeeds before what is in the model was compared with the plan."""
        if self.audit is not None:
            self._succeed(now)
        elif self._audit_asked != self.servers.generation:
            self._audit_asked = self.servers.generation
            self._emit(do.ReadTallies())

    def _on_tallies(self, event: ev.TalliesRead, now: float) -> None:
        if self.final is None or self.ending is not None:
            return
        found = self.audit = audit(self.work, event.tallies)
        counts = f"{found.planned:,} records planned, {found.committed:,} in the model, {found.skipped:,} passed over"
        self._tell("audit", f"audit {found.state}: {counts}", **found.to_mapping())
        if found.missing:
            self._fail(
                f"the audit found that the model lacks records of tasks that are done: {'; '.join(found.missing)}",
                fix="this is a defect of ElasticDL, not of the model module: keep the job's logs and report it; "
                "do not use the model",
                kind="audit",
            )

    def _succeed(self, now: float) -> None:
        if self.state is JobState.STARTING:
            self.state = JobState.RUNNING
            self._emit(do.SetState(JobState.RUNNING, "all work is done already"))
        to, reason = JobState.SUCCEEDED, self._why_succeeded()
        if self.skipped:
            to = JobState.SUCCEEDED_WITH_SKIPS
            reason = f"{self.work.stopped or 'all records were processed'}, but for those that were passed over"
        self._end(to, reason, {"skipped": self.skipped} if self.skipped else None, now=now)

    def _why_succeeded(self) -> str:
        work = self.work
        if not work.stopped:
            return "every record was processed"
        left = work.records_total - work.records_done
        return f"{work.stopped}; {left} of {work.records_total} records were left out on purpose"

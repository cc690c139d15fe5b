"""From epoch to epoch: the next one begins when the one before is complete, and its evaluation is pinned."""

from __future__ import annotations

from elasticdl_core.job import JobType
from elasticdl_master.state import events as ev
from elasticdl_master.state.context import JobContext
from elasticdl_master.state.epochs import Epochs
from elasticdl_master.state.evaluations import Evaluations
from elasticdl_master.state.gate import TrainingGate
from elasticdl_master.state.instructions import AddTasks, FlushRound, ForgetTasks, Instruction
from elasticdl_master.state.version import ModelVersion

_NONE = -1


class EpochSequence:
    """Sees to the end of each epoch, and begins the next one.

    Args:
        job: what all parts share.
        epochs: what is done of the main work.
        evaluations: those in flight, and their results.
        gate: says when training tasks may be leased, and when training is over.
        version: the model version.

    Attributes:
        closed_epoch: the last epoch whose end was seen to.
        awaited_pin: the evaluation whose pin the next epoch waits for, if any.
        awaited_flush: the epoch whose last round is being closed, if any: no gradient of the next one may come in.
    """

    def __init__(
        self,
        job: JobContext,
        epochs: Epochs,
        evaluations: Evaluations,
        gate: TrainingGate,
        version: ModelVersion,
    ) -> None:
        self._job = job
        self._epochs = epochs
        self._evaluations = evaluations
        self._gate = gate
        self._version = version
        self.closed_epoch = _NONE
        self.awaited_pin: int | None = None
        self.awaited_flush: int | None = None

    @property
    def waits(self) -> bool:
        """Whether something of the epoch that ended is still to be done."""
        return self.awaited_pin is not None or self.awaited_flush is not None

    def handle(self, event: ev.Event, now: float) -> list[Instruction]:
        """Takes in that an evaluation is pinned, or a round closed, and for how many tasks a group has work."""
        match event:
            case ev.GroupLooked(wanted=wanted) if self._job.plans.validation is None:
                # With validation data the model is evaluated as it is at the end of an epoch: the group waits there.
                tasks = self._epochs.reach(wanted)
                return [AddTasks(tasks)] if tasks else []
            case ev.Pinned(number=number) if number == self.awaited_pin:
                self.awaited_pin = None
            case ev.RoundFlushed(epoch) if epoch == self.awaited_flush:
                self.awaited_flush = None
        return []

    def advance(self, now: float) -> list[Instruction]:
        """Closes the present epoch if it is complete, and begins the next."""
        epochs = self._epochs
        waits = self.waits or self._gate.awaits_verdict(self._version.present)
        if not self._job.plans.with_epochs or epochs.stopped or not epochs.complete or waits:
            return []
        validation = self._job.plans.validation
        if self.closed_epoch != epochs.number and validation is not None and not validation.listed:
            return []
        out = self._close() if self.closed_epoch != epochs.number else []
        if not self.waits and epochs.number + 1 < self._job.plans.main.epochs:
            forgotten = epochs.begin_next()
            out += [ForgetTasks(forgotten)] if forgotten else []
            out += [AddTasks(epochs.remaining())] if not epochs.held else []
        return out

    def interrupt(self) -> None:
        """The PS went back: the end of an epoch is to be seen to again."""
        self.closed_epoch, self.awaited_pin, self.awaited_flush = _NONE, None, None

    def restore(self, closed_epoch: int, awaited_pin: int | None) -> None:
        """Goes on where an earlier master was."""
        self.closed_epoch, self.awaited_pin = closed_epoch, awaited_pin

    def _close(self) -> list[Instruction]:
        number = self.closed_epoch = self._epochs.number
        if self._job.spec.type is not JobType.TRAINING:
            return []
        out: list[Instruction] = []
        if not (self._job.spec.use_async or self._job.spec.by_group):
            self.awaited_flush = number
            out.append(FlushRound(number))
        if self._job.plans.validation is not None:
            adopted = self._evaluations.adopt(number + 1)
            if adopted is None:
                out += self._evaluations.begin(boundary=True, training_epoch=number + 1)
                adopted = self._evaluations.latest_number
            self.awaited_pin = adopted if self._evaluations.is_pinning(adopted) else None
        return out

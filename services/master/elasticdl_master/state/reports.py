"""Workers' reports of training as it goes: losses, metrics and the learning rate, for the job's status."""

from __future__ import annotations

from elasticdl_master.state import events as ev
from elasticdl_master.state.context import JobContext
from elasticdl_master.state.instructions import Instruction, PostLosses


class TrainingReports:
    """Takes in what heartbeats say of training.

    Args:
        job: what all parts share.

    Attributes:
        loss: the mean of what the workers have as their mean loss; None before the first.
        last_loss: of the last minibatch that was heard of.
        learning_rate: of the same.
        training_metrics: metrics of training minibatches, as the last worker that told them has them.
    """

    def __init__(self, job: JobContext) -> None:
        self._job = job
        self.loss: float | None = None
        self.last_loss: float | None = None
        self.learning_rate: float | None = None
        self.training_metrics: dict[str, float] = {}

    def handle(self, event: ev.Event, now: float) -> list[Instruction]:
        """Takes in a heartbeat."""
        match event:
            case ev.WorkerHeartbeat() if self._job.workers.knows(event.index, event.incarnation):
                return self._heard(event)
        return []

    def _heard(self, beat: ev.WorkerHeartbeat) -> list[Instruction]:
        if beat.last_loss is not None:
            known = [one.loss for one in self._job.workers.living if one.loss is not None]
            self.loss = sum(known) / len(known) if known else beat.loss
            self.last_loss, self.learning_rate = beat.last_loss, beat.learning_rate
        if beat.training_metrics:
            self.training_metrics = dict(beat.training_metrics)
        return [PostLosses(tuple(beat.losses))] if beat.losses else []

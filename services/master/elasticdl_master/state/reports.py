"""Workers' reports of training as it goes: losses, metrics and the learning rate, for the job's status."""

from __future__ import annotations

from elasticdl_master.state import events as ev
from elasticdl_master.state.context import JobContext
from elasticdl_master.state.instructions import Instruction, PostLosses
from elasticdl_master.state.told import metrics_told, number_told, version_told


class TrainingReports:
    """Takes in what heartbeats say of training.

    Args:
        job: what all parts share.

    Attributes:
        loss: the mean of what the workers have as their mean loss; None before the first.
        last_loss: of the last minibatch that was heard of.
        learning_rate: of the same.
        training_metrics: metrics of training minibatches, by the living worker that measured last; of one that is
            gone until another has measured.
        training_metrics_version: the model version at which it did.
    """

    def __init__(self, job: JobContext) -> None:
        self._job = job
        told = job.setup.measured
        self.loss = number_told(told, "loss")
        self.last_loss = number_told(told, "last_loss")
        self.learning_rate = number_told(told, "learning_rate")
        self.training_metrics = metrics_told(told, "training_metrics")
        self.training_metrics_version = version_told(told, "training_metrics_version")

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
        measured = [one for one in self._job.workers.living if one.training_metrics]
        if measured:  # a worker tells what it measured again and again, also when another does that by now
            last = max(measured, key=lambda worker: worker.training_metrics_version)
            self.training_metrics = dict(last.training_metrics)
            self.training_metrics_version = last.training_metrics_version
        return [PostLosses(tuple(beat.losses))] if beat.losses else []

"""Makes a worker ready to be a member of a group: the whole model in it, and the tasks that are no training."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from elasticdl_core.job import JobSpec, JobType
from elasticdl_core.training_rules import TrainingRules
from elasticdl_worker.master.session import Session
from elasticdl_worker.trainers.declared_rules import declared_rules
from elasticdl_worker.trainers.description import describe
from elasticdl_worker.trainers.framework import Framework, LossOf, Outputs, Preparation, TrainedReplica
from elasticdl_worker.trainers.job_sources import JobSources
from elasticdl_worker.trainers.minibatch import Minibatch, Tensors
from elasticdl_worker.trainers.other_tasks import OtherTasks
from elasticdl_worker.user_code import ModelModule

_ALL_ROWS = 1 << 30
"""More rows than a microbatch has: what ``feed`` makes of its records comes as one minibatch."""


@dataclass(frozen=True)
class PreparedMember:
    """A worker that may enter a group.

    Attributes:
        replica: the model.
        others: the tasks that are no training; evaluation takes the parameters as they are.
    """

    replica: TrainedReplica
    others: OtherTasks


def prepare_member(
    framework: Framework, spec: JobSpec, module: ModelModule, session: Session, worker_index: int, job_dir: Path
) -> PreparedMember:
    """Builds the model, and describes it to the master.

    Args:
        framework: of the job's model.
        spec: the job.
        module: the user's module.
        session: the standing with the master.
        worker_index: this worker's index.
        job_dir: directory of the job's files.

    Raises:
        ElasticDLError: the user's module or the data do not allow it.
    """
    callbacks = framework.callbacks_of(module, spec)
    declared = declared_rules(callbacks)
    sources = JobSources(framework, spec, module)
    others = OtherTasks(framework, spec, module, session, sources, worker_index, job_dir, declared)
    rules = TrainingRules.of(spec, declared)
    replica = framework.prepare_replica(
        Preparation(
            spec,
            module,
            sources.make_source(sources.main, _ALL_ROWS),
            callbacks,
            rules.export_formats if spec.type is JobType.TRAINING else (),
            keeps_predictions=module.eval_metrics_fn is not None,
        )
    )
    others.use(_Present(replica, module))
    layout = replica.layout
    session.describe_model(describe(module, layout.dense, (), layout.optimizer, declared, framework.versions))
    return PreparedMember(replica, others)


@dataclass(frozen=True)
class _Present:
    """Predicts by the parameters that the replica has: members pause for an evaluation."""

    replica: TrainedReplica
    module: ModelModule

    @property
    def outputs(self) -> Outputs:
        """Names of the model's outputs."""
        return self.replica.outputs

    @property
    def evaluation_loss(self) -> LossOf:
        """The loss of labels and predictions."""
        return self.replica.evaluation_loss

    def infer(self, minibatches: Iterable[Minibatch], pin: int) -> Iterator[tuple[Minibatch, Tensors]]:
        """The predictions of minibatches."""
        for batch in minibatches:
            with self.module.guard("the model"):
                predictions = self.replica.predict(batch.features)
            yield batch, predictions

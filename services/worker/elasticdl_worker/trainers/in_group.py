"""Makes a worker ready to be a member of a group: the whole model in it, and the tasks that are no training."""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path

import structlog

from elasticdl_core.job import JobSpec, JobType
from elasticdl_core.shard import Shard
from elasticdl_core.task import Task, TaskId, TaskType
from elasticdl_core.training_rules import TrainingRules
from elasticdl_worker.device import device_turn
from elasticdl_worker.group.replica import copied, copies
from elasticdl_worker.master.session import Session
from elasticdl_worker.trainers.declared_rules import declared_rules
from elasticdl_worker.trainers.description import describe
from elasticdl_worker.trainers.framework import Framework, Preparation, TrainedReplica
from elasticdl_worker.trainers.job_sources import JobSources
from elasticdl_worker.trainers.other_tasks import OtherTasks
from elasticdl_worker.trainers.present_parameters import PresentParameters
from elasticdl_worker.user_code import ModelModule

_log = structlog.get_logger(__name__)
_MOST_ROWS = 1 << 12
_MANY = 16


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
    declared = declared_rules(framework.callbacks_of(module, spec))
    sources = JobSources(framework, spec, module)
    others = OtherTasks(framework, spec, module, session, sources, worker_index, job_dir, declared)
    replica = make_replica(framework, spec, module, sources, tries_export=worker_index == 0)
    if module.custom_data_reader is None:
        warm_up(replica, first_records(spec, module, sources))
    others.use(PresentParameters(replica, module))
    layout = replica.layout
    session.describe_model(
        {
            **describe(module, layout.dense, (), layout.optimizer, declared, framework.versions, layout.layers),
            "closed": list(layout.closed),
        }
    )
    return PreparedMember(replica, others)


def make_replica(
    framework: Framework, spec: JobSpec, module: ModelModule, sources: JobSources, *, tries_export: bool = False
) -> TrainedReplica:
    """Builds the model as members of a group have it.

    Args:
        framework: of the job's model.
        spec: the job.
        module: the user's module.
        sources: the job's data.
        tries_export: whether to see that the model can be written, too.

    Raises:
        ElasticDLError: the user's module or the data do not allow it.
    """
    callbacks = framework.callbacks_of(module, spec)
    rules = TrainingRules.of(spec, declared_rules(callbacks))
    return framework.prepare_replica(
        Preparation(
            spec,
            module,
            sources.make_source(sources.main, _most_rows(spec)),
            callbacks,
            rules.export_formats if tries_export and spec.type is JobType.TRAINING else (),
            keeps_predictions=module.eval_metrics_fn is not None,
        )
    )


def _most_rows(spec: JobSpec) -> int:
    """More rows than ``feed`` makes of the records of one pass, which come as one minibatch.

    No more than that: a dataset of TensorFlow takes time for each row that a batch might have, minutes for 2**30.
    """
    return max(_MOST_ROWS, _MANY * spec.minibatch_size)


def first_records(spec: JobSpec, module: ModelModule, sources: JobSources, minibatches: int = 1) -> Task | None:
    """A task of so many minibatches, or fewer: the first records of the data; None if there are none."""
    with module.guard("custom_data_reader"):
        shard = next(iter(sources.reader(sources.main).create_shards()), None)
    if shard is None:
        return None
    end = min(shard.end, shard.start + minibatches * spec.microbatch_size)
    task = TaskId(TaskType.TRAINING, 0, 0, shard.start, end)
    return Task(task, Shard(shard.name, shard.start, end))


def warm_up(replica: TrainedReplica, task: Task | None) -> None:
    """Does all that a step does, once, and takes it back: the first step of a newcomer costs the others no more.

    What goes wrong here goes wrong again where it counts, and is told there.

    Args:
        replica: as it was built.
        task: the records to do it with; None for none.
    """
    begin = copied(replica.state())
    try:
        replica.digest()
        if task is None:
            return
        data = replica.read(task, task.shard.start, task.shard.end)
        with device_turn():
            given = replica.compute(1, 0, data, 0) if data.fed else None
        if given is not None and given.rows:
            replica.apply(copies(replica.memory, given.arrays), given.rows, 0)
    except Exception as error:
        _log.info("not warmed up", error=str(error))
    finally:
        replica.load(begin)

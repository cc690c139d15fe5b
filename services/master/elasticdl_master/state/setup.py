"""The findings of a master that takes a job: the input from which the state machine is made."""

from __future__ import annotations

from collections.abc import Collection, Mapping, Sequence
from dataclasses import dataclass, field, replace
from typing import Any

from elasticdl_core.checkpoint_manifest import Manifest
from elasticdl_core.job import JobSpec, JobState
from elasticdl_core.job.strategy import StrategyChoice
from elasticdl_core.ports.launcher import ProcessStatus
from elasticdl_core.task import TaskId
from elasticdl_master.queue.port import Contents
from elasticdl_master.state.instructions import PostEvaluation


@dataclass(frozen=True)
class Setup:
    """Everything known at the start.

    Attributes:
        spec: the job.
        epoch: this master's epoch.
        state: where the job stands.
        desired: what is wanted of it.
        target_workers: how many workers it shall have.
        plan: the durable plan, if an earlier master completed it.
        done: durable done-marks.
        accounts: what became of the records of some of them, by task.
        manifests: committed checkpoints, oldest first.
        initial: the checkpoint of another job to start from.
        evaluations: number of the last evaluation that was published: numbers go on from there.
        evaluated_epochs: number of complete epochs at each of them.
        contents: what the queue's store holds, if it holds the queue.
        processes: the job's processes that the launcher knows.
        lists_by_worker: whether a worker must list the shards, because the reader is the user's.
        output: where the export, or predictions, go.
        measured: speeds, cost of a change and service received that earlier masters reported, and the last loss and
            metrics.
        strategy: how the job is distributed, and why so; None for what the specification alone says.
    """

    spec: JobSpec
    epoch: int = 1
    state: JobState = JobState.STARTING
    desired: str = "run"
    target_workers: int = 1
    plan: Mapping[str, Any] | None = None
    done: Sequence[TaskId] = ()
    accounts: Mapping[str, Any] = field(default_factory=dict)
    manifests: Sequence[Manifest] = ()
    initial: Manifest | None = None
    evaluations: int = 0
    evaluated_epochs: frozenset[int] = frozenset()
    contents: Contents | None = None
    processes: Sequence[ProcessStatus] = field(default_factory=list)
    lists_by_worker: bool = False
    output: str = ""
    measured: Mapping[str, Any] = field(default_factory=dict)
    strategy: StrategyChoice | None = None

    def with_published(self, evaluations: Collection[PostEvaluation]) -> Setup:
        """The same, with evaluations that an earlier master decided to publish, and that still wait for the api."""
        return replace(
            self,
            evaluations=max((self.evaluations, *(one.number for one in evaluations))),
            evaluated_epochs=self.evaluated_epochs | {one.training_epoch for one in evaluations},
        )

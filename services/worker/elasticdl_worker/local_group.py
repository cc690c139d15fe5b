"""A local run of a job that a group would train: one process makes the updates of all members."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any

from elasticdl.data import DataReader
from elasticdl_core.group.steps import Step
from elasticdl_core.job import JobSpec
from elasticdl_core.job.strategy import choose_strategy, settled_strategy
from elasticdl_core.task import Task
from elasticdl_worker.group.alone import UpdateOutcome, make_update
from elasticdl_worker.group.replica import copied
from elasticdl_worker.group.state_files import CheckpointPart, read_state
from elasticdl_worker.trainers.export_request import find_checkpoint, locate_checkpoint
from elasticdl_worker.trainers.framework import Framework, Outputs
from elasticdl_worker.trainers.in_group import make_replica
from elasticdl_worker.trainers.inspection import inspect_model, sized_for_group
from elasticdl_worker.trainers.job_sources import JobSources
from elasticdl_worker.trainers.minibatch import Tensors
from elasticdl_worker.trainers.output_files import OutputFile
from elasticdl_worker.user_code import ModelModule


def as_on_a_cluster(framework: Framework, spec: JobSpec, zoo: Path) -> JobSpec:
    """The job with the strategy that a master would choose, where that says how its updates are computed."""
    if settled_strategy(spec) is not None or sized_for_group(spec).microbatches_per_step == 1:
        return spec
    if spec.checkpoint_dir_for_init and find_checkpoint(spec.checkpoint_dir_for_init, with_slots=False)[0].tables:
        return spec
    return choose_strategy(spec, inspect_model(framework, sized_for_group(spec), zoo)).applied_to(spec)


class LocalGroup:
    """The only member of a group, in the place of a model that is trained by whole minibatches.

    Args:
        framework: of the model.
        spec: the job, by ``AllReduceStrategy``.
        module: the user's module.

    Attributes:
        epoch: which epoch the next update is of.
    """

    def __init__(self, framework: Framework, spec: JobSpec, module: ModelModule) -> None:
        self._framework = framework
        self._sources = JobSources(framework, spec, module)
        self._replica = make_replica(framework, spec, module, self._sources, tries_export=True)
        self._begun = 0
        self.epoch = 0

    @property
    def reader(self) -> DataReader:
        """Of the training data."""
        return self._sources.reader(self._sources.main)

    @property
    def outputs(self) -> Outputs:
        """Names of the model's outputs."""
        return self._replica.outputs

    @property
    def version(self) -> int:
        """The model version, with the updates of a checkpoint."""
        return self._replica.version

    @property
    def steps(self) -> int:
        """Updates so far."""
        return self.version - self._begun

    @property
    def learning_rate(self) -> float | None:
        """The rate of the latest update."""
        return self._replica.learning_rate()

    def update(self, task: Task, step: Step) -> UpdateOutcome:
        """Makes an update of the records of a step."""
        return make_update(self._replica, task, step)

    def predict(self, features: Tensors) -> Tensors:
        """The model's outputs, in inference mode."""
        return self._replica.predict(features)

    def evaluation_loss(self, labels: Tensors, predictions: Tensors) -> Any:
        """The loss of predictions without regularisation."""
        return self._replica.evaluation_loss(labels, predictions)

    def restore(self, path: str) -> None:
        """Begins from a checkpoint: a directory with a manifest, or a directory of such directories."""
        directory, files, _ = locate_checkpoint(path, self._replica.layout.layers)
        self._replica.load(read_state(directory, files, self._replica.layout)[0])
        self._begun = self._replica.version

    def checkpoint(self) -> CheckpointPart:
        """A copy of all that training goes on from, as a group of one writes it."""
        return CheckpointPart(self._replica.layout, copied(self._replica.state()), 0, 1, {})

    def export(self, output: Path, formats: Sequence[str]) -> list[OutputFile]:
        """Writes the trained model into a directory."""
        return self._framework.export_replica(self._replica, output, formats)

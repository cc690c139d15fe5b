"""The engine of a worker that evaluates or predicts by itself: it holds a whole checkpoint, and trains nothing."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from elasticdl_core.errors import DataError, InvalidInputError, UnavailableError
from elasticdl_core.job import JobSpec
from elasticdl_worker.master.client import LeasedTask
from elasticdl_worker.master.session import Session
from elasticdl_worker.reporting.accounts import Intake, TaskAccount
from elasticdl_worker.trainers.declared_rules import declared_rules
from elasticdl_worker.trainers.engine import NoMoreTasks, OtherTask, TaskItem, TaskOutcome, TaskStep
from elasticdl_worker.trainers.framework import Framework, Preparation
from elasticdl_worker.trainers.job_sources import JobSources
from elasticdl_worker.trainers.other_tasks import OtherTasks
from elasticdl_worker.trainers.present_parameters import PresentParameters
from elasticdl_worker.user_code import ModelModule


class CheckpointEngine:
    """The engine of a worker of a job without parameter servers that does not train.

    Args:
        framework: of the job's model.
        spec: the job; its ``checkpoint_dir_for_init`` is the one checkpoint that all workers read.
        module: the user's module.
        session: the standing with the master.
        worker_index: this worker's index.
        job_dir: directory of the job's files.

    Attributes:
        version: the model version of the checkpoint; 0 before it is read.
    """

    def __init__(
        self,
        framework: Framework,
        spec: JobSpec,
        module: ModelModule,
        session: Session,
        worker_index: int,
        job_dir: Path,
    ) -> None:
        self._framework = framework
        self._spec = spec
        self._module = module
        self._session = session
        self._sources = JobSources(framework, spec, module)
        self._worker_index = worker_index
        self._job_dir = job_dir
        self.version = 0

    def prepare(self) -> None:
        """Builds the model, and reads the checkpoint into it.

        Raises:
            ElasticDLError: the user's module, the data or the checkpoint do not allow it.
        """
        spec, module, sources = self._spec, self._module, self._sources
        callbacks = self._framework.callbacks_of(module, spec)
        declared = declared_rules(callbacks)
        self._others = OtherTasks(
            self._framework, spec, module, self._session, sources, self._worker_index, self._job_dir, declared
        )
        model = self._framework.prepare_local(Preparation(spec, module, sources.source(sources.main), callbacks))
        try:
            model.restore(spec.checkpoint_dir_for_init)
        except InvalidInputError as error:
            # No other worker would find it otherwise.
            raise DataError(error.message, fix=error.fix) from error
        self.version = model.version
        self._session.progress.set_version(model.version)
        self._others.try_predictions(model)
        self._others.use(PresentParameters(model, module))

    def next_item(self, *, wait: bool) -> TaskItem | NoMoreTasks | None:
        """The next thing to work on; None if nothing is ready."""
        if not wait:
            return None
        lease = self._session.lease_task()
        return NoMoreTasks() if lease is None else OtherTask(lease)

    def run_task(self, lease: LeasedTask) -> TaskOutcome:
        """Runs a task that is not training."""
        return self._others.run(lease)

    # -- what there is in training alone ---------------------------------------------------------------------------

    @property
    def ordered(self) -> bool:
        """Whether a task's records come in order."""
        return self._sources.source(self._sources.main).ordered

    @property
    def at_limit(self) -> bool:
        """Whether the job has made its last update: it makes none."""
        return False

    def train(self, step: TaskStep) -> None:
        """Trains on the minibatches of a step, of which there is none.

        Raises:
            UnavailableError: always.
        """
        raise UnavailableError("this job does not train", fix="see the log of the master")

    def call_after_pushes(self, action: Callable[[], None]) -> None:
        """Calls ``action``: nothing is pushed."""
        action()

    def wait_for_pushes(self) -> None:
        """Does nothing: nothing is pushed."""

    def close_account(self, lease: LeasedTask, intake: Intake | None = None) -> TaskAccount:
        """The account of a training task: it is empty."""
        return TaskAccount(0, 0)

    def drop_account(self, lease: LeasedTask) -> None:
        """Does nothing: there are no accounts."""

    def stop_reading(self) -> list[LeasedTask]:
        """Ends the reading ahead, of which there is none."""
        return []

    def take_untrained(self, lease: LeasedTask) -> int:
        """Records that were left out of training: none."""
        return 0

    def minibatches_of(self, records: int) -> int:
        """Number of minibatches that so many records make."""
        return -(-records // self._spec.minibatch_size)

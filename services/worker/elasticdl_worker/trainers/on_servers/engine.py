"""The engine of a worker with parameter servers, in any framework, behind the task loop's protocol."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

from elasticdl.modes import Mode
from elasticdl_core.job import JobSpec, JobType
from elasticdl_core.model import OptimizerSpec, UpdateClipping
from elasticdl_core.training_rules import TrainingRules
from elasticdl_worker.master.client import LeasedTask
from elasticdl_worker.master.session import Session
from elasticdl_worker.parameters import ParameterClient
from elasticdl_worker.reporting.accounts import Intake, TaskAccount
from elasticdl_worker.trainers.declared_rules import declared_rules
from elasticdl_worker.trainers.description import describe
from elasticdl_worker.trainers.engine import TaskOutcome
from elasticdl_worker.trainers.framework import Framework, Preparation, training_metrics
from elasticdl_worker.trainers.job_sources import JobSources
from elasticdl_worker.trainers.on_servers.read_ahead import Item, ReadAhead, TrainingStep
from elasticdl_worker.trainers.on_servers.remaining_steps import RemainingSteps
from elasticdl_worker.trainers.on_servers.trainer import Trainer, round_clipping, update_mode
from elasticdl_worker.trainers.other_tasks import OtherTasks
from elasticdl_worker.user_code import ModelModule


class ParameterServerEngine:
    """The engine of a worker whose job has parameter servers.

    Args:
        framework: of the job's model.
        spec: the job.
        module: the user's module.
        session: the standing with the master.
        parameters: the parameter servers.
        worker_index: this worker's index.
        job_dir: directory of the job's files.
    """

    def __init__(
        self,
        framework: Framework,
        spec: JobSpec,
        module: ModelModule,
        session: Session,
        parameters: ParameterClient,
        worker_index: int,
        job_dir: Path,
    ) -> None:
        self._framework = framework
        self._spec = spec
        self._module = module
        self._session = session
        self._parameters = parameters
        self._worker_index = worker_index
        self._job_dir = job_dir
        self._sources = JobSources(framework, spec, module)
        self._reading: ReadAhead | None = None

    @property
    def version(self) -> int:
        """The highest model version seen."""
        return self._trainer.version

    @property
    def ordered(self) -> bool:
        """Whether the records trained on so far are the first ones of the task: in order, and none passed over."""
        sources = self._sources
        return sources.source(Mode.TRAINING).ordered and not sources.reader(Mode.TRAINING).skipped_records

    def prepare(self) -> None:
        """Builds the model, pushes it if no worker has yet, describes it to the master, and starts to read ahead.

        Raises:
            ElasticDLError: the user's module, the data or the parameter servers do not allow it.
        """
        spec, module = self._spec, self._module
        callbacks = self._framework.callbacks_of(module, spec)
        declared = declared_rules(callbacks)
        self._others = OtherTasks(
            self._framework,
            spec,
            module,
            self._session,
            self._sources,
            self._worker_index,
            self._job_dir,
            declared,
        )
        rules = TrainingRules.of(spec, declared)
        stop_at = self._session.start_version + rules.max_steps if rules.max_steps else 0
        remaining_steps = RemainingSteps(spec.num_epochs, stop_at)
        trains = spec.type is JobType.TRAINING
        job = self._job = self._framework.prepare(
            Preparation(
                spec,
                module,
                self._sources.source(self._sources.main),
                callbacks,
                rules.export_formats if trains and not self._worker_index else (),
                remaining_steps.estimate,
                keeps_predictions=trains and module.eval_metrics_fn is not None,
            )
        )
        metrics = training_metrics(self._framework, module, job.model.outputs) if trains else None
        progress = self._session.progress
        self._trainer = Trainer(
            spec, module, job, self._parameters, self._session, progress, remaining_steps, metrics
        )
        self._others.use(self._trainer)
        optimizer = job.optimizer.spec if job.optimizer else None
        served = optimizer or OptimizerSpec("sgd", {"learning_rate": 0.0})
        clipping = round_clipping(spec, job.optimizer.clipping_of_updates if job.optimizer else UpdateClipping())
        mode = update_mode(spec, stop_at, clipping)
        self._session.call(self._parameters.ensure_model(job.model.values(), job.dense, job.tables, served, mode))
        job.model.vary_randomness(self._worker_index)
        self._session.describe_model(
            describe(module, job.dense, job.tables, optimizer, declared, self._framework.versions, job.model.layers)
        )
        self._start_reading()

    def next_item(self, *, wait: bool) -> Item | None:
        """The next thing to work on; None if nothing is ready."""
        assert self._reading is not None
        return self._reading.take() if wait else self._reading.take_ready()

    def train(self, step: TrainingStep) -> None:
        """Trains on one or more minibatches."""
        self._trainer.train(step)

    def call_after_pushes(self, action: Callable[[], None]) -> None:
        """Calls ``action`` when every push so far was accepted."""
        self._trainer.call_after_pushes(action)

    def wait_for_pushes(self) -> None:
        """Waits for every push."""
        self._trainer.wait_for_pushes()

    def stop_reading(self) -> list[LeasedTask]:
        """Ends the reading ahead."""
        return self._reading.stop() if self._reading is not None else []

    @property
    def at_limit(self) -> bool:
        """Whether the job has made its last update."""
        return self._trainer.at_limit

    def take_untrained(self, lease: LeasedTask) -> int:
        """Records at the end of a task that were left out because the job has made its last update."""
        return self._trainer.take_untrained(lease.token)

    def minibatches_of(self, records: int) -> int:
        """Number of minibatches that so many records make."""
        return -(-records // self._spec.minibatch_size)

    def close_account(self, lease: LeasedTask, intake: Intake | None = None) -> TaskAccount:
        """Ends the account of a training task, or of the part of one that is done."""
        return self._trainer.accounts.close(lease.token, intake)

    def drop_account(self, lease: LeasedTask) -> None:
        """Forgets the account of a task that failed."""
        self._trainer.accounts.drop(lease.token)

    def run_task(self, lease: LeasedTask) -> TaskOutcome:
        """Runs a task that is not training."""
        return self._others.run(lease)

    def _start_reading(self) -> None:
        read_ahead = self._trainer.read_ahead
        if read_ahead is not None and self._spec.type is JobType.TRAINING and self._job.model.tables:
            # Traced here: the reading thread must not trace while this one does.
            self._job.programs.prepare_collect(training=True)
        self._reading = ReadAhead(
            self._session.lease_task,
            self._session.is_lost,
            lambda: self._sources.source(Mode.TRAINING),
            read_ahead,
            self._trainer.depth,
            self._spec.get_model_steps,
        )
        self._reading.start()

"""The engine of a worker with parameter servers, in any framework, behind the task loop's protocol."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from pathlib import Path

from elasticdl.data import DataReader, create_data_reader
from elasticdl.modes import Mode
from elasticdl_core.job import JobSpec, JobType
from elasticdl_core.json_numbers import from_json
from elasticdl_core.model import OptimizerSpec
from elasticdl_core.task import TaskType
from elasticdl_core.training_rules import TrainingRules
from elasticdl_worker.master.client import LeasedTask
from elasticdl_worker.master.session import Session
from elasticdl_worker.parameters import ParameterClient
from elasticdl_worker.reporting.accounts import Intake, TaskAccount
from elasticdl_worker.trainers.declared_rules import declared_rules
from elasticdl_worker.trainers.description import describe
from elasticdl_worker.trainers.engine import TaskOutcome
from elasticdl_worker.trainers.export_request import ExportRequest
from elasticdl_worker.trainers.framework import Framework, Metrics, MinibatchSource, Preparation, training_metrics
from elasticdl_worker.trainers.minibatch import Minibatch
from elasticdl_worker.trainers.on_servers.read_ahead import Item, ReadAhead, TrainingStep
from elasticdl_worker.trainers.on_servers.remaining_steps import RemainingSteps
from elasticdl_worker.trainers.on_servers.trainer import Trainer, update_mode
from elasticdl_worker.trainers.predictions import PredictionWriter
from elasticdl_worker.user_code import ModelModule

_MODES = {
    JobType.TRAINING: Mode.TRAINING,
    JobType.EVALUATION: Mode.EVALUATION,
    JobType.PREDICTION: Mode.PREDICTION,
}


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
        self._readers: dict[Mode, DataReader] = {}
        self._sources: dict[Mode, MinibatchSource] = {}
        self._metrics: Metrics | None = None
        self._writer: PredictionWriter | None = None
        self._reading: ReadAhead | None = None
        self._compiled: set[Mode] = set()

    @property
    def version(self) -> int:
        """The highest model version seen."""
        return self._trainer.version

    @property
    def ordered(self) -> bool:
        """Whether the records trained on so far are the first ones of the task: in order, and none passed over."""
        return self._source(Mode.TRAINING).ordered and not self._reader(Mode.TRAINING).skipped_records

    def prepare(self) -> None:
        """Builds the model, pushes it if no worker has yet, describes it to the master, and starts to read ahead.

        Raises:
            ElasticDLError: the user's module, the data or the parameter servers do not allow it.
        """
        spec, module = self._spec, self._module
        if spec.type is JobType.PREDICTION:  # refuses now what would end the first task
            output = Path(spec.output or self._job_dir / "artifacts" / "predictions")
            self._writer = PredictionWriter(module, output, self._worker_index, spec.prediction_format)
        callbacks = self._framework.callbacks_of(module, spec)
        self._declared = declared_rules(callbacks)
        rules = TrainingRules.of(spec, self._declared)
        stop_at = self._session.start_version + rules.max_steps if rules.max_steps else 0
        remaining_steps = RemainingSteps(spec.num_epochs, stop_at)
        trains = spec.type is JobType.TRAINING
        job = self._job = self._framework.prepare(
            Preparation(
                spec,
                module,
                self._source(_MODES[spec.type]),
                callbacks,
                rules.export_formats if trains else (),
                remaining_steps.estimate,
                keeps_predictions=trains and module.eval_metrics_fn is not None,
            )
        )
        metrics = training_metrics(self._framework, module, job.model.outputs) if trains else None
        if spec.validation_data:
            self._evaluation_metrics()  # refuses now what would end the first evaluation
        optimizer = job.optimizer.spec if job.optimizer else None
        served = optimizer or OptimizerSpec("sgd", {"learning_rate": 0.0})
        mode = update_mode(spec, stop_at)
        self._session.call(self._parameters.ensure_model(job.model.values(), job.dense, job.tables, served, mode))
        job.model.vary_randomness(self._worker_index)
        progress = self._session.progress
        self._trainer = Trainer(
            spec, module, job, self._parameters, self._session, progress, remaining_steps, metrics
        )
        self._session.describe_model(
            describe(module, job.dense, job.tables, optimizer, self._declared, self._framework.versions)
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
        phases: dict[TaskType, tuple[str, Callable[[LeasedTask], TaskOutcome]]] = {
            TaskType.EVALUATION: ("evaluating", self._evaluate),
            TaskType.EVALUATION_SUMMARY: ("evaluating", self._summarise),
            TaskType.PREDICTION: ("predicting", self._predict),
            TaskType.LIST_SHARDS: ("listing", self._list_shards),
            TaskType.EXPORT: ("exporting", self._export),
        }
        phase, action = phases[lease.task.id.type]
        self._session.progress.set_phase(phase)
        return action(lease)

    def _start_reading(self) -> None:
        read_ahead = self._trainer.read_ahead
        if read_ahead is not None and self._spec.type is JobType.TRAINING and self._job.model.tables:
            # Traced here: the reading thread must not trace while this one does.
            self._job.programs.prepare_collect(training=True)
        self._reading = ReadAhead(
            self._session.lease_task,
            self._session.is_lost,
            lambda: self._source(Mode.TRAINING),
            read_ahead,
            self._trainer.depth,
            self._spec.get_model_steps,
        )
        self._reading.start()

    def _origin(self, mode: Mode) -> str:
        spec = self._spec
        return {
            Mode.TRAINING: spec.training_data,
            Mode.EVALUATION: spec.validation_data,
            Mode.PREDICTION: spec.prediction_data,
        }[mode]

    def _reader(self, mode: Mode) -> DataReader:
        if mode not in self._readers:
            with self._module.guard("custom_data_reader"):
                self._readers[mode] = create_data_reader(
                    self._origin(mode),
                    self._spec.records_per_task,
                    self._spec.data_reader_params,
                    self._module.custom_data_reader,
                )
        return self._readers[mode]

    def _source(self, mode: Mode) -> MinibatchSource:
        if mode not in self._sources:
            self._sources[mode] = self._framework.make_source(
                self._reader(mode), self._module, str(mode), self._spec.minibatch_size
            )
        return self._sources[mode]

    def _evaluation_metrics(self) -> Metrics:
        if self._metrics is None:
            loss = self._job.programs.evaluation_loss if self._module.loss is not None else None
            self._metrics = self._framework.make_metrics(self._module, loss, self._job.model.outputs)
        return self._metrics

    def _evaluate(self, lease: LeasedTask) -> TaskOutcome:
        metrics = self._evaluation_metrics()
        metrics.reset()
        payload = json.loads(lease.task.payload or "{}")
        pin = int(payload.get("pin", lease.task.id.epoch))
        seen = self._trainer.evaluate(self._followed(lease, Mode.EVALUATION, "evaluating"), metrics, pin)
        account = TaskAccount(seen, seen, self._source(Mode.EVALUATION).intake.skips)
        return TaskOutcome(lease.task.shard.records, {"states": metrics.state(), "records": seen}, account)

    def _summarise(self, lease: LeasedTask) -> TaskOutcome:
        data = json.loads(lease.task.payload)
        return TaskOutcome(0, {"metrics": self._evaluation_metrics().results(from_json(data.get("states", data)))})

    def _predict(self, lease: LeasedTask) -> TaskOutcome:
        assert self._writer is not None
        before = {file["path"] for file in self._writer.list_files()}
        with self._writer.write_task(lease.task.shard) as write:
            to_numpy = self._framework.to_numpy
            seen = self._trainer.predict(
                self._followed(lease, Mode.PREDICTION, "predicting"),
                lambda predictions, first: write(to_numpy(predictions), first),
            )
        files = [file for file in self._writer.list_files() if file["path"] not in before]
        return TaskOutcome(
            lease.task.shard.records,
            {"files": files},
            TaskAccount(seen, seen, self._source(Mode.PREDICTION).intake.skips),
        )

    def _followed(self, lease: LeasedTask, mode: Mode, phase: str) -> Iterator[Minibatch]:
        """The minibatches of a task; sets the position and the phase while they are processed."""
        progress, shard = self._session.progress, lease.task.shard
        position = shard.start
        for batch in self._source(mode).minibatches(shard):
            progress.set_phase(phase if mode in self._compiled else "compiling")
            yield batch
            self._compiled.add(mode)
            progress.set_phase(phase)
            position = min(position + batch.records, shard.end)
            progress.advance(lease.token, position)

    def _list_shards(self, lease: LeasedTask) -> TaskOutcome:
        payload = json.loads(lease.task.payload or "{}")
        purpose = payload.get("purpose") or str(_MODES[self._spec.type])
        reader = self._reader(Mode(purpose))
        with self._module.guard("custom_data_reader.create_shards"):
            shards = list(reader.create_shards())
        self._session.report_shards(lease, shards)
        return TaskOutcome(0, {"shards": len(shards)})

    def _export(self, lease: LeasedTask) -> TaskOutcome:
        payload = json.loads(lease.task.payload or "{}")
        request = ExportRequest.of(payload, self._spec, self._job_dir, self._declared)
        source = self._source(_MODES[self._spec.type])
        files = self._framework.export_checkpoint(self._module, source, request, self._spec.seed)
        return TaskOutcome(0, {"files": files})

"""The tasks of a job that are no training: evaluation, prediction, export, the list of shards."""

from __future__ import annotations

import contextlib
import json
from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from pathlib import Path
from typing import Protocol

import structlog

from elasticdl.modes import Mode
from elasticdl_core.errors import UserCodeError
from elasticdl_core.job import JobSpec, JobType
from elasticdl_core.json_numbers import from_json
from elasticdl_core.task import TaskType
from elasticdl_core.training_rules import DeclaredRules, TrainingRules
from elasticdl_worker.master.client import LeasedTask
from elasticdl_worker.master.session import Session
from elasticdl_worker.reporting.accounts import TaskAccount
from elasticdl_worker.trainers.engine import TaskOutcome
from elasticdl_worker.trainers.export_request import ExportRequest
from elasticdl_worker.trainers.framework import Framework, LossOf, Metrics, MinibatchSource, Outputs
from elasticdl_worker.trainers.job_sources import JobSources
from elasticdl_worker.trainers.minibatch import Minibatch, Tensors
from elasticdl_worker.trainers.output_files import OutputFile, delivered, output_folder
from elasticdl_worker.trainers.prediction_trial import try_outputs
from elasticdl_worker.trainers.predictions import PredictionWriter
from elasticdl_worker.trainers.present_parameters import HeldModel
from elasticdl_worker.user_code import ModelModule, importing_apart

_log = structlog.get_logger(__name__)


class Inference(Protocol):
    """A model that predicts."""

    @property
    def outputs(self) -> Outputs:
        """Names of the model's outputs."""

    @property
    def evaluation_loss(self) -> LossOf:
        """The loss of labels and predictions, without regularisation."""

    def infer(self, minibatches: Iterable[Minibatch], pin: int) -> Iterator[tuple[Minibatch, Tensors]]:
        """The predictions of minibatches, one after the other.

        Args:
            minibatches: these.
            pin: number of the pinned parameters to take; 0 for the present ones.
        """


class OtherTasks:
    """Runs them.

    Args:
        framework: of the job's model.
        spec: the job.
        module: the user's module.
        session: the standing with the master.
        sources: of the job's data.
        worker_index: this worker's index.
        job_dir: directory of the job's files.
        declared: what the callbacks ask for.

    Raises:
        ElasticDLError: the predictions of the job could not be written.
    """

    def __init__(
        self,
        framework: Framework,
        spec: JobSpec,
        module: ModelModule,
        session: Session,
        sources: JobSources,
        worker_index: int,
        job_dir: Path,
        declared: DeclaredRules,
    ) -> None:
        self._framework = framework
        self._spec = spec
        self._module = module
        self._session = session
        self._sources = sources
        self._job_dir = job_dir
        self._declared = declared
        self._compiled: set[Mode] = set()
        self._writer: PredictionWriter | None = None
        self._metrics: Metrics | None = None
        if spec.type is JobType.PREDICTION:  # refuses now what would end the first task
            output = spec.output or job_dir / "artifacts" / "predictions"
            self._writer = PredictionWriter(module, output, worker_index, spec.prediction_format)

    def use(self, model: Inference) -> None:
        """Sets the model; refuses now what would end the first evaluation.

        Raises:
            UserCodeError: the module's metrics do not suit the model, or the best model is to be kept by another one,
                or its ``feed`` does not suit evaluations.
        """
        self._model = model
        if self._spec.validation_data:
            metrics = self._evaluation_metrics()
            best = TrainingRules.of(self._spec, self._declared).keep_best
            if best is not None:
                best.check_names(metrics.names)
            self._sources.source(Mode.EVALUATION)

    def try_predictions(self, model: HeldModel) -> None:
        """Refuses now what would end the first prediction: outputs that have no row for each record.

        Raises:
            UserCodeError: the model has such an output.
        """
        if self._writer is not None and self._writer.makes_files and self._module.custom_data_reader is None:
            source, reader = self._sources.source(Mode.PREDICTION), self._sources.reader(Mode.PREDICTION)
            try_outputs(self._framework, source, reader, model, self._spec.minibatch_size)

    def run(self, lease: LeasedTask) -> TaskOutcome:
        """Runs a task."""
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

    def _evaluation_metrics(self) -> Metrics:
        if self._metrics is None:
            loss = self._model.evaluation_loss if self._module.loss is not None else None
            self._metrics = self._framework.make_metrics(self._module, loss, self._model.outputs)
        return self._metrics

    def _evaluate(self, lease: LeasedTask) -> TaskOutcome:
        metrics = self._evaluation_metrics()
        metrics.reset()
        payload = json.loads(lease.task.payload or "{}")
        pin = int(payload.get("pin", lease.task.id.epoch))
        seen = 0
        for batch, predictions in self._model.infer(self._followed(lease, Mode.EVALUATION, "evaluating"), pin):
            metrics.update(batch.labels, predictions, batch.records)
            seen += batch.records
        account = TaskAccount(seen, seen, self._sources.source(Mode.EVALUATION).intake.skips)
        return TaskOutcome(lease.task.shard.records, {"states": metrics.state(), "records": seen}, account)

    def _summarise(self, lease: LeasedTask) -> TaskOutcome:
        data = json.loads(lease.task.payload)
        return TaskOutcome(0, {"metrics": self._evaluation_metrics().results(from_json(data.get("states", data)))})

    def _predict(self, lease: LeasedTask) -> TaskOutcome:
        assert self._writer is not None
        self._writer.take_new()  # of a task that failed
        seen = 0
        with self._writer.write_task(lease.task.shard) as write:
            for batch, predictions in self._model.infer(self._followed(lease, Mode.PREDICTION, "predicting"), 0):
                write(self._framework.to_numpy(predictions), batch.first, batch.records)
                seen += batch.records
        files = self._writer.take_new()
        account = TaskAccount(seen, seen, self._sources.source(Mode.PREDICTION).intake.skips)
        return TaskOutcome(lease.task.shard.records, {"files": files}, account)

    def _followed(self, lease: LeasedTask, mode: Mode, phase: str) -> Iterator[Minibatch]:
        """The minibatches of a task; sets the position and the phase while they are processed."""
        progress, shard = self._session.progress, lease.task.shard
        position = shard.start
        for batch in self._sources.source(mode).minibatches(shard):
            progress.set_phase(phase if mode in self._compiled else "compiling")
            yield batch
            self._compiled.add(mode)
            progress.set_phase(phase)
            position = min(position + batch.records, shard.end)
            progress.advance(lease.token, position)

    def _list_shards(self, lease: LeasedTask) -> TaskOutcome:
        payload = json.loads(lease.task.payload or "{}")
        reader = self._sources.reader(Mode(payload.get("purpose") or str(self._sources.main)))
        with self._module.guard("custom_data_reader.create_shards"):
            shards = list(reader.create_shards())
        self._session.report_shards(lease, shards)
        return TaskOutcome(0, {"shards": len(shards)})

    def _export(self, lease: LeasedTask) -> TaskOutcome:
        payload = json.loads(lease.task.payload or "{}")
        request = ExportRequest.of(payload, self._spec, self._job_dir, self._declared)
        source = self._sources.source(self._sources.main)
        with module_apart(self._framework, self._spec, self._module) as module:
            files = export_to(self._framework, module, source, request, self._spec.seed)
        return TaskOutcome(0, {"files": files})


def export_to(
    framework: Framework, module: ModelModule, source: MinibatchSource, request: ExportRequest, seed: int
) -> list[OutputFile]:
    """Exports a checkpoint to the request's output, which may be a URL.

    Args:
        framework: of the model.
        module: the user's module.
        source: of the data that the model was trained on.
        request: the checkpoint, the formats, and where to.
        seed: of the job.
    """
    with output_folder(request.output) as folder:
        files = framework.export_checkpoint(module, source, replace(request, output=str(folder)), seed)
        return delivered(files, request.output)


@contextlib.contextmanager
def module_apart(framework: Framework, spec: JobSpec, module: ModelModule) -> Iterator[ModelModule]:
    """The user's module imported once more: what is built of it does not take the place of the model in use.

    A module may keep its model in a global, which its loss or metrics then ask.

    Args:
        framework: of the job's model.
        spec: the job.
        module: as it is in use.
    """
    if not module.roots:
        yield module
        return
    (zoo,) = module.roots
    with importing_apart(zoo):
        try:
            apart = framework.load_module(spec, zoo)
        except UserCodeError as error:  # as of a name that can be registered once
            _log.warning("the module cannot be imported twice", reason=error.message)
            apart = module
        yield apart

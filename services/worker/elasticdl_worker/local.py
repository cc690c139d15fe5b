"""Trains, evaluates or predicts in one process: no master, no parameter servers, the same model module.

``python -m elasticdl_worker local --spec spec.json --output DIR`` prints one JSON object a line on stdout. Both may
be given several times: such jobs run one after the other, each in a fork of the process, which imported TensorFlow.

- ``{"event": "started", "message"}``: how many records an update has, and how many updates an epoch; then, where
  tables have rows that an update may leave alone, by which rule they move
- ``{"event": "progress", "records", "total", "epoch", "step", "loss", "last_loss", "learning_rate",
  "training_metrics", "samples_per_second"}``; ``loss`` is the mean of the last 100 minibatches, the metrics are of
  every ``log_loss_steps``-th of the epoch so far
- ``{"event": "evaluation", "epoch", "step", "records", "metrics"}``; no metrics where no record was evaluated
- ``{"event": "skipped", "message"}``: records were passed over
- ``{"event": "done", "reason", "artifacts", "metrics", "training_metrics", "records", "steps", "skipped"}``:
  ``reason`` is why training ended, ``metrics`` are those of the last evaluation, ``skipped`` has one entry for each
  reason: ``{"of": "main" | "validation", "reason", "records", "example"}``
- ``{"event": "error", "message", "fix", "traceback"}``; the exit code is then 1.
"""

from __future__ import annotations

import argparse
import contextlib
import ctypes
import functools
import importlib
import json
import os
import signal
import sys
import traceback
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from elasticdl.data import DataReader, Shard, columns_of, create_data_reader, params_like, with_columns
from elasticdl.modes import Mode
from elasticdl_core.best_evaluation import BEST, mark_of
from elasticdl_core.checkpoint_manifest import Manifest
from elasticdl_core.devices import WHOLE
from elasticdl_core.errors import ElasticDLError, InvalidInputError, UserCodeError
from elasticdl_core.group.steps import Step
from elasticdl_core.job import JobSpec, JobType
from elasticdl_core.job.fields import ALL_REDUCE
from elasticdl_core.job.updates import updates_per_epoch, words_of_updates
from elasticdl_core.job.ways import refuse_locally
from elasticdl_core.json_numbers import to_json
from elasticdl_core.path_policy import is_url, join_place
from elasticdl_core.shuffling import RecordOrder, cut, joined_parts
from elasticdl_core.skips import SkipReason, Skips, doublings, rests_left_out, words
from elasticdl_core.task import Task, TaskId, TaskType
from elasticdl_core.training_rules import TrainingRules, check_trained, success_reason
from elasticdl_runtime.device_turns import DeviceGrant
from elasticdl_runtime.memory import keep_large_blocks
from elasticdl_runtime.object_store import try_out
from elasticdl_runtime.stored_checkpoints import find_checkpoint
from elasticdl_runtime.telemetry.logs import configure_local_logs
from elasticdl_worker import framework_environment
from elasticdl_worker.group.alone import steps_of
from elasticdl_worker.group.replica import take_all
from elasticdl_worker.local_checkpoints import LocalCheckpoints
from elasticdl_worker.local_group import LocalGroup, as_on_a_cluster
from elasticdl_worker.own_loop.local import run_local_script
from elasticdl_worker.reporting.local_progress import Emit, LocalProgress
from elasticdl_worker.trainers.declared_rules import declared_rules
from elasticdl_worker.trainers.export_request import ExportRequest
from elasticdl_worker.trainers.framework import (
    Framework,
    LocalSteps,
    Metrics,
    MinibatchSource,
    Preparation,
    training_metrics,
)
from elasticdl_worker.trainers.in_group import make_replica
from elasticdl_worker.trainers.job_sources import JobSources
from elasticdl_worker.trainers.minibatch import Minibatch
from elasticdl_worker.trainers.not_finite import NanPolicy
from elasticdl_worker.trainers.other_tasks import export_to, module_apart
from elasticdl_worker.trainers.output_files import OutputFile, delivered, output_folder
from elasticdl_worker.trainers.training_step import training_step
from elasticdl_worker.user_code import ModelModule

_PR_SET_PDEATHSIG = 1


def main(arguments: list[str]) -> int:
    """Runs ``elasticdl_worker local``; returns the exit code."""
    parser = argparse.ArgumentParser(prog="elasticdl_worker local", description=__doc__)
    parser.add_argument(
        "--spec", required=True, action="append", help="file with the job specification as JSON; '-' is stdin"
    )
    parser.add_argument("--output", default=[], action="append", help="directory of the model or the predictions")
    parsed = parser.parse_args(arguments)
    del sys.argv[1:]  # a module that parses its arguments when it is imported finds none of ours, as on a cluster
    framework_environment.prepare()
    outputs = parsed.output or [""] * len(parsed.spec)
    if len(parsed.spec) == 1:
        return _run_one(parsed.spec[0], outputs[0])
    importlib.import_module("elasticdl_worker.preload")
    return max(_run_forked(spec, output) for spec, output in zip(parsed.spec, outputs, strict=True))


def _run_forked(file: str, output: str) -> int:
    """Runs a job in a fork of this process, which has imported TensorFlow and begun nothing of it."""
    sys.stdout.flush()
    child = os.fork()
    if not child:
        code = 1
        try:
            ctypes.CDLL(None).prctl(_PR_SET_PDEATHSIG, signal.SIGKILL, 0, 0, 0)
            code = _run_one(file, output)
        except BaseException:
            traceback.print_exc()
        sys.stdout.flush()
        sys.stderr.flush()
        os._exit(code)
    try:
        _, status = os.waitpid(child, 0)
    except BaseException:  # Ctrl-C reaches both
        os.kill(child, signal.SIGKILL)
        os.waitpid(child, 0)
        raise
    code = os.waitstatus_to_exitcode(status)
    if code not in (0, 1):
        how = f"was killed by signal {-code}" if code < 0 else f"ended with exit code {code}"
        event = {"event": "error", "message": f"it {how}", "fix": "", "traceback": ""}
        print(json.dumps(event), flush=True)
    return abs(code)


def _run_one(file: str, output: str) -> int:
    return report_run(file, lambda spec, emit: run_local(spec, output or spec.output or "output", emit))


def report_run(file: str, run: Callable[[JobSpec, Emit], None]) -> int:
    """Does something with a job in this process, and prints its events as lines of JSON; returns the exit code.

    Args:
        file: has the job's fields as JSON; ``-`` is stdin.
        run: does it, and emits.
    """
    stdout = sys.stdout

    def emit(event: Mapping[str, object]) -> None:
        print(json.dumps(to_json(event), allow_nan=False), file=stdout, flush=True)

    try:
        configure_local_logs()
        text = sys.stdin.read() if file == "-" else Path(file).read_text()
        spec = JobSpec.from_mapping(json.loads(text))
        # The user's own prints must not get between the JSON lines.
        with contextlib.redirect_stdout(sys.stderr):
            run(spec, emit)
    except ElasticDLError as error:
        shown = error.traceback if isinstance(error, UserCodeError) else ""
        emit({"event": "error", "message": error.message, "fix": error.fix, "traceback": shown})
        return 1
    except (OSError, json.JSONDecodeError) as error:
        emit({"event": "error", "message": str(error), "fix": "give a readable --spec file", "traceback": ""})
        return 1
    except KeyboardInterrupt:
        return 130
    return 0


def run_local(spec: JobSpec, output: str | Path, emit: Emit) -> None:
    """Runs a job in this process.

    Args:
        spec: the job; ``model_zoo`` must be a directory.
        output: where the exported model, or the predictions, go: a folder, or a URL of a store.
        emit: gets the events of the module's docstring.

    Raises:
        ElasticDLError: the job cannot be done; says why.
    """
    if not spec.model_zoo:
        raise InvalidInputError("a local run needs the model zoo as a directory", fix="give --model_zoo DIR")
    refuse_locally(spec)
    output = str(output)
    writes = spec.type is not JobType.EVALUATION
    try_out(place for place in (output, spec.checkpoint_dir) if writes and is_url(place))
    from elasticdl_worker.trainers.choosing import load_framework  # which imports it

    if spec.checkpoint_dir_for_init:
        columns = find_checkpoint(spec.checkpoint_dir_for_init).get("columns")
        spec = replace(spec, data_reader_params=with_columns(spec.data_reader_params, columns))
    zoo = Path(spec.model_zoo)
    framework = load_framework(spec, zoo)
    if spec.worker_threads:
        framework.configure(spec.worker_threads)
    # One process, on the devices that it sees: of a share the limit of memory is what can be kept.
    asked = spec.worker_resource_request if spec.device_share else ""
    framework.use_devices(DeviceGrant(asked, min(spec.device_share or WHOLE, WHOLE) / WHOLE))
    if spec.runs_script:
        run_local_script(spec, output, emit)
        return
    if spec.type is JobType.TRAINING:
        spec = as_on_a_cluster(framework, spec, zoo)
        if spec.by_group and spec.fuses and spec.microbatches_per_step > 1:
            # Here the loss is of all records, but members would refuse one that theirs cannot be put together to.
            module = framework.load_module(spec, zoo)
            make_replica(framework, spec, module, JobSources(framework, spec, module))
    run = _LocalRun(framework, spec, framework.load_module(spec, zoo), emit)
    with contextlib.ExitStack() as stack:
        if spec.eager:
            stack.enter_context(framework.print_layer_outputs())
        if spec.type is JobType.TRAINING:
            run.train(output)
        elif spec.type is JobType.EVALUATION:
            run.evaluate_only()
        else:
            run.predict(output)


_Updates = Callable[[int], Iterator[Callable[[], None]]]
"""What makes each update of an epoch, by its number."""


@dataclass(frozen=True)
class _TrainingDriver:
    """The course of a local run's training.

    Attributes:
        reader: of the training data.
        trainer: the model.
        begin: gives the updates of an epoch, by the tasks of all of them and who is told of their progress.
    """

    reader: DataReader
    trainer: LocalSteps | LocalGroup
    begin: Callable[[list[Shard], LocalProgress], _Updates]


class _LocalRun:
    def __init__(self, framework: Framework, spec: JobSpec, module: ModelModule, emit: Emit) -> None:
        keep_large_blocks()
        self._framework = framework
        self._spec = spec
        self._module = module
        self._emit = emit
        self._callbacks = framework.callbacks_of(module, spec)
        self._declared = declared_rules(self._callbacks)
        self._rules = TrainingRules.of(spec, self._declared)
        self._left_out = self._skips = Skips()
        self._order = RecordOrder(spec.seed)
        self._validation_skips = Skips()
        self._readers: dict[str, DataReader] = {}

    def train(self, output: str) -> None:
        """Trains, evaluates at the end of each epoch (or every N steps), exports."""
        spec, module = self._spec, self._module
        module.need("loss")
        course = self._course()
        reader, trainer = course.reader, course.trainer
        self._readers["main"] = reader
        self._rules.check()
        evaluate = self._evaluator(trainer, reader)
        listed = list(reader.create_shards())
        shards = (joined_parts if spec.shuffle else cut)(listed, spec.records_per_task)
        self._order = RecordOrder(spec.seed, spec.shuffle_block, grain=reader.grain)
        self._order.extend(shards, listed)
        total = spec.num_epochs * sum(shard.records for shard in shards)
        progress = LocalProgress(self._emit, total, spec.log_loss_steps)
        updates = course.begin(shards, progress)
        self._tell_start(shards, getattr(trainer, "rule_of_rows", ""))
        metrics: dict[str, float] = {}
        stopped, evaluated_at, evaluations = "", -1, 0
        checkpoints = None
        best = self._rules.keep_best
        if LocalCheckpoints.are_wanted(spec) or best is not None:
            checkpoints = LocalCheckpoints(spec, output, trainer.checkpoint, trainer.version, columns_of(reader))

        def judge(epoch: int) -> str:
            nonlocal metrics, evaluated_at, evaluations
            assert evaluate is not None
            metrics, evaluated_at = evaluate(epoch), trainer.steps
            evaluations += 1
            if best is not None and checkpoints is not None:
                value = best.improved(metrics, mark_of(checkpoints.best))
                if value is not None:
                    mark = best.mark(value, trainer.version, evaluations)
                    checkpoints.save(BEST, trainer.version, epoch, progress.records, mark)
            return self._rules.observe(metrics)

        for epoch in range(spec.num_epochs):
            trainer.epoch = epoch
            for make in updates(epoch):
                stopped = self._rules.why_over(trainer.steps)
                if stopped:
                    break
                make()
                if checkpoints is not None:
                    checkpoints.save_due(trainer.version, epoch, progress.records)
                if self._rules.evaluation_due(trainer.steps, evaluated_at):
                    stopped = judge(epoch)
                    if stopped:
                        break
            if evaluate is not None and evaluated_at != trainer.steps:
                why = judge(epoch)
                stopped = stopped or why
            stopped = stopped or self._rules.why_over(trainer.steps)
            if stopped:
                break
        progress.show()
        processed = progress.records + self._skips.count(SkipReason.CORRUPT) + self._skips.count(SkipReason.FEED)
        check_trained(processed, trainer.steps)
        if checkpoints is not None:
            checkpoints.save("final", trainer.version, spec.num_epochs if not stopped else epoch, progress.records)
        artifacts = self._export(trainer, output)
        if checkpoints is not None and checkpoints.best is not None:
            artifacts += self._export_best(checkpoints.best, reader, output)
        said = self._said()
        self._emit(
            {
                "event": "done",
                "reason": success_reason(stopped, processed, total, said["skipped"]),
                "artifacts": artifacts,
                "metrics": metrics,
                "training_metrics": progress.training_metrics,
                "records": progress.records - self._skips.count(SkipReason.NAN),
                "steps": trainer.steps,
            }
            | said
        )

    def _course(self) -> _TrainingDriver:
        """The way to train: by whole minibatches, or in the parts that a group would cut them into."""
        spec = self._spec
        if spec.by_group and not spec.fuses and spec.microbatches_per_step > 1:
            group = LocalGroup(self._framework, spec, self._module)
            if spec.checkpoint_dir_for_init:
                group.restore(spec.checkpoint_dir_for_init)
            return _TrainingDriver(group.reader, group, functools.partial(self._in_parts, group))
        reader = self._reader(spec.training_data)
        source = self._source(reader, Mode.TRAINING)
        trainer = self._trainer(source)
        return _TrainingDriver(reader, trainer, functools.partial(self._as_a_whole, trainer, source))

    def _tell_start(self, shards: Sequence[Shard], rule_of_rows: str) -> None:
        """Says how large updates are, how many an epoch has, and which rows of tables an update moves."""
        spec = self._spec
        where = f"in this process, as by {ALL_REDUCE}" if spec.by_group else "in this process"
        spec = replace(spec, get_model_steps=1)  # one process makes one update after the other
        told = words_of_updates(spec, updates_per_epoch(spec, shards), where)
        self._emit({"event": "started", "message": told})
        if rule_of_rows:
            self._emit({"event": "started", "message": rule_of_rows})

    def _in_parts(self, group: LocalGroup, shards: list[Shard], progress: LocalProgress) -> _Updates:
        spec = self._spec
        fed, skips = 0, Skips()

        def make(task: Task, step: Step) -> None:
            nonlocal fed, skips
            made = group.update(task, step)
            fed, skips = fed + made.fed, skips + made.passed_over
            self._left_out += made.left_out
            loss = made.loss if made.rows else None
            progress.advance(made.fed, task.id.epoch, group.steps, loss, group.learning_rate)
            if (values := take_all(made.measures, progress.metrics_due)) and progress.metrics_due:
                progress.set_metrics(values)

        def updates(epoch: int) -> Iterator[Callable[[], None]]:
            nonlocal fed, skips
            for index, shard in enumerate(shards):
                reading = self._order.reading(epoch, index, shard.start, shard.end) if spec.shuffle else None
                task = Task(TaskId(TaskType.TRAINING, epoch, index, shard.start, shard.end), shard, reading=reading)
                fed, skips = 0, Skips()
                progress.begin(shard.records)
                try:
                    for step in steps_of(task, spec.microbatches_per_step, spec.minibatch_size):
                        yield functools.partial(make, task, step)
                    progress.end(skips)
                finally:
                    left_out, self._left_out = skips + self._left_out, Skips()
                    self._skip(left_out.in_records(shard.records, fed))

        return updates

    def _as_a_whole(
        self, trainer: LocalSteps, source: MinibatchSource, shards: list[Shard], progress: LocalProgress
    ) -> _Updates:
        step = self._step(trainer, training_metrics(self._framework, self._module, trainer.outputs), progress)

        def updates(epoch: int) -> Iterator[Callable[[], None]]:
            for batch in self._minibatches(source, shards, epoch, progress):
                yield functools.partial(step, batch)
            yield trainer.close_round

        return updates

    def _step(
        self, trainer: LocalSteps, metrics: Metrics | None, progress: LocalProgress
    ) -> Callable[[Minibatch], None]:
        """Makes the function that trains on a minibatch, with the job's policy for what is not finite.

        As on parameter servers, so many minibatches that are finite make an update, across tasks, within an epoch.
        """
        policy, module = NanPolicy(self._spec.on_nan), self._module
        together = self._spec.grads_to_wait if self._spec.rounds_of_several else 1
        held, version = 0, trainer.version

        def step(batch: Minibatch) -> None:
            nonlocal held, version
            held, version = held if version == trainer.version else 0, trainer.version
            with training_step(module, [batch]):
                made = trainer.train(batch, closes=held + 1 == together)
            held += not made.not_finite
            progress.advance(batch.records, trainer.epoch, trainer.steps, made.loss, trainer.learning_rate)
            if made.not_finite:
                self._left_out += policy.handle(made.not_finite, batch.where, batch.records, trainer.version)
                return
            policy.reset()
            if metrics is not None and made.predictions is not None:
                due, given = progress.metrics_due, (batch.labels, made.predictions, batch.records)
                if (values := metrics.of_epoch(trainer.epoch, *given, due=due)) and due:
                    progress.set_metrics(values)

        return step

    def evaluate_only(self) -> None:
        """Evaluates a checkpoint."""
        reader = self._reader(self._spec.validation_data)
        trainer = self._trainer(self._source(reader, Mode.EVALUATION))
        evaluate = self._evaluator(trainer)
        self._readers = {"main": reader}
        metrics = evaluate(0) if evaluate else {}
        self._emit({"event": "done", "artifacts": [], "metrics": metrics, "records": 0, "steps": 0} | self._ended())

    def predict(self, output: str) -> None:
        """Predicts with a checkpoint."""
        from elasticdl_worker.trainers.prediction_trial import try_outputs
        from elasticdl_worker.trainers.predictions import PredictionWriter

        spec, module = self._spec, self._module
        sink = PredictionWriter(module, output, 0, spec.prediction_format)
        reader = self._readers["main"] = self._reader(spec.prediction_data)
        source = self._source(reader, Mode.PREDICTION)
        trainer = self._trainer(source)
        if sink.makes_files and module.custom_data_reader is None:
            try_outputs(self._framework, source, reader, trainer, spec.minibatch_size)
        shards = cut(reader.create_shards(), spec.records_per_task)
        progress = LocalProgress(self._emit, sum(shard.records for shard in shards))
        for shard in shards:
            progress.begin(shard.records)
            with sink.write_task(shard) as write:
                for batch in source.minibatches(shard):
                    with module.guard("the model"):
                        predictions = trainer.predict(batch.features)
                    write(self._framework.to_numpy(predictions), batch.first, batch.records)
                    progress.advance(batch.records, 0, 0, None)
            progress.end(source.intake.skips)
            self._skip(source.intake.skips)
        progress.show()
        artifacts = sink.list_files()
        self._emit(
            {"event": "done", "artifacts": artifacts, "metrics": {}, "records": progress.records, "steps": 0}
            | self._ended()
        )

    def _reader(self, origin: str, like: DataReader | None = None) -> DataReader:
        """The reader of some data; its columns are those of another reader."""
        spec, params = self._spec, self._spec.data_reader_params
        if like is not None:
            params = params_like(like, params)
        with self._module.guard("custom_data_reader"):
            return create_data_reader(
                origin, spec.records_per_task, params, self._module.custom_data_reader,
                predicting=spec.type is JobType.PREDICTION,
            )  # fmt: skip

    def _source(self, reader: DataReader, mode: Mode) -> MinibatchSource:
        return self._framework.make_source(reader, self._module, str(mode), self._spec.minibatch_size)

    def _trainer(self, source: MinibatchSource) -> LocalSteps:
        spec = self._spec
        formats = self._rules.export_formats if spec.type is JobType.TRAINING else ()
        trainer = self._framework.prepare_local(Preparation(spec, self._module, source, self._callbacks, formats))
        if spec.checkpoint_dir_for_init:
            trainer.restore(spec.checkpoint_dir_for_init)
        return trainer

    def _minibatches(
        self, source: MinibatchSource, shards: list[Shard], epoch: int, progress: LocalProgress
    ) -> Iterator[Minibatch]:
        for index, shard in enumerate(shards):
            reading = self._order.reading(epoch, index, shard.start, shard.end) if self._spec.shuffle else None
            progress.begin(shard.records)
            fed = None
            try:
                yield from source.minibatches(shard, reading)
                progress.end(source.intake.skips)
                fed = source.intake.fed
            finally:
                skips, self._left_out = source.intake.skips + self._left_out, Skips()
                self._skip(skips.in_records(shard.records, fed))

    def _skip(self, skips: Skips) -> None:
        """Counts records that were passed over, and says so for each reason the first time, then at each doubling."""
        before, self._skips = self._skips, self._skips + skips
        for news in doublings(before, self._skips):
            self._emit({"event": "skipped", "message": news})

    def _evaluator(
        self, trainer: LocalSteps | LocalGroup, trained: DataReader | None = None
    ) -> Callable[[int], dict[str, float]] | None:
        """Makes the function that evaluates; None without validation data."""
        spec, module = self._spec, self._module
        if not spec.validation_data:
            return None
        reader = self._readers["validation"] = self._reader(spec.validation_data, trained)
        source = self._source(reader, Mode.EVALUATION)
        loss = None
        if module.loss is not None:
            loss = trainer.evaluation_loss
        metrics = self._framework.make_metrics(module, loss, trainer.outputs)
        if self._rules.keep_best is not None:
            self._rules.keep_best.check_names(metrics.names)
        shards = list(reader.create_shards())

        def evaluate(epoch: int) -> dict[str, float]:
            metrics.reset()
            records, skips = 0, Skips()
            for shard in shards:
                for batch in source.minibatches(shard):
                    with module.guard("an evaluation step"):
                        predictions = trainer.predict(batch.features)
                    metrics.update(batch.labels, predictions, batch.records)
                    records += batch.records
                skips += source.intake.skips
            if skips != self._validation_skips:
                self._validation_skips = skips
                self._emit({"event": "skipped", "message": f"validation: {words(skips)}"})
            values = metrics.results(metrics.state()) if records else {}
            report = {"event": "evaluation", "epoch": epoch, "step": trainer.version, "records": records}
            self._emit(report | {"metrics": values})
            return values

        return evaluate

    def _export(self, trainer: LocalSteps | LocalGroup, output: str) -> list[OutputFile]:
        formats = self._rules.export_formats
        if not formats:
            return []
        with output_folder(output) as folder:
            return delivered(trainer.export(folder, formats), output)

    def _export_best(self, manifest: Manifest, reader: DataReader, output: str) -> list[OutputFile]:
        """Exports the model of the best evaluation from its checkpoint, as a cluster does."""
        formats = list(self._rules.export_formats)
        if not formats:
            return []
        request = ExportRequest.of(
            {
                "checkpoint_directory": manifest["directory"],
                "manifest": manifest,
                "output": join_place(output, BEST),
                "formats": formats,
            },
            self._spec,
            Path(),
            self._declared,
        )
        source = self._source(reader, Mode.TRAINING)
        with module_apart(self._framework, self._spec, self._module) as module:
            files = export_to(self._framework, module, source, request, self._spec.seed)
        return [{**file, "name": f"{BEST}/{file['name']}"} for file in files]

    def _ended(self) -> dict[str, object]:
        """The skipped records and what they mean, for the last event of a job that passes over its data once."""
        said = self._said()
        return {"reason": success_reason("", 0, 0, said["skipped"]), **said}

    def _said(self) -> dict[str, list[dict[str, object]]]:
        """The skipped records, for the last event."""
        of = [("main", self._skips), ("validation", self._validation_skips)]
        counted = [{"of": name, **entry} for name, skips in of for entry in skips.to_json()]
        rests = [entry for name, one in self._readers.items() for entry in rests_left_out(name, one.damaged_files)]
        return {"skipped": [*counted, *rests]}

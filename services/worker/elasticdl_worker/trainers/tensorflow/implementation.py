"""TensorFlow and Keras as a framework of the worker; nothing outside this package knows more of them."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from pathlib import Path
from typing import cast

from elasticdl.callbacks import Callback
from elasticdl.data import DataReader
from elasticdl_core.errors import InvalidInputError, UserCodeError
from elasticdl_core.job import JobSpec, JobType
from elasticdl_runtime.device_turns import DeviceGrant
from elasticdl_worker.trainers.column_feed import feeds_columns
from elasticdl_worker.trainers.export_request import ExportRequest
from elasticdl_worker.trainers.framework import (
    LocalSteps,
    LossOf,
    Metrics,
    MinibatchSource,
    Outputs,
    Preparation,
    PreparedJob,
    TrainedReplica,
    training_metrics,
)
from elasticdl_worker.trainers.output_files import OutputFile
from elasticdl_worker.trainers.row_rules import rule_of_rows
from elasticdl_worker.trainers.tensorflow import framework
from elasticdl_worker.trainers.tensorflow.input.columns import ColumnPipeline
from elasticdl_worker.trainers.tensorflow.input.pipeline import InputPipeline
from elasticdl_worker.trainers.tensorflow.input.source import TypedSource
from elasticdl_worker.trainers.tensorflow.model.build import BuildOptions, PreparedModel, build_model
from elasticdl_worker.trainers.tensorflow.model.callbacks import callbacks_of
from elasticdl_worker.trainers.tensorflow.model.contract import check_optimizer
from elasticdl_worker.trainers.tensorflow.model.label_shapes import aligned_loss
from elasticdl_worker.trainers.tensorflow.model.layer_prints import print_layer_outputs
from elasticdl_worker.trainers.tensorflow.model.loading import load_module
from elasticdl_worker.trainers.tensorflow.model.metrics import cut, make_metrics, to_numpy
from elasticdl_worker.trainers.tensorflow.model.optimizers import TranslatedOptimizer, check_groups, translate
from elasticdl_worker.trainers.tensorflow.step.local_updates import LocalUpdates
from elasticdl_worker.trainers.tensorflow.step.programs import Programs
from elasticdl_worker.trainers.tensorflow.step.step_choice import StepChoice
from elasticdl_worker.trainers.tensorflow.types import Nested
from elasticdl_worker.user_code import ModelModule


class TensorFlowFramework:
    """TensorFlow, with Keras 3 or 2."""

    name = "tensorflow"

    @property
    def versions(self) -> Mapping[str, str]:
        """The version of Keras."""
        return {"keras": framework.keras_version()}

    def configure(self, threads: int, *, repeatable: bool = False) -> None:
        """Sizes the pools; call before TensorFlow runs anything."""
        framework.configure(threads, repeatable=repeatable)

    def use_devices(self, grant: DeviceGrant) -> None:
        """Limits TensorFlow's allocator; call before TensorFlow runs anything."""
        framework.limit_devices(grant.share, grant.memory_mib)

    def load_module(self, spec: JobSpec, zoo: Path) -> ModelModule:
        """Imports the model module of a job."""
        return load_module(spec, zoo)

    def print_layer_outputs(self) -> AbstractContextManager[None]:
        """A context in which every layer's output is printed."""
        return print_layer_outputs()

    def callbacks_of(self, module: ModelModule, spec: JobSpec) -> list[Callback]:
        """The callbacks of a module."""
        return callbacks_of(module, spec)

    def make_source(self, reader: DataReader, module: ModelModule, mode: str, minibatch_size: int) -> TypedSource:
        """Makes the pipeline of a mode."""
        if feeds_columns(reader, module):
            return ColumnPipeline(reader, module, mode, minibatch_size)
        return InputPipeline(reader, module, mode, minibatch_size)

    def prepare(self, preparation: Preparation) -> PreparedJob:
        """Builds the model for parameter servers, and its compiled functions."""
        spec, module = preparation.spec, preparation.module
        trains = spec.type is JobType.TRAINING
        source = cast(TypedSource, preparation.source)
        given = _optimizer_of(module, needed=trains)
        optimizer = None if given is None else check_optimizer(given)
        translated = None if optimizer is None else translate(optimizer, preparation.callbacks, module.guard)
        model = build_model(
            module, source.features_spec, BuildOptions(spec.embedding_threshold_bytes, spec.seed, trains)
        )
        if trains:
            module.need("loss")
        local = None if translated is None else _local_updates(spec, module, model, translated)
        programs = Programs(
            model,
            aligned_loss(module),
            source.labels_spec,
            translated.clipping if translated and not spec.rounds_of_several else None,
            eager=spec.eager,
            choice=StepChoice(spec.xla, preparation.remaining_steps),
            minibatch_size=spec.minibatch_size,
            group=spec.get_model_steps,
            local=local,
            keeps_predictions=preparation.keeps_predictions,
        )
        _measure_denominators(preparation, source, programs)
        dense, tables = model.dense_specs(optimizer), model.table_specs(optimizer)
        _check_exportable(model, preparation.formats)
        if translated is not None:
            check_groups(translated, tables, spec.get_model_steps)
        return PreparedJob(model, programs, dense, tables, translated, local)

    def prepare_local(self, preparation: Preparation) -> LocalSteps:
        """Builds the model for this process alone."""
        from elasticdl_worker.trainers.tensorflow.export.local_model import LocalModel

        spec, module = preparation.spec, preparation.module
        trains = spec.type is JobType.TRAINING
        source = cast(TypedSource, preparation.source)
        optimizer = check_optimizer(_optimizer_of(module, needed=True)) if trains else None
        model = build_model(module, source.features_spec, _whole(spec, trains))
        programs = Programs(model, aligned_loss(module), source.labels_spec, eager=spec.eager)
        _measure_denominators(preparation, source, programs)
        translated = None if optimizer is None else translate(optimizer, preparation.callbacks, module.guard)
        rule = rule_of_rows(spec, [*model.tables, *model.registry.closed], translated.spec if translated else None)
        trainer = LocalModel(
            model,
            programs,
            optimizer,
            preparation.callbacks,
            source.labels_spec,
            module.guard,
            eager=spec.eager,
            touched_rows=bool(rule) and not spec.by_group,
        )
        trainer.rule_of_rows = rule
        if translated is not None:
            trainer.translated = translated
        _check_exportable(model, preparation.formats)
        return trainer

    def prepare_replica(self, preparation: Preparation) -> TrainedReplica:
        """Builds the model for a member of a group."""
        from elasticdl_worker.trainers.tensorflow.replica.replica import KerasReplica

        spec, module = preparation.spec, preparation.module
        if spec.xla == "on":
            raise InvalidInputError(
                "--xla on is of jobs with parameter servers: members of a group run the plain compiled step",
                fix="leave --xla out, or train with --distribution_strategy ParameterServerStrategy",
            )
        source = cast(TypedSource, preparation.source)
        optimizer = check_optimizer(_optimizer_of(module, needed=True))
        translated = translate(optimizer, preparation.callbacks, module.guard)
        model = build_model(module, source.features_spec, _whole(spec))
        module.need("loss")
        if model.tables:
            raise UserCodeError(
                f"the embedding {min(model.tables)} has no bound on its ids, so no worker can hold all of it",
                fix="give it an input_dim (tf.keras.layers.Embedding), or train with "
                "--distribution_strategy ParameterServerStrategy",
            )
        programs = Programs(model, aligned_loss(module), source.labels_spec, eager=spec.eager)
        _check_exportable(model, preparation.formats)
        metrics = training_metrics(self, module, model.outputs) if preparation.keeps_predictions else None
        return KerasReplica(preparation, model, programs, optimizer, translated, metrics)

    def export_replica(self, replica: TrainedReplica, output: Path, formats: Sequence[str]) -> list[OutputFile]:
        """Writes the model of a replica into a directory."""
        from elasticdl_worker.trainers.tensorflow.export.model_files import export_model
        from elasticdl_worker.trainers.tensorflow.replica.replica import KerasReplica

        return export_model(cast(KerasReplica, replica).model, output, formats, {}, {})

    def make_metrics(self, module: ModelModule, loss: LossOf | None, outputs: Outputs) -> Metrics:
        """Makes the metrics of a module."""
        return make_metrics(module, loss, outputs)

    def cut(self, values: Nested, start: int, end: int) -> Nested | None:
        """Some of the records of nested tensors; None if they cannot be cut."""
        return cut(values, start, end)

    def to_numpy(self, predictions: Nested) -> object:
        """Nested tensors as arrays."""
        return to_numpy(predictions)

    def export_checkpoint(
        self, module: ModelModule, source: MinibatchSource, request: ExportRequest, seed: int
    ) -> list[OutputFile]:
        """Exports the model of a checkpoint."""
        from elasticdl_worker.trainers.tensorflow.export.checkpoint import export_checkpoint

        return export_checkpoint(module, cast(TypedSource, source).features_spec, request, seed)


def _whole(spec: JobSpec, training: bool = True) -> BuildOptions:
    """Builds the model where all of it is in one process: it begins as on parameter servers."""
    return BuildOptions(spec.embedding_threshold_bytes, spec.seed, training, alone=True)


def _optimizer_of(module: ModelModule, *, needed: bool) -> object:
    """The optimizer of the user's ``optimizer``; for jobs that do not train it may be missing."""
    if needed:
        module.need("optimizer")
    if module.optimizer is None:
        return None
    with module.guard("optimizer"):
        return module.optimizer()


def _local_updates(
    spec: JobSpec, module: ModelModule, model: PreparedModel, translated: TranslatedOptimizer
) -> LocalUpdates | None:
    if spec.get_model_steps == 1:
        return None
    rate = translated.spec.params["learning_rate"] if translated.learning_rate is not None else None
    # An instance of its own: the other one says what the parameter servers do.
    return LocalUpdates(model, check_optimizer(_optimizer_of(module, needed=True)), rate)


def _measure_denominators(preparation: Preparation, source: TypedSource, programs: Programs) -> None:
    """Finds what denominator the loss has, where an update is of several minibatches."""
    if preparation.spec.rounds_of_several:
        with preparation.module.guard("the loss"):
            programs.measure_denominators(source.first)


def _check_exportable(model: PreparedModel, formats: Sequence[str]) -> None:
    if formats:
        from elasticdl_worker.trainers.tensorflow.export.model_files import check_exportable

        check_exportable(model, formats)

"""PyTorch as a framework of the worker; nothing outside this package knows more of it."""

from __future__ import annotations

import contextlib
from collections.abc import Mapping, Sequence
from contextlib import AbstractContextManager
from dataclasses import replace
from functools import partial
from pathlib import Path
from typing import cast

import structlog
import torch

from elasticdl.callbacks import Callback, GradientClipping
from elasticdl.data import DataReader
from elasticdl_core.errors import UserCodeError
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
from elasticdl_worker.trainers.loss_denominators import CLOSE, CLOSE_OF_HALF, on_first_rows
from elasticdl_worker.trainers.minibatch import Minibatch, Tensors
from elasticdl_worker.trainers.output_files import OutputFile
from elasticdl_worker.trainers.row_rules import rule_of_rows
from elasticdl_worker.trainers.torch.device import find_device, give_the_same_bits, limit_memory, place
from elasticdl_worker.trainers.torch.input.columns import TorchColumnPipeline
from elasticdl_worker.trainers.torch.input.pipeline import TorchInputPipeline
from elasticdl_worker.trainers.torch.layer_prints import print_layer_outputs
from elasticdl_worker.trainers.torch.model import embeddings
from elasticdl_worker.trainers.torch.model.build import BuiltModel, TorchBuildOptions, build_model
from elasticdl_worker.trainers.torch.model.callbacks import callbacks_of
from elasticdl_worker.trainers.torch.model.calling import cut
from elasticdl_worker.trainers.torch.model.metrics import make_metrics, to_numpy
from elasticdl_worker.trainers.torch.model.operation_work import one_thread_is_better
from elasticdl_worker.trainers.torch.model.optimizers import (
    MadeOptimizer,
    TorchOptimizerPlan,
    make_optimizer,
    translate,
)
from elasticdl_worker.trainers.torch.model.state_rules import learn_rules
from elasticdl_worker.trainers.torch.model.trials import generators_kept
from elasticdl_worker.trainers.torch.nested import leaves
from elasticdl_worker.trainers.torch.step.denominators import TorchDenominators
from elasticdl_worker.trainers.torch.step.group_updates import TorchGroupUpdates
from elasticdl_worker.trainers.torch.step.local_tables import TorchLocalTables
from elasticdl_worker.trainers.torch.step.programs import ForwardPass, StepOptions, TorchPrograms
from elasticdl_worker.user_code import ModelModule, load_model_module

_log = structlog.get_logger(__name__)
_NO_TABLES = 1 << 62
"""A threshold that no embedding reaches."""


class TorchFramework:
    """PyTorch, on the CPU or on an accelerator that was granted."""

    name = "torch"

    def __init__(self) -> None:
        self._grant = DeviceGrant()

    @property
    def versions(self) -> Mapping[str, str]:
        """The version of PyTorch."""
        return {"torch": torch.__version__}

    def configure(self, threads: int, *, repeatable: bool = False) -> None:
        """Sizes the pools; call before PyTorch runs anything."""
        if repeatable:
            give_the_same_bits()
        torch.set_num_threads(threads)
        # It can be set once in a process.
        with contextlib.suppress(RuntimeError):
            torch.set_num_interop_threads(max(1, threads))

    def use_devices(self, grant: DeviceGrant) -> None:
        """Computes on what was granted; what cannot be used is refused when a model is prepared."""
        self._grant = grant

    def load_module(self, spec: JobSpec, zoo: Path) -> ModelModule:
        """Imports the model module of a job."""
        embeddings.install()
        torch.manual_seed(spec.seed & 0x7FFFFFFF)
        return load_model_module(spec, zoo, optimizer_takes=1)

    def print_layer_outputs(self) -> AbstractContextManager[None]:
        """A context in which every layer's output is printed."""
        return print_layer_outputs()

    def callbacks_of(self, module: ModelModule, spec: JobSpec) -> list[Callback]:
        """The callbacks of a module."""
        return callbacks_of(module)

    def make_source(
        self, reader: DataReader, module: ModelModule, mode: str, minibatch_size: int
    ) -> TorchInputPipeline | TorchColumnPipeline:
        """Makes the pipeline of a mode."""
        pipeline = TorchColumnPipeline if feeds_columns(reader, module) else TorchInputPipeline
        return pipeline(reader, module, mode, minibatch_size)

    def prepare(self, preparation: Preparation) -> PreparedJob:
        """Builds the model for parameter servers."""
        spec, module = preparation.spec, preparation.module
        model, sample = _built(preparation)
        self._place(model, sample, preparation)
        _choose_threads(model, sample, spec)
        made = _optimizer(preparation, model)
        plan: TorchOptimizerPlan | None = None
        updates: TorchGroupUpdates | None = None
        if made is not None:
            model.keep_untrained(made.untrained)
            learn_rules(model, sample)
            plan = translate(made, preparation.callbacks, module.guard)
            _check_group_decay(plan, model, spec)
            if spec.get_model_steps > 1:
                updates = TorchGroupUpdates(model, made, plan.groups)
        programs = TorchPrograms(
            model,
            module,
            _options(preparation, plan.clipping if plan and not spec.rounds_of_several else None),
            updates,
            keeps_origin=bool(spec.delay_compensation),
            keeps_predictions=preparation.keeps_predictions,
        )
        if made is not None and spec.rounds_of_several:
            first = cast(TorchInputPipeline, preparation.source).first
            on_first_rows(first, partial(programs.measure_denominators, look=first))
        groups = plan.groups if plan else {}
        return PreparedJob(model, programs, model.dense_specs(groups), model.table_specs(groups), plan, updates)

    def prepare_local(self, preparation: Preparation) -> LocalSteps:
        """Builds the model for this process alone."""
        from elasticdl_worker.trainers.torch.export.checkpoint import TorchLocalModel
        from elasticdl_worker.trainers.torch.replica.memory import choose_memory

        spec = preparation.spec
        model, sample = _built(preparation)
        model.materialise()
        self._place(model, sample, preparation)
        # Nothing is added up here, as by a member that is alone; which devices can be is the same.
        choose_memory(spec.collective, model.device)
        made = _optimizer(preparation, model)
        if made is not None:
            model.keep_untrained(made.untrained)
        forward = ForwardPass(model, preparation.module, _options(preparation, None))
        tables = [*model.tables, *model.closed]
        rule = ""
        if made is not None and tables:
            plan = translate(made, preparation.callbacks, preparation.module.guard)
            rule = rule_of_rows(spec, tables, plan.spec)
        local_tables = TorchLocalTables(model.tables, model.placeholders)
        trainer = TorchLocalModel(
            model,
            forward,
            local_tables,
            made,
            preparation.callbacks,
            preparation.module.guard,
            touched_rows=bool(rule) and not spec.by_group,
            denominators=_round_denominators(preparation, model, forward, local_tables),
        )
        trainer.sample = sample
        trainer.rule_of_rows = rule
        if made is not None:
            trainer.plan = partial(translate, made, preparation.callbacks, preparation.module.guard)
        return trainer

    def prepare_replica(self, preparation: Preparation) -> TrainedReplica:
        """Builds the model for a member of a group."""
        from elasticdl_worker.trainers.torch.replica.replica import TorchReplica

        module = preparation.module
        model, sample = _built(preparation)
        model.materialise()
        self._place(model, sample, preparation)
        made = make_optimizer(module, model, preparation.callbacks)
        model.keep_untrained(made.untrained)
        _check_for_group(model, made)
        plan = translate(made, preparation.callbacks, module.guard)
        options = replace(_options(preparation, plan.clipping), one_shape=True)
        metrics = training_metrics(self, module, model.outputs) if preparation.keeps_predictions else None
        return TorchReplica(preparation, model, sample, made, plan, options, metrics)

    def _place(self, model: BuiltModel, sample: Tensors, preparation: Preparation) -> None:
        """Moves a model to where this process computes, after what is tried on the host."""
        _check_exportable(model, sample, preparation)
        device = find_device(self._grant)
        limit_memory(device, self._grant.share)
        model.place(device)

    def export_replica(self, replica: TrainedReplica, output: Path, formats: Sequence[str]) -> list[OutputFile]:
        """Writes the model of a replica into a directory."""
        from elasticdl_worker.trainers.torch.export.model_files import export_model
        from elasticdl_worker.trainers.torch.replica.replica import TorchReplica

        held = cast(TorchReplica, replica)
        return export_model(held.model.on_host(), held.sample, output, formats, {}, {})

    def make_metrics(self, module: ModelModule, loss: LossOf | None, outputs: Outputs) -> Metrics:
        """Makes the metrics of a module."""
        return make_metrics(module, loss, outputs)

    def cut(self, values: Tensors, start: int, end: int) -> Tensors:
        """Some of the records of nested tensors; None if they cannot be cut."""
        return cut(values, start, end)

    def to_numpy(self, predictions: Tensors) -> object:
        """Nested tensors as arrays."""
        return to_numpy(predictions)

    def export_checkpoint(
        self, module: ModelModule, source: MinibatchSource, request: ExportRequest, seed: int
    ) -> list[OutputFile]:
        """Exports the model of a checkpoint."""
        from elasticdl_worker.trainers.torch.export.checkpoint import export_checkpoint

        sample = cast(TorchInputPipeline, source).sample()
        model = build_model(module, sample, TorchBuildOptions(_NO_TABLES, seed))
        model.materialise()
        return export_checkpoint(model, sample, request)


def _built(preparation: Preparation) -> tuple[BuiltModel, Tensors]:
    spec = preparation.spec
    sample = cast(TorchInputPipeline, preparation.source).sample()
    if spec.type is JobType.TRAINING:
        preparation.module.need("loss")
    return build_model(
        preparation.module, sample, TorchBuildOptions(spec.embedding_threshold_bytes, spec.seed)
    ), sample


def _optimizer(preparation: Preparation, model: BuiltModel) -> MadeOptimizer | None:
    """The user's optimizer; jobs that do not train need none."""
    if preparation.spec.type is not JobType.TRAINING and preparation.module.optimizer is None:
        return None
    return make_optimizer(preparation.module, model, preparation.callbacks)


def _options(preparation: Preparation, clipping: GradientClipping | None) -> StepOptions:
    spec, module = preparation.spec, preparation.module
    return StepOptions(
        autocast=spec.autocast == "bfloat16",
        compiled=spec.torch_compile == "on" and not spec.eager,
        aligned=module.feed is None,
        clipping=clipping,
    )


def _round_denominators(
    preparation: Preparation, model: BuiltModel, forward: ForwardPass, tables: TorchLocalTables
) -> TorchDenominators | None:
    """Sees by the first records what denominator the loss has, where an update is of several minibatches."""
    if not preparation.spec.rounds_of_several:
        return None
    first = cast(TorchInputPipeline, preparation.source).first
    device = model.device

    def outputs(few: Minibatch) -> Tensors:
        return forward.try_out(few.features, tables)

    def measure(few: Minibatch) -> TorchDenominators:
        close = CLOSE_OF_HALF if preparation.spec.autocast == "bfloat16" else CLOSE
        whole = not (model.tables or model.closed)
        made = forward.denominators(few, first, outputs, close, whole=whole)
        forward.require_straight_backward(few.features, place(few.labels, device), tables)
        return made

    with generators_kept(model.net, model.roots, device):
        return on_first_rows(first, measure)


def _choose_threads(model: BuiltModel, sample: Tensors, spec: JobSpec) -> None:
    """Leaves the second of two cores to the servers where operations are small, unless the user says otherwise."""
    if sample is None or spec.worker_threads:
        return
    work, threads = model.work.mean(spec.minibatch_size / len(leaves(sample)[0])), torch.get_num_threads()
    if one_thread_is_better(work, threads):
        torch.set_num_threads(1)
        _log.info("operations are small: computing with one thread", work=round(work), instead_of=threads)


def _check_for_group(model: BuiltModel, made: MadeOptimizer) -> None:
    """Refuses what needs parameter servers."""
    fix = "or train with --distribution_strategy ParameterServerStrategy"
    if model.tables:
        raise UserCodeError(
            f"the embedding {min(model.tables)} has no bound on its ids, so no worker can hold all of it",
            fix=f"use torch.nn.Embedding, {fix}",
        )
    if type(made.optimizer) is torch.optim.SparseAdam:
        raise UserCodeError(
            "SparseAdam leaves rows alone that a minibatch does not have, and workers that hold the whole model sum "
            "gradients of all rows",
            fix=f"use Adam, {fix}",
        )
    if not model.trainable:
        raise UserCodeError("the model has no parameter that is trained", fix="give the optimizer its parameters")


def _check_group_decay(plan: TorchOptimizerPlan, model: BuiltModel, spec: JobSpec) -> None:
    """Refuses weight decay of rows by groups of minibatches, in which it would act once a group."""
    for name, weight in model.placeholders.items():
        group = plan.groups[id(weight)]
        params = plan.group_params[group]
        if spec.get_model_steps > 1 and params.get("weight_decay"):
            raise UserCodeError(
                f"the rows of {name} decay by weight_decay={params['weight_decay']}, which groups of minibatches "
                "cannot count",
                fix="set --get_model_steps 1, or put the embedding into a parameter group with weight_decay=0",
            )


def _check_exportable(model: BuiltModel, sample: Tensors, preparation: Preparation) -> None:
    if preparation.spec.type is JobType.TRAINING and preparation.formats:
        from elasticdl_worker.trainers.torch.export.model_files import check_exportable

        check_exportable(model, sample, preparation.formats)

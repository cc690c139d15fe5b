"""Computations of a model whose tables lie elsewhere: losses, gradients, predictions."""

from __future__ import annotations

import contextlib
import math
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

import numpy as np
import structlog
import torch
from numpy.typing import NDArray

from elasticdl.callbacks import GradientClipping
from elasticdl.torch.lookup import RowScope, finding_rows, keep_out_of_graphs
from elasticdl_core.errors import UserCodeError
from elasticdl_worker.parameters import Origin
from elasticdl_worker.trainers.framework import Array, Lookups, LookupsChangedError, StepResult
from elasticdl_worker.trainers.loss_denominators import CLOSE, CLOSE_OF_HALF, any_rows
from elasticdl_worker.trainers.minibatch import Minibatch, Tensors
from elasticdl_worker.trainers.torch.device import HOST, arrays_of, place, run_backward
from elasticdl_worker.trainers.torch.model.build import BuiltModel, as_tensor, explaining_tables
from elasticdl_worker.trainers.torch.model.calling import TorchModelCall, aligned
from elasticdl_worker.trainers.torch.model.losses import OuterProducts, by_labels_first
from elasticdl_worker.trainers.torch.model.optimizers import NORM_SLACK
from elasticdl_worker.trainers.torch.model.own_changes import OwnChanges
from elasticdl_worker.trainers.torch.model.scopes import Lookup, TorchRowsScope
from elasticdl_worker.trainers.torch.model.trials import KeptBuffers, trial_of
from elasticdl_worker.trainers.torch.nested import leaves, map_tensors
from elasticdl_worker.trainers.torch.step.batch_axes import Axes, are_certain, axes_by
from elasticdl_worker.trainers.torch.step.denominators import LossOfCopy, TorchDenominators, goes_by_no_rows
from elasticdl_worker.trainers.torch.step.group_updates import TorchGroupUpdates
from elasticdl_worker.trainers.torch.step.lookups import TorchLookupCollector
from elasticdl_worker.trainers.torch.step.straight_backward import require_straight_backward
from elasticdl_worker.user_code import ModelModule

_log = structlog.get_logger(__name__)


@dataclass(frozen=True)
class StepOptions:
    """Options for computing steps.

    Attributes:
        autocast: whether under ``torch.autocast`` to bfloat16.
        compiled: whether by ``torch.compile``, where that is possible.
        aligned: whether labels are given the predictions' last dimension of one where only that differs.
        clipping: how gradients are clipped.
        one_shape: whether what is compiled is for one shape of a minibatch, and no other is given to it.
    """

    autocast: bool = False
    compiled: bool = False
    aligned: bool = False
    clipping: GradientClipping | None = None
    one_shape: bool = False


class ForwardPass:
    """Runs the model and its loss.

    Args:
        model: the model, built.
        module: the user's module, for its loss.
        options: how.
    """

    def __init__(self, model: BuiltModel, module: ModelModule, options: StepOptions) -> None:
        self._model = model
        self._module = module
        self._options = options
        self._elsewhere = model.device != HOST
        self._eager = TorchModelCall(model.net)
        self._call: Callable[[Tensors], Tensors] = self._eager
        self._scope: RowScope | None = None
        self._buffers = KeptBuffers(model.net)
        self._loss: OuterProducts | None = None
        if module.loss is not None:
            self._loss = OuterProducts("the loss", by_labels_first("the loss", module.loss))
        if options.compiled:
            self._call = self._compiled()

    def predict(self, features: Tensors, scope: RowScope | None) -> Tensors:
        """The model's outputs, in inference mode, on the host: there is nothing left to be computed then.

        What the model does to its buffers meanwhile is undone: each minibatch is computed by the same model.
        """
        self._model.net.eval()
        self._scope = scope
        if self._elsewhere:
            features = place(features, self._model.device)
        with torch.no_grad(), self._buffers.kept(), finding_rows(scope), self._precision(), explaining_tables():
            found = self._call(features)
        return place(found, HOST) if self._elsewhere else found

    def try_out(self, features: Tensors, scope: RowScope | None) -> Tensors:
        """The outputs of a copy in training mode; in inference mode where that cannot be had."""
        trial = trial_of(self._model.net)
        if trial is not None:
            with contextlib.suppress(Exception), torch.no_grad(), finding_rows(scope):
                return TorchModelCall(trial.train())(place(features, self._model.device))
        return self.predict(features, scope)

    def denominators(
        self,
        first: Minibatch,
        look: Callable[[int], Minibatch | None],
        outputs: Callable[[Minibatch], Tensors],
        close: float,
        *,
        whole: bool,
    ) -> TorchDenominators:
        """Measures by the first records what denominator the loss has.

        Args:
            first: the records.
            look: gives so many of them, or fewer.
            outputs: of the model, of some of them.
            close: how far values of training may be off by rounding.
            whole: whether all of the model is in this process.

        Raises:
            UserCodeError: no denominator makes the losses of parts that of the whole.
        """
        device, records = self._model.device, first.records
        labels, features, predictions = place((first.labels, first.features, outputs(first)), device)
        sides = (labels, features, predictions)
        axes: list[Axes] = [(), (), ()]
        certain = are_certain(labels, records) and are_certain(predictions, records)
        fewer = None if certain or records == 1 else look(records - 1)
        if fewer is not None and fewer.records < records:
            others = (fewer.labels, fewer.features, outputs(fewer))
            axes = [axes_by(one, records, other, fewer.records) for one, other in zip(sides, others, strict=True)]
        if whole and goes_by_no_rows(self.loss, labels, predictions, records, axes[2]):
            places = axes[0], axes[1]
            copy = LossOfCopy(self._model.net, self._loss_of_model, places)
            return TorchDenominators(self.loss, labels, features, records, close, places, copy)
        return TorchDenominators(self.loss, labels, predictions, records, close, (axes[0], axes[2]))

    def _loss_of_model(self, net: torch.nn.Module, labels: Tensors, features: Tensors) -> torch.Tensor:
        return self.loss(labels, TorchModelCall(net)(features))

    def require_straight_backward(self, features: Tensors, labels: Tensors, scope: RowScope | None) -> None:
        """Refuses gradients that do not grow as the loss does, by some records.

        Raises:
            UserCodeError: they do not: parts of an update would not add up to it.
        """
        features = place(features, self._model.device)

        def loss_of(trial: torch.nn.Module) -> torch.Tensor:
            with finding_rows(scope), self._precision():
                own = map_tensors(torch.clone, labels)  # a loss may change them
                return self.loss(own, TorchModelCall(trial)(features))

        require_straight_backward(self._model.net, loss_of)

    def train(
        self,
        features: Tensors,
        labels: Tensors,
        scope: RowScope | None,
        before_loss: Callable[[Tensors, Tensors], None] | None = None,
    ) -> tuple[torch.Tensor, Tensors]:
        """The loss of a minibatch, and the model's outputs, in training mode.

        Args:
            features: of the minibatch.
            labels: of the minibatch.
            scope: finds rows of tables that lie elsewhere.
            before_loss: is told labels and outputs, which the loss may change.
        """
        self._model.net.train()
        self._scope = scope
        if self._elsewhere:
            features, labels = place((features, labels), self._model.device)
        with finding_rows(scope), self._precision(), explaining_tables():
            predictions = self._call(features)
            if before_loss is not None:
                before_loss(labels, predictions)
            loss = self.loss(labels, predictions)
        if not loss.requires_grad:
            raise UserCodeError(
                "the loss does not depend on anything that is trained",
                fix="compute it from the predictions, without detach(), numpy() or argmax()",
            )
        return loss, predictions

    def loss(self, labels: Tensors, predictions: Tensors) -> torch.Tensor:
        """The loss of predictions; of one value for each record the mean."""
        if self._options.aligned:
            labels = aligned(labels, predictions)
        if self._loss is None:
            self._module.need("loss")
        assert self._loss is not None
        loss = self._loss(labels, predictions)
        if not isinstance(loss, torch.Tensor):
            raise UserCodeError(
                f"loss returned a {type(loss).__name__}", fix="return a tensor, as torch.nn.functional's losses do"
            )
        return loss if loss.ndim == 0 else loss.mean()

    def evaluation_loss(self, labels: Tensors, predictions: Tensors) -> torch.Tensor:
        """The loss of predictions, without gradients."""
        with torch.no_grad(), self._precision():
            return self.loss(labels, predictions)

    def _precision(self) -> Any:
        return torch.autocast(self._model.device.type, torch.bfloat16, enabled=self._options.autocast)

    def _compiled(self) -> Callable[[Tensors], Tensors]:
        """Calls the compiled model, until that turns out to be impossible."""
        keep_out_of_graphs()
        dynamic = False if self._options.one_shape else None
        net = self._model.net
        compiled = TorchModelCall(net, torch.compile(net, dynamic=dynamic))
        done = set[tuple[Any, ...]]()

        def call(features: Tensors) -> Tensors:
            kind = (net.training, torch.is_grad_enabled(), *((one.dtype, one.shape) for one in leaves(features)))
            # Only what is new is compiled: a part that was may have run before another part turns out not to be.
            trial = None if kind in done else _Trial(self._model)
            try:
                found = compiled(features)
                done.add(kind)
                return found
            except UserCodeError:
                raise
            except Exception as error:
                # The eager model raises it again where it is the user's fault; its lookups begin anew.
                if trial is not None:
                    trial.undo()
                if isinstance(self._scope, TorchRowsScope):
                    self._scope.restart()
                result = self._eager(features)
                reason = str(error).strip().partition("\n")[0][:300]
                _log.warning("the model runs without torch.compile", reason=f"{type(error).__name__}: {reason}")
                self._call = self._eager
                return result

        return call


class _Trial:
    """The state that a run of the model may change before it fails, and the random numbers to come."""

    def __init__(self, model: BuiltModel) -> None:
        self._merging, self._device = model.merging, model.device
        self._state = self._merging.read()
        self._random = torch.get_rng_state()
        self._of_device = torch.cuda.get_rng_state(self._device) if self._device.type == "cuda" else None

    def undo(self) -> None:
        """Has the model, and what it draws, as they were."""
        self._merging.restore(self._state)
        torch.set_rng_state(self._random)
        if self._of_device is not None:
            torch.cuda.set_rng_state(self._of_device, self._device)


class TorchPrograms:
    """Computations of a model whose tables lie elsewhere.

    Args:
        model: the model, built.
        module: the user's module.
        options: how steps are computed.
        group_updates: what moves the parameters between the minibatches of a group; None without groups.
        keeps_origin: whether results tell the parameters that they were computed on.
        keeps_predictions: whether results tell the outputs.
    """

    def __init__(
        self,
        model: BuiltModel,
        module: ModelModule,
        options: StepOptions,
        group_updates: TorchGroupUpdates | None = None,
        *,
        keeps_origin: bool = False,
        keeps_predictions: bool = False,
    ) -> None:
        self._model = model
        self._options = options
        self._forward = ForwardPass(model, module, options)
        self._group = group_updates
        self._collector = TorchLookupCollector(model)
        self._own_changes = OwnChanges(model)
        # Known here: a model that makes another one later is refused.
        self._parameters = list(model.net.parameters())
        self._keeps_origin = keeps_origin
        self._keeps_predictions = keeps_predictions
        self._denominators: TorchDenominators | None = None

    def collect(self, *batches: Tensors, training: bool) -> Lookups:
        """Finds the rows that minibatches need together, from the features of each."""
        return self._collector.collect(*batches, training=training)

    def prepare_collect(self, *, training: bool) -> None:
        """Nothing is to be made ready: the model runs as it is."""

    def steps(
        self,
        batches: Sequence[tuple[Tensors, Tensors]],
        dense: Mapping[str, Array],
        rows: Mapping[str, NDArray[np.float32]],
        lookups: Lookups,
    ) -> StepResult:
        """Runs the model forward and backward on minibatches, one after the other; gradients come clipped.

        Raises:
            LookupsChangedError: the ids of these minibatches are to be collected anew.
        """
        model = self._model
        model.assign(dense)
        before = model.merging.read()
        with self._noticing(lookups, before):
            return self._steps(batches, dense, rows, lookups, before)

    def _steps(
        self,
        batches: Sequence[tuple[Tensors, Tensors]],
        dense: Mapping[str, Array],
        rows: Mapping[str, NDArray[np.float32]],
        lookups: Lookups,
        before: Mapping[str, torch.Tensor],
    ) -> StepResult:
        model = self._model
        elsewhere = model.device != HOST
        inverse = lookups.inverse
        if elsewhere:
            batches, inverse = self._placed(batches, inverse)
        tables = self._row_tensors(rows, lookups, trained=True)
        losses: list[float] = []
        totals: dict[str, torch.Tensor] = {}
        row_totals: dict[str, torch.Tensor] = {}
        predictions: list[Tensors] = []
        for number, (features, labels) in enumerate(batches):
            for parameter in self._parameters:
                parameter.grad = None
            self._own_changes.begin()
            scope = TorchRowsScope(tables, inverse[number])
            before_loss = None if self._denominators is None else self._denominators.keeping(labels, features)
            loss, outputs = self._forward.train(features, labels, scope, before_loss)
            if self._keeps_predictions:
                predictions.append(map_tensors(torch.Tensor.detach, outputs))
            with scope.answering_again():
                run_backward(loss)
            self._own_changes.check(loss)
            losses.append(float(loss.detach()))
            gradients = _gradients_of(model.trainable)
            of_rows = _gradients_of(tables)
            clip(self._options.clipping, [*gradients.values(), *of_rows.values()])
            _add_to(totals, gradients)
            _add_to(row_totals, of_rows)
            if number + 1 < len(batches):
                assert self._group is not None
                self._group.apply(gradients)
                tables = self._moved(tables, of_rows)
        counts = {table: len(lookups.unique[table]) for table in row_totals}
        origin = Origin(dict(dense), dict(rows)) if self._keeps_origin else Origin({}, {})
        row_totals = {table: gradient[: counts[table]] for table, gradient in row_totals.items()}
        arrays = arrays_of([*totals.values(), *row_totals.values()], model.device)
        return StepResult(
            tuple(losses),
            dict(zip(totals, arrays, strict=False)),
            dict(zip(row_totals, arrays[len(totals) :], strict=True)),
            model.merging.changes(before),
            origin,
            predictions,
            None if self._denominators is None else partial(self._weight, self._denominators, losses[-1]),
        )

    def forward(self, features: Tensors, rows: Mapping[str, NDArray[np.float32]], lookups: Lookups) -> Tensors:
        """The model's outputs for a minibatch, in inference mode.

        Raises:
            LookupsChangedError: the ids of the minibatch are to be collected anew.
        """
        tables = self._row_tensors(rows, lookups, trained=False)
        inverse = lookups.inverse
        if self._model.device != HOST:
            ((features, _),), inverse = self._placed([(features, None)], inverse)
        with self._noticing(lookups):
            return self._forward.predict(features, TorchRowsScope(tables, inverse[0]))

    def measure_denominators(self, first: Minibatch, look: Callable[[int], Minibatch | None]) -> None:
        """Finds by the first records what denominator the loss has: rounds of several minibatches go by it.

        Args:
            first: the records.
            look: gives so many of them, or fewer.

        Raises:
            UserCodeError: no denominator makes the losses of minibatches that of the round.
        """

        def outputs(few: Minibatch) -> Tensors:
            try:
                return self._tried(few)
            except LookupsChangedError:
                self._collector.run_whole()
                return self._tried(few)

        trial = _Trial(self._model)
        close = CLOSE_OF_HALF if self._options.autocast else CLOSE
        try:
            whole = not self._model.tables
            self._denominators = self._forward.denominators(first, look, outputs, close, whole=whole)
        finally:
            trial.undo()

    def _weight(self, denominators: TorchDenominators, loss: float, rows: int) -> float:
        denominator = denominators.of(rows, loss)
        return math.inf if denominators.adds else denominator

    def _tried(self, first: Minibatch) -> Tensors:
        lookups = self.collect(first.features, training=True)
        rows = any_rows({table: (len(ids), self._model.tables[table].dim) for table, ids in lookups.unique.items()})
        ((features, labels),), inverse = self._placed([(first.features, first.labels)], lookups.inverse)
        scope = TorchRowsScope(self._row_tensors(rows, lookups, trained=False), inverse[0])
        predictions = self._forward.try_out(features, scope)
        scope.restart()
        self._forward.require_straight_backward(features, labels, scope)
        return predictions

    def evaluation_loss(self, labels: Tensors, predictions: Tensors) -> torch.Tensor:
        """The loss of predictions."""
        return self._forward.evaluation_loss(labels, predictions)

    @contextlib.contextmanager
    def _noticing(self, lookups: Lookups, before: Mapping[str, torch.Tensor] | None = None) -> Iterator[None]:
        """Has whole runs find the ids from now on, once a model looks up otherwise than with the first records."""
        try:
            yield
        except LookupsChangedError as error:
            if lookups.whole:
                raise UserCodeError(error.message, fix=error.fix) from error
            self._collector.run_whole()
            if before is not None:
                self._model.merging.restore(before)
            if self._group is not None:
                self._group.reset()
            raise

    def _placed(
        self, batches: Sequence[tuple[Tensors, Tensors]], inverse: Sequence[Mapping[str, Sequence[Lookup]]]
    ) -> tuple[list[tuple[Tensors, Tensors]], list[dict[str, list[Lookup]]]]:
        """Minibatches and their lookups where the model is; ids that are a feature stay the same tensor."""
        device, placed = self._model.device, dict[int, torch.Tensor]()
        moved = [(place(features, device, placed), place(labels, device, placed)) for features, labels in batches]
        return moved, [
            {
                table: [
                    Lookup(place(one.ids, device, placed), place(one.positions, device, placed), one.padding)
                    for one in lookups
                ]
                for table, lookups in each.items()
            }
            for each in inverse
        ]

    def _row_tensors(
        self, rows: Mapping[str, NDArray[np.float32]], lookups: Lookups, *, trained: bool
    ) -> dict[str, torch.Tensor]:
        """The rows of each table as a tensor, with zeros behind them where the table has padding."""
        made = {}
        for table in lookups.unique:
            values = as_tensor(rows[table])
            if self._model.device != HOST:
                values = values.to(self._model.device)
            if table in self._model.registry.padding:
                values = torch.cat([values, values.new_zeros(1, values.shape[1])])
            made[table] = values.detach().requires_grad_(trained)
        return made

    def _moved(
        self, tables: Mapping[str, torch.Tensor], gradients: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """The rows for the next minibatch of a group."""
        assert self._group is not None
        moved = self._group.move_rows(tables, gradients)
        return {table: moved.get(table, values).detach().requires_grad_() for table, values in tables.items()}


def clip(clipping: GradientClipping | None, gradients: Sequence[torch.Tensor]) -> None:
    """Clips gradients in place; merged gradients of rows count as one gradient for each table."""
    if clipping is None or not gradients:
        return
    if clipping.max_norm is not None:
        total = torch.nn.utils.get_total_norm(list(gradients), clipping.norm_type)
        # A norm that is not finite would make all of them so: what is wrong is found in them as they are.
        if torch.isfinite(total):
            factor = torch.clamp(clipping.max_norm / (total + NORM_SLACK), max=1.0)
            torch._foreach_mul_(list(gradients), factor)
    if clipping.clip_value is not None:
        torch._foreach_clamp_min_(list(gradients), -clipping.clip_value)
        torch._foreach_clamp_max_(list(gradients), clipping.clip_value)


def _gradients_of(tensors: Mapping[str, torch.Tensor]) -> dict[str, torch.Tensor]:
    """The gradients of what the loss depends on; sparse ones as dense ones."""
    found = {}
    for name, tensor in tensors.items():
        if tensor.grad is not None:
            found[name] = tensor.grad.to_dense() if tensor.grad.is_sparse else tensor.grad.contiguous()
    return found


def _add_to(totals: dict[str, torch.Tensor], gradients: Mapping[str, torch.Tensor]) -> None:
    for name, gradient in gradients.items():
        totals[name] = totals[name] + gradient if name in totals else gradient

"""Trains a model in one process: all parameters in it, the user's own optimizer, no parameter servers."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from contextlib import nullcontext
from typing import Any

import torch

from elasticdl.callbacks import Callback
from elasticdl.torch.lookup import finding_rows
from elasticdl_worker.trainers.framework import LocalStep, Outputs
from elasticdl_worker.trainers.learning_rates import checked_rate
from elasticdl_worker.trainers.minibatch import Minibatch, Tensors
from elasticdl_worker.trainers.not_finite import describe_bad_gradient
from elasticdl_worker.trainers.torch.device import HOST, run_backward
from elasticdl_worker.trainers.torch.model.build import BuiltModel
from elasticdl_worker.trainers.torch.model.optimizers import MadeOptimizer, clipping_of, rates_of, set_rates
from elasticdl_worker.trainers.torch.model.own_changes import OwnChanges
from elasticdl_worker.trainers.torch.nested import map_tensors
from elasticdl_worker.trainers.torch.step.denominators import TorchDenominators
from elasticdl_worker.trainers.torch.step.local_rounds import TorchLocalRound
from elasticdl_worker.trainers.torch.step.local_tables import TorchLocalTables
from elasticdl_worker.trainers.torch.step.programs import ForwardPass, clip
from elasticdl_worker.trainers.torch.step.touched_rows import TorchTouchedRows


class TorchLocalTrainer:
    """Steps of plain PyTorch training.

    Args:
        model: the model, the weights of its closed embeddings in it.
        forward: runs it.
        tables: its open tables.
        made: the user's optimizer; None where nothing is trained.
        callbacks: of the module.
        guard: what the user's schedule runs in.
        touched_rows: whether an update leaves the rows of tables alone that its minibatches do not have.
        denominators: of the loss, where several minibatches make an update; else None.

    Attributes:
        steps: number of updates so far.
        epoch: which epoch the next minibatch is of.
        start_version: the model version that these began at: that of the checkpoint, or 0.
    """

    def __init__(
        self,
        model: BuiltModel,
        forward: ForwardPass,
        tables: TorchLocalTables,
        made: MadeOptimizer | None,
        callbacks: Sequence[Callback],
        guard: Callable[[str], Any],
        *,
        touched_rows: bool = False,
        denominators: TorchDenominators | None = None,
    ) -> None:
        self.steps = 0
        self.epoch = 0
        self.start_version = 0
        self.model = model
        self.tables = tables
        self._forward = forward
        self._optimizer = None if made is None else made.optimizer
        self._rates = None if made is None else rates_of(made, callbacks, guard)
        self._clipping = clipping_of(callbacks)
        tables.use(self._optimizer)
        self._own_changes = OwnChanges(model)
        self._touched = TorchTouchedRows(model, tables) if touched_rows else None
        self._round = None if denominators is None else TorchLocalRound(model, tables, denominators)

    @property
    def outputs(self) -> Outputs:
        """Names of the model's outputs."""
        return self.model.outputs

    @property
    def version(self) -> int:
        """The model version: the number of updates that are in the model."""
        return self.start_version + self.steps

    @property
    def learning_rate(self) -> float | None:
        """The rate of the latest step; None where nothing is trained."""
        return None if self._optimizer is None else float(self._optimizer.param_groups[0]["lr"])

    def train(self, batch: Minibatch, *, closes: bool = True) -> LocalStep:
        """Updates the model by a minibatch, unless its loss or a gradient is not finite: then it changes nothing.

        Args:
            batch: the minibatch.
            closes: whether it is the last one of an update.
        """
        optimizer, held = self._optimizer, self._round
        assert optimizer is not None
        if self._rates is not None:
            rates = self._rates(self.version, self.epoch)
            name = type(optimizer).__name__
            set_rates(optimizer, [checked_rate(rate, self.version, name) for rate in rates])
        before = self.model.merging.read()
        optimizer.zero_grad(set_to_none=True)
        self._own_changes.begin()
        if self._touched is not None and (held is None or not held.is_open):
            self._touched.begin()
        with self._touched.noting() if self._touched is not None else nullcontext():
            before_loss = None if held is None else held.keeping(batch)
            loss, predictions = self._forward.train(batch.features, batch.labels, self.tables, before_loss)
            with finding_rows(self.tables):  # a part that is checkpointed runs once more
                run_backward(loss)
        self._own_changes.check(loss)
        predictions = map_tensors(torch.Tensor.detach, predictions)
        value = float(loss.detach())
        weight = None if held is None else held.weigh(batch.records, value)
        bad = "" if weight == 0.0 else self._not_finite(value)
        if bad:
            self.model.merging.restore(before)
            optimizer.zero_grad(set_to_none=True)
            return LocalStep(value, bad, predictions)
        if held is None or weight is None:
            self._update(optimizer)
        else:
            held.add(batch.records, weight, before)
            if closes:
                self.close_round()
        return LocalStep(value if weight != 0.0 else 0.0, predictions=predictions)

    def close_round(self) -> None:
        """Makes the update of the minibatches since the last one."""
        if self._round is not None and self._round.is_open:
            assert self._optimizer is not None
            self._round.close()
            self._update(self._optimizer)

    def _update(self, optimizer: torch.optim.Optimizer) -> None:
        clip(self._clipping, [grad for _, grad in self._gradients()])
        if self._touched is None:
            optimizer.step()
        else:
            self._touched.step(optimizer)
        self.steps += 1

    def predict(self, features: Tensors) -> Tensors:
        """The model's outputs, in inference mode."""
        return self._forward.predict(features, self.tables)

    def evaluation_loss(self, labels: Tensors, predictions: Tensors) -> torch.Tensor:
        """The loss of predictions."""
        return self._forward.evaluation_loss(labels, predictions)

    def _gradients(self) -> list[tuple[str, torch.Tensor]]:
        found = []
        for name, parameter in self.model.net.named_parameters():
            if parameter.grad is not None and parameter.grad.is_sparse:
                parameter.grad = parameter.grad.coalesce()
                found.append((name, parameter.grad._values()))
            elif parameter.grad is not None:
                found.append((name, parameter.grad))
        return found

    def _not_finite(self, loss: float) -> str:
        if loss != loss or loss in (float("inf"), float("-inf")):
            return f"the loss is {loss}"
        gradients = self._gradients()
        if self.model.device != HOST and _all_finite(gradients):
            return ""
        for name, gradient in gradients:
            if not bool(torch.isfinite(gradient).all()):
                return describe_bad_gradient(name, loss)
        return ""


def _all_finite(gradients: Sequence[tuple[str, torch.Tensor]]) -> bool:
    """Whether all are finite, at the price of one question to the device."""
    if not gradients:
        return True
    return bool(torch.stack([torch.isfinite(gradient).all() for _, gradient in gradients]).all())

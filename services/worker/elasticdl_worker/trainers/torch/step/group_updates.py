"""Updates in the worker itself, from one minibatch to the next of a group (``get_model_steps`` > 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

import torch
from torch import optim

from elasticdl_worker.trainers.torch.model.build import BuiltModel
from elasticdl_worker.trainers.torch.model.optimizers import MadeOptimizer, fresh_optimizer, set_rates


class TorchGroupUpdates:
    """Moves the worker's own copy of the parameters between the minibatches of a group.

    Dense parameters move as the user's optimizer says. Rows move by plain SGD where that is the optimizer (its
    momentum aside), else they stay as they were pulled: their slots are with the parameter servers. The sum of the
    gradients is pushed all the same, and the next group begins with what is pulled then.

    Args:
        model: the model.
        made: the user's optimizer.
        groups: the group of each parameter, by id.
    """

    def __init__(self, model: BuiltModel, made: MadeOptimizer, groups: Mapping[int, int]) -> None:
        self._model = model
        self._made = made
        self._optimizer = fresh_optimizer(made)
        self._moves_rows = type(made.optimizer) is optim.SGD
        self._groups = {table: groups[id(weight)] for table, weight in model.placeholders.items()}

    def set_rates(self, rates: Sequence[float]) -> None:
        """Sets the learning rate of each group for the next group of minibatches."""
        set_rates(self._optimizer, rates)

    def reset(self) -> None:
        """Resets the optimizer's state, after a gradient that is not finite."""
        rates = tuple(group["lr"] for group in self._optimizer.param_groups)
        self._optimizer = fresh_optimizer(self._made)
        self.set_rates(rates)

    def apply(self, gradients: Mapping[str, torch.Tensor]) -> None:
        """Updates the dense parameters by the gradients of one minibatch."""
        for name, parameter in self._model.trainable.items():
            parameter.grad = gradients.get(name)
        self._optimizer.step()

    def move_rows(
        self, rows: Mapping[str, torch.Tensor], gradients: Mapping[str, torch.Tensor]
    ) -> dict[str, torch.Tensor]:
        """The rows that gradients change, as they are for the next minibatch."""
        if not self._moves_rows:
            return {}
        return {table: rows[table].detach() - self._rate(table) * gradient for table, gradient in gradients.items()}

    def _rate(self, table: str) -> float:
        group = self._optimizer.param_groups[self._groups[table]]
        return -float(group["lr"]) if group["maximize"] else float(group["lr"])

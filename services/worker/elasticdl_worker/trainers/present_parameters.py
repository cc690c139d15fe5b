"""Predicts by the parameters that a model in this process has now, whichever version is pinned."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from typing import Any, Protocol

from elasticdl_worker.device import device_turn
from elasticdl_worker.trainers.framework import LossOf, Outputs
from elasticdl_worker.trainers.minibatch import Minibatch, Tensors
from elasticdl_worker.user_code import ModelModule


class HeldModel(Protocol):
    """A model with all of its parameters in this process."""

    @property
    def outputs(self) -> Outputs:
        """Names of the model's outputs."""

    def predict(self, features: Tensors) -> Tensors:
        """The model's outputs, in inference mode."""

    def evaluation_loss(self, labels: Tensors, predictions: Tensors) -> Any:
        """The loss of predictions without regularisation, as something that ``float`` takes."""


@dataclass(frozen=True)
class PresentParameters:
    """Evaluates and predicts where the parameters are those that are wanted.

    Members of a group pause for an evaluation; in a job that does not train they never change.

    Attributes:
        model: with all of its parameters.
        module: the user's module.
    """

    model: HeldModel
    module: ModelModule

    @property
    def outputs(self) -> Outputs:
        """Names of the model's outputs."""
        return self.model.outputs

    @property
    def evaluation_loss(self) -> LossOf:
        """The loss of labels and predictions."""
        return self.model.evaluation_loss

    def infer(self, minibatches: Iterable[Minibatch], pin: int) -> Iterator[tuple[Minibatch, Tensors]]:
        """The predictions of minibatches."""
        for batch in minibatches:
            with self.module.guard("the model"), device_turn():
                predictions = self.model.predict(batch.features)
            yield batch, predictions

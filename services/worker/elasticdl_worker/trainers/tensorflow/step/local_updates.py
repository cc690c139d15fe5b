"""Updates in the worker itself, from one minibatch to the next of a group (``get_model_steps`` > 1)."""

from __future__ import annotations

from collections.abc import Mapping, Sequence

from elasticdl_worker.trainers.tensorflow.framework import raw_variable, tf
from elasticdl_worker.trainers.tensorflow.model.build import PreparedModel
from elasticdl_worker.trainers.tensorflow.model.contract import optimizer_name
from elasticdl_worker.trainers.tensorflow.model.optimizers import build_optimizer, with_rate
from elasticdl_worker.trainers.tensorflow.types import KerasOptimizer, Tensor

_OWN_STEP = ("sgd",)
"""Optimizers whose update of a row is its gradient times the rate, without a memory that the worker lacks."""


class LocalUpdates:
    """Moves the worker's own copy of the parameters between the minibatches of a group.

    Dense parameters move as the user's Keras optimizer says. Rows move by plain SGD where that is the optimizer
    (its momentum aside), else they stay as they were pulled: their slots are with the parameter servers. The sum of
    the gradients is pushed all the same, and the next group begins with what is pulled then.

    Args:
        model: the model.
        optimizer: an instance of the user's Keras optimizer for this purpose alone.
        rate: the first learning rate if it changes with the model version, else None.
    """

    def __init__(self, model: PreparedModel, optimizer: KerasOptimizer, rate: float | None = None) -> None:
        self._model = model
        self._optimizer = optimizer if rate is None else with_rate(optimizer, rate)
        # The gradients that come in are clipped already.
        for option in ("clipnorm", "clipvalue", "global_clipnorm"):
            setattr(self._optimizer, option, None)
        build_optimizer(self._optimizer, model.keras_model.trainable_variables)
        self._moves_rows = optimizer_name(optimizer).lower() in _OWN_STEP
        self._names = list(model.trainable)
        self._decay = float(getattr(self._optimizer, "weight_decay", None) or 0.0)
        decayed = [spec for spec in model.dense_specs(self._optimizer) if spec.weight_decay and self._decay]
        self._decayed = {spec.name for spec in decayed if spec.name in model.trainable}
        variables = self._optimizer.variables
        self._variables = [raw_variable(v) for v in (variables() if callable(variables) else variables)]
        self._first = [variable.numpy() for variable in self._variables]

    def set_rates(self, rates: Sequence[float]) -> None:
        """Sets the learning rate for the next group: Keras' optimizers have one."""
        self._optimizer.learning_rate = rates[0]

    def reset(self) -> None:
        """Resets the optimizer's state, after a gradient that is not finite."""
        for variable, value in zip(self._variables, self._first, strict=True):
            variable.assign(value)

    def apply(self, gradients: Mapping[str, Tensor]) -> None:
        """Updates the dense parameters by the gradients of one minibatch; to be called while tracing."""
        variables = dict(zip(self._names, self._model.keras_model.trainable_variables, strict=True))
        self._optimizer.apply_gradients([(gradients[name], variables[name]) for name in sorted(gradients)])

    def decay_total(self, name: str, total: Tensor) -> Tensor:
        """The sum of a parameter's gradients so far, as it counts when a further minibatch decays the parameter.

        So one update by the sum, with a decay for each minibatch, is what the minibatches are one by one, where that
        is a matter of a factor: under SGD.
        """
        if not self._moves_rows or name not in self._decayed:
            return total
        return total * (1.0 - self._decay * self._rate())

    def update_rows(self, rows: Mapping[str, Tensor], gradients: Mapping[str, Tensor]) -> dict[str, Tensor]:
        """The rows that gradients change, as they are for the next minibatch; to be called while tracing."""
        if not self._moves_rows:
            return {}
        rate = self._rate()
        return {table: values - rate * gradients[table] for table, values in rows.items() if table in gradients}

    def _rate(self) -> Tensor:
        return tf.cast(tf.convert_to_tensor(self._optimizer.learning_rate), tf.float32)

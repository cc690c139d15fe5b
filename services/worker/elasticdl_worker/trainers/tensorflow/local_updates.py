"""Updates of the dense parameters in the worker itself, between two pulls of them (``get_model_steps`` > 1)."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from numpy.typing import NDArray

from elasticdl_worker.trainers.tensorflow.framework import tf
from elasticdl_worker.trainers.tensorflow.model import PreparedModel
from elasticdl_worker.trainers.tensorflow.optimizers import LearningRate


class LocalUpdates:
    """Applies the user's Keras optimizer to the worker's own copy of the dense parameters.

    The gradients are pushed all the same; the next pull replaces what was computed here.

    Args:
        model: the model.
        optimizer: an instance of the user's Keras optimizer for this purpose alone.
        learning_rate: the rate by model version, or None where it is constant.
    """

    def __init__(self, model: PreparedModel, optimizer: Any, learning_rate: LearningRate | None) -> None:
        self._model = model
        self._optimizer = optimizer
        self._learning_rate = learning_rate
        # The gradients that come in are clipped already.
        for option in ("clipnorm", "clipvalue", "global_clipnorm"):
            setattr(optimizer, option, None)
        self._optimizer.build(model.keras_model.trainable_variables)
        self._names = list(model.trainable)
        self._apply = tf.function(self._apply_now, autograph=False)

    def apply(self, gradients: Mapping[str, NDArray[Any]], version: int) -> None:
        """Updates the model by the gradients of one minibatch."""
        if self._learning_rate is not None and not hasattr(
            getattr(self._optimizer, "_learning_rate", None), "get_config"
        ):
            self._optimizer.learning_rate = self._learning_rate(version)
        self._apply({name: tf.convert_to_tensor(value) for name, value in gradients.items()})

    def _apply_now(self, gradients: Mapping[str, Any]) -> None:
        variables = dict(zip(self._names, self._model.keras_model.trainable_variables, strict=True))
        self._optimizer.apply_gradients([(gradients[name], variables[name]) for name in sorted(gradients)])

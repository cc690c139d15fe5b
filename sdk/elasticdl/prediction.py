"""The base class of a model module's handler of predictions."""

from __future__ import annotations

import abc
from typing import Any


class BasePredictionOutputsProcessor(abc.ABC):
    """Handles the outputs of prediction, minibatch by minibatch."""

    @abc.abstractmethod
    def process(self, predictions: Any, worker_id: int) -> None:
        """Handles the model's outputs for one minibatch.

        The same records may come again after a worker was lost, so writing should be idempotent.

        Args:
            predictions: numpy array, or dict of arrays by output, whose first dimension is the minibatch. An array
                has a method ``numpy()``, as a tensor has, that gives the plain array.
            worker_id: index of the worker.
        """

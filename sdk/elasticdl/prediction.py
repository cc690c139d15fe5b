"""The base class of a model module's handler of predictions."""

from __future__ import annotations

import abc
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray


@dataclass(frozen=True)
class PredictedTask:
    """The records that a task predicted: always the same ones for the same file, beginning and end.

    Attributes:
        name: the file (or the shard of a reader of your own).
        start: the first record in it.
        end: the one after the last.
        rows: the number of the record of each prediction; -1 where ``feed`` or damaged data let nobody know it.
    """

    name: str
    start: int
    end: int
    rows: NDArray[np.int64]


class BasePredictionOutputsProcessor(abc.ABC):
    """Handles the outputs of prediction, minibatch by minibatch.

    A class with a method ``process_task(predictions, task)`` gets all predictions of a task at once in its place,
    with a ``PredictedTask``. A task that is done again, because its worker was lost, is given again as a whole, so
    that what is written under its name (``ODPSWriter.from_task``) is there once.
    """

    @abc.abstractmethod
    def process(self, predictions: Any, worker_id: int) -> None:
        """Handles the model's outputs for one minibatch.

        The same records may come again after a worker was lost, so writing should be idempotent.

        Args:
            predictions: numpy array, or dict of arrays by output, whose first dimension is the minibatch. An array
                has a method ``numpy()``, as a tensor has, that gives the plain array.
            worker_id: index of the worker.
        """

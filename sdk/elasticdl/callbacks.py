"""Callbacks that a model module's ``callbacks()`` may return.

They are declarations: the worker or the master acts on them, wherever the knowledge is. They run the same in
``--local`` training and on a cluster.
"""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

__all__ = [
    "Callback",
    "EarlyStopping",
    "GradientClipping",
    "KeepBest",
    "LearningRateScheduler",
    "MaxStepsStopping",
    "SavedModelExporter",
]


class Callback:
    """Base of the callbacks that ElasticDL knows."""


@dataclass(frozen=True)
class LearningRateScheduler(Callback):
    """Sets the learning rate by the model version.

    Attributes:
        schedule: takes the model version (number of updates applied so far), returns the learning rate.
    """

    schedule: Callable[[int], float]


@dataclass(frozen=True)
class MaxStepsStopping(Callback):
    """Ends training after exactly so many updates of the job, whatever checkpoint it started from.

    Attributes:
        max_steps: number of updates, over all workers.
    """

    max_steps: int

    def __post_init__(self) -> None:
        if self.max_steps < 1:
            raise ValueError(f"max_steps is {self.max_steps}; give 1 or more")


@dataclass(frozen=True)
class EarlyStopping(Callback):
    """Ends training when a metric of the evaluations no longer improves.

    Attributes:
        monitor: name of the metric, as in ``eval_metrics_fn``; ``loss`` is there if the module has a loss.
        patience: number of evaluations without improvement after which training ends.
        mode: whether smaller (``min``) or larger (``max``) is better.
        min_delta: change that counts as an improvement.
        restore_best_weights: keep the model of the best evaluation, too, as ``KeepBest`` does.
    """

    monitor: str = "loss"
    patience: int = 3
    mode: Literal["min", "max"] = "min"
    min_delta: float = 0.0
    restore_best_weights: bool = False

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise ValueError(f"mode is {self.mode!r}; give 'min' or 'max'")
        if self.patience < 1:
            raise ValueError(f"patience is {self.patience}; give 1 or more")


@dataclass(frozen=True)
class KeepBest(Callback):
    """Keeps the checkpoint of the best evaluation, and exports it beside the last one, as ``--keep_best`` does.

    Attributes:
        monitor: name of the metric, as in ``eval_metrics_fn``; ``loss`` is there if the module has a loss.
        mode: whether smaller (``min``) or larger (``max``) is better.
        min_delta: change that counts as an improvement.
    """

    monitor: str = "loss"
    mode: Literal["min", "max"] = "min"
    min_delta: float = 0.0

    def __post_init__(self) -> None:
        if self.mode not in ("min", "max"):
            raise ValueError(f"mode is {self.mode!r}; give 'min' or 'max'")


@dataclass(frozen=True)
class SavedModelExporter(Callback):
    """Asks for an export as SavedModel at the end of training, whatever the job's export formats say."""


@dataclass(frozen=True)
class GradientClipping(Callback):
    """Clips the gradients of each update, for PyTorch models (a Keras optimizer has options for it).

    Attributes:
        max_norm: largest norm of all gradients together, as ``torch.nn.utils.clip_grad_norm_`` does it.
        norm_type: which norm that is; 2 for the Euclidean one.
        clip_value: largest absolute value of each element, as ``torch.nn.utils.clip_grad_value_`` does it.
    """

    max_norm: float | None = None
    norm_type: float = 2.0
    clip_value: float | None = None

    def __post_init__(self) -> None:
        if (self.max_norm is None) == (self.clip_value is None):
            raise ValueError("give max_norm or clip_value, one of them")
        for value in (self.max_norm, self.clip_value):
            if value is not None and not value > 0:
                raise ValueError(f"gradients cannot be clipped to {value}; give a number over 0")

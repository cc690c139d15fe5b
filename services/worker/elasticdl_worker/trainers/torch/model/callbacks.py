"""A module's callbacks: those of ``elasticdl.callbacks``, and schedulers of PyTorch's learning rates."""

from __future__ import annotations

import functools
import inspect

from torch.optim.lr_scheduler import LRScheduler, ReduceLROnPlateau

from elasticdl.callbacks import (
    Callback,
    EarlyStopping,
    GradientClipping,
    KeepBest,
    LearningRateScheduler,
    MaxStepsStopping,
)
from elasticdl_core.contract import Subject, refusal
from elasticdl_core.errors import UserCodeError
from elasticdl_worker.trainers.declared_rules import given_callbacks
from elasticdl_worker.trainers.torch.model.optimizers import TorchScheduler, clipping_of
from elasticdl_worker.user_code import ModelModule

OWN = (EarlyStopping, GradientClipping, KeepBest, LearningRateScheduler, MaxStepsStopping)


def callbacks_of(module: ModelModule) -> list[Callback]:
    """The callbacks of a module, each of them one that is acted upon.

    Raises:
        UserCodeError: ``callbacks()`` raised, or gave something that nobody would act upon; with its name.
    """
    found = [_translated(one) for one in given_callbacks(module)]
    if len([one for one in found if isinstance(one, LearningRateScheduler | TorchScheduler)]) > 1:
        raise UserCodeError("callbacks() gives more than one learning rate scheduler", fix="keep one of them")
    clipping_of(found)
    return found


def _translated(callback: object) -> Callback:
    kind = type(callback)
    if isinstance(callback, Callback) and kind in OWN:
        return callback
    if isinstance(callback, Callback):
        raise refusal(Subject.TORCH_CALLBACK, "Callback", f"the callback {kind.__name__}")
    made = callback.func if isinstance(callback, functools.partial) else callback
    if inspect.isclass(made) and issubclass(made, LRScheduler | ReduceLROnPlateau):
        assert callable(callback)
        return TorchScheduler(callback)
    if isinstance(callback, LRScheduler | ReduceLROnPlateau):
        raise UserCodeError(
            f"callbacks() gives a {kind.__name__} that is made already, of an optimizer that is not the job's",
            fix=f"give functools.partial(torch.optim.lr_scheduler.{kind.__name__}, ...), without the optimizer",
        )
    if inspect.isclass(callback):
        raise UserCodeError(
            f"callbacks() gives the class {callback.__name__}", fix=f"give an object: {callback.__name__}(...)"
        )
    raise refusal(Subject.TORCH_CALLBACK, "Callback", f"the callback {kind.__name__}")

"""A module's callbacks in the words of ``elasticdl.callbacks``: Keras' own are translated or refused."""

from __future__ import annotations

import inspect
import math
from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Literal, cast

from elasticdl.callbacks import (
    Callback,
    EarlyStopping,
    KeepBest,
    LearningRateScheduler,
    MaxStepsStopping,
    SavedModelExporter,
)
from elasticdl_core.contract import Subject, Verdict, find, refusal
from elasticdl_core.errors import UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_core.watched_metric import direction_of
from elasticdl_worker.trainers.declared_rules import LIST_OF_CALLBACKS, given_callbacks
from elasticdl_worker.trainers.tensorflow.framework import keras
from elasticdl_worker.trainers.tensorflow.model.contract import describe_class
from elasticdl_worker.trainers.tensorflow.types import (
    KerasEarlyStopping,
    KerasLearningRateScheduler,
    KerasModelCheckpoint,
)
from elasticdl_worker.user_code import ModelModule

OWN = (EarlyStopping, KeepBest, LearningRateScheduler, MaxStepsStopping, SavedModelExporter)


@dataclass(frozen=True)
class EpochSchedule(Callback):
    """The learning rate by epoch: what Keras' ``LearningRateScheduler`` asks for.

    Attributes:
        schedule: takes the epoch, from 0, and the rate of the epoch before if ``with_rate``.
        with_rate: whether it takes that.
    """

    schedule: Callable[..., float]
    with_rate: bool

    def rate(self, epoch: int, first: float) -> float:
        """The rate of an epoch.

        Args:
            epoch: counted from 0.
            first: the optimizer's own rate.
        """
        if not self.with_rate:
            return float(self.schedule(epoch))
        rate = first
        for number in range(epoch + 1):
            rate = float(self.schedule(number, rate))
        return rate


def callbacks_of(module: ModelModule, spec: JobSpec) -> list[Callback]:
    """The callbacks of a module, each of them one that is acted upon.

    Raises:
        UserCodeError: ``callbacks()`` raised, or gave something that nobody would act upon; with its name.
    """
    given = given_callbacks(module)
    found = translate_callbacks(given)
    if spec.on_nan != "fail" and any(isinstance(one, keras.callbacks.TerminateOnNaN) for one in given):
        raise UserCodeError(
            f"callbacks() has TerminateOnNaN, but the job has --on_nan {spec.on_nan}", fix="leave out one of them"
        )
    _check_rates(found)
    return found


def translate_callbacks(given: Iterable[object]) -> list[Callback]:
    """Callbacks in the words of ``elasticdl.callbacks``.

    Raises:
        UserCodeError: one of them is refused, or is no callback at all.
    """
    return [one for callback in given if (one := _translate(callback)) is not None]


def _translate(callback: object) -> Callback | None:
    kind = type(callback)
    if kind in OWN:
        return cast(Callback, callback)
    if inspect.isclass(callback):
        raise UserCodeError(
            f"callbacks() gives the class {callback.__name__}", fix=f"give an object: {callback.__name__}(...)"
        )
    if isinstance(callback, Callback):
        raise refusal(Subject.CALLBACK, "Callback", f"the callback {describe_class(kind)}")
    known = getattr(keras.callbacks, kind.__name__, None) is kind
    if not known and isinstance(callback, keras.callbacks.Callback):
        raise refusal(Subject.CALLBACK, "Callback", f"the callback {describe_class(kind)}")
    if not known:
        raise UserCodeError(
            f"callbacks() gives {callback!r:.80}, a {kind.__name__}, which is no callback", fix=LIST_OF_CALLBACKS
        )
    row = find(Subject.CALLBACK, kind.__name__)
    if row is None or row.verdict is Verdict.REFUSED:
        raise refusal(Subject.CALLBACK, kind.__name__ if row else "Callback", f"the Keras callback {kind.__name__}")
    translate = _TRANSLATIONS.get(kind.__name__)
    return None if translate is None else translate(callback)


def _early_stopping(callback: KerasEarlyStopping) -> EarlyStopping:
    name = _watched(callback)
    _refuse_options(
        callback, baseline=callback.baseline is not None, start_from_epoch=bool(callback.start_from_epoch)
    )
    return EarlyStopping(
        name,
        max(1, int(callback.patience)),
        _mode(callback, name),
        abs(float(callback.min_delta)),
        bool(callback.restore_best_weights),
    )


def _keep_best(callback: KerasModelCheckpoint) -> KeepBest:
    if not callback.save_best_only:
        raise UserCodeError(
            "the Keras callback ModelCheckpoint would save one worker's copy of the model",
            fix="use --checkpoint_steps, --checkpoint_dir and --keep_checkpoint_max, or give it save_best_only=True",
        )
    name = _watched(callback)
    _refuse_options(
        callback,
        save_weights_only=bool(callback.save_weights_only),
        save_freq=callback.save_freq != "epoch",
        initial_value_threshold=callback.best is not None and math.isfinite(callback.best),
    )
    return KeepBest(name, _mode(callback, name))


def _watched(callback: KerasEarlyStopping | KerasModelCheckpoint) -> str:
    """The metric of evaluations that a callback watches."""
    monitor = str(callback.monitor)
    if not monitor.startswith("val_"):
        raise UserCodeError(
            f"the Keras callback {type(callback).__name__} watches {monitor!r}, a metric of training minibatches",
            fix=f"watch an evaluation: monitor='val_{monitor}'",
        )
    return monitor.removeprefix("val_")


def _refuse_options(callback: object, **asked: bool) -> None:
    for option, asks in asked.items():
        if asks:
            raise UserCodeError(
                f"the Keras callback {type(callback).__name__} has {option}, which a job cannot do",
                fix=f"leave out {option}",
            )


def _mode(callback: KerasEarlyStopping | KerasModelCheckpoint, name: str) -> Literal["min", "max"]:
    # Version 2 keeps no mode, but the comparison that follows from it.
    mode = getattr(callback, "mode", None) or str(getattr(callback.monitor_op, "__name__", ""))
    if mode in ("min", "less"):
        return "min"
    if mode in ("max", "greater"):
        return "max"
    known = direction_of(name)
    if known:
        return "max" if known == "max" else "min"
    raise UserCodeError(
        f"the Keras callback {type(callback).__name__} watches {callback.monitor!r} and does not say whether more is "
        "better",
        fix="give mode='max' or mode='min'",
    )


def _epoch_rates(callback: KerasLearningRateScheduler) -> EpochSchedule:
    schedule = callback.schedule
    try:
        inspect.signature(schedule).bind(0, 0.1)
    except (TypeError, ValueError):
        return EpochSchedule(schedule, with_rate=False)
    return EpochSchedule(schedule, with_rate=True)


_TRANSLATIONS: dict[str, Callable[..., Callback]] = {
    "EarlyStopping": _early_stopping,
    "LearningRateScheduler": _epoch_rates,
    "ModelCheckpoint": _keep_best,
}


def _check_rates(callbacks: list[Callback]) -> None:
    """Refuses schedules of which one would have no effect."""
    rates = [c for c in callbacks if isinstance(c, LearningRateScheduler | EpochSchedule)]
    if len(rates) > 1:
        raise UserCodeError("callbacks() gives more than one LearningRateScheduler", fix="keep one of them")

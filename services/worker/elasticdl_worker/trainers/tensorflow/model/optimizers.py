"""Keras optimizers in the words of the parameter servers, and gradient clipping, which the worker does."""

from __future__ import annotations

import re
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from typing import cast

from elasticdl.callbacks import Callback, LearningRateScheduler
from elasticdl_core.errors import UserCodeError
from elasticdl_core.model import OptimizerSpec, TableSpec, UpdateClipping
from elasticdl_worker.trainers.framework import LearningRate
from elasticdl_worker.trainers.tensorflow.framework import keras, tf
from elasticdl_worker.trainers.tensorflow.model.callbacks import EpochSchedule
from elasticdl_worker.trainers.tensorflow.model.contract import check_optimizer, keras_class, optimizer_name
from elasticdl_worker.trainers.tensorflow.types import KerasOptimizer, KerasVariable, Tensor

_NAMES = {
    "sgd": ("momentum", "nesterov"),
    "adam": ("beta_1", "beta_2", "epsilon", "amsgrad"),
    "adamw": ("beta_1", "beta_2", "epsilon", "amsgrad"),
    "adagrad": ("initial_accumulator_value", "epsilon"),
    "rmsprop": ("rho", "momentum", "epsilon", "centered"),
    "adadelta": ("rho", "epsilon"),
    "adamax": ("beta_1", "beta_2", "epsilon"),
    "ftrl": (
        "learning_rate_power",
        "initial_accumulator_value",
        "l1_regularization_strength",
        "l2_regularization_strength",
        "l2_shrinkage_regularization_strength",
        "beta",
    ),
}
_CLIPPING = ("clipnorm", "clipvalue", "global_clipnorm")
_EXCLUSIONS = (
    "_exclude_from_weight_decay",
    "_exclude_from_weight_decay_pattern",
    "_exclude_from_weight_decay_names",
)
"""Where Keras 3, and in the last one Keras 2, keep what ``exclude_from_weight_decay`` was given."""
TABLE_WEIGHT = "embeddings"
"""The name of an Embedding layer's variable, which a table stands for: what is excluded from weight decay by name."""
Guard = Callable[[str], AbstractContextManager[object]]
"""Runs the user's code: takes what it is, for messages."""


@dataclass(frozen=True)
class Clipping:
    """Clipping of gradients before they leave the worker; at most one is set, as in Keras.

    Attributes:
        clipnorm: largest norm of each gradient.
        clipvalue: largest absolute value of each element.
        global_clipnorm: largest norm of all gradients together.
    """

    clipnorm: float | None = None
    clipvalue: float | None = None
    global_clipnorm: float | None = None

    def apply(self, gradients: Sequence[Tensor]) -> list[Tensor]:
        """Clips gradients; merged gradients of rows count as one gradient for each table."""
        if self.clipnorm:
            return [tf.clip_by_norm(g, self.clipnorm) for g in gradients]
        if self.global_clipnorm:
            return list(tf.clip_by_global_norm(list(gradients), self.global_clipnorm)[0])
        if self.clipvalue:
            return [tf.clip_by_value(g, -self.clipvalue, self.clipvalue) for g in gradients]
        return list(gradients)


@dataclass(frozen=True)
class TranslatedOptimizer:
    """The translation of a Keras optimizer.

    Attributes:
        spec: for the parameter servers.
        clipping: for the worker.
        learning_rate: the rate by model version and epoch, or None where it is constant.
    """

    spec: OptimizerSpec
    clipping: Clipping
    learning_rate: LearningRate | None

    @property
    def clipping_of_updates(self) -> UpdateClipping:
        """The clipping as parameter servers do it."""
        asked = self.clipping
        if asked.clipnorm:
            return UpdateClipping("norm", asked.clipnorm)
        if asked.global_clipnorm:
            return UpdateClipping("global_norm", asked.global_clipnorm)
        return UpdateClipping("value", asked.clipvalue) if asked.clipvalue else UpdateClipping()


def translate(
    optimizer: KerasOptimizer, callbacks: Sequence[Callback] = (), guard: Guard = nullcontext
) -> TranslatedOptimizer:
    """Translates a Keras optimizer for parameter servers.

    Args:
        optimizer: the instance.
        callbacks: of the model module; a scheduler among them sets the rate.
        guard: what the user's schedule runs in.

    Raises:
        UserCodeError: an optimizer or an option that the parameter servers do not have.
    """
    optimizer = check_optimizer(optimizer)
    name = optimizer_name(optimizer).lower()
    schedule = learning_rate_of(optimizer, callbacks, guard)
    config = config_of(optimizer)
    params: dict[str, float | bool] = {
        "learning_rate": schedule(0, 0) if schedule else float(tf.convert_to_tensor(optimizer.learning_rate))
    }
    for key in _NAMES[name]:
        if key in config:
            value = config[key]
            params[key] = value if isinstance(value, bool) else float(cast(float, value))
    decay = config.get("weight_decay")
    if decay is not None:
        params["weight_decay"] = float(cast(float, decay))
    clipping = Clipping(*(cast("float | None", config.get(option)) for option in _CLIPPING))
    return TranslatedOptimizer(OptimizerSpec(name, params), clipping, schedule)


def check_groups(optimizer: TranslatedOptimizer, tables: Sequence[TableSpec], steps: int) -> None:
    """Refuses weight decay of rows by groups: a row decays with each minibatch that has it, and not with the others.

    Args:
        optimizer: of the job.
        tables: the embedding tables.
        steps: minibatches in a group.

    Raises:
        UserCodeError: it would act once a group.
    """
    decay = optimizer.spec.params.get("weight_decay")
    found = next((table.name for table in tables if table.weight_decay), None)
    if steps > 1 and decay and found is not None:
        raise UserCodeError(
            f"the rows of {found} decay by weight_decay={decay}, which groups of minibatches cannot count",
            fix=f"set --get_model_steps 1, or optimizer.exclude_from_weight_decay(var_names=[{TABLE_WEIGHT!r}])",
        )


def uses_weight_decay(optimizer: KerasOptimizer, variable: KerasVariable) -> bool:
    """Whether the optimizer's weight decay applies to a variable."""
    check = getattr(optimizer, "_use_weight_decay", None)
    return bool(check(variable)) if callable(check) else True


def excludes(optimizer: KerasOptimizer, name: str) -> bool:
    """Whether ``exclude_from_weight_decay`` was given words that are in a variable's name."""
    pattern = getattr(optimizer, "_exclude_from_weight_decay_pattern", None)
    words = [*([pattern] if pattern else []), *getattr(optimizer, "_exclude_from_weight_decay_names", ())]
    return any(re.search(word, name) for word in words)


def config_of(optimizer: KerasOptimizer) -> dict[str, object]:
    """A Keras optimizer's configuration, in which a schedule is replaced by a number.

    A schedule of the user's own need not have a ``get_config``: nothing here is written to a file.
    """
    rate = _own_rate(optimizer)
    if not isinstance(rate, keras.optimizers.schedules.LearningRateSchedule) or not hasattr(
        optimizer, "_learning_rate"
    ):
        return dict(optimizer.get_config())
    optimizer._learning_rate = 1.0
    try:
        return dict(optimizer.get_config())
    finally:
        optimizer._learning_rate = rate


def rebuild_optimizer(optimizer: KerasOptimizer, **changes: object) -> KerasOptimizer:
    """A fresh optimizer of the same configuration, which leaves the same variables without weight decay.

    Args:
        optimizer: a Keras optimizer.
        changes: what is different in its configuration.
    """
    fresh = keras_class(optimizer).from_config({**config_of(optimizer), **changes})
    for name in _EXCLUSIONS:
        if hasattr(optimizer, name):
            setattr(fresh, name, getattr(optimizer, name))
    return fresh


def build_optimizer(optimizer: KerasOptimizer, variables: Sequence[KerasVariable]) -> None:
    """Makes an optimizer's own variables for what it is to train; older ones of Keras 2 call it otherwise."""
    name = "build" if hasattr(optimizer, "build") else "_create_all_weights"
    getattr(optimizer, name)(variables)


def with_rate(optimizer: KerasOptimizer, rate: float) -> KerasOptimizer:
    """The same optimizer with a rate that can be set, in place of a schedule that counts its own steps."""
    if not isinstance(_own_rate(optimizer), keras.optimizers.schedules.LearningRateSchedule):
        return optimizer
    return rebuild_optimizer(optimizer, learning_rate=rate)


def learning_rate_of(
    optimizer: KerasOptimizer, callbacks: Sequence[Callback], guard: Guard = nullcontext
) -> LearningRate | None:
    """The learning rate by model version and epoch, or None where it is constant.

    Args:
        optimizer: the instance.
        callbacks: of the model module.
        guard: what the user's schedule runs in.

    Raises:
        UserCodeError: the optimizer and a callback both have a schedule.
    """
    rate = _rate_of(optimizer, callbacks)
    if rate is None:
        return None

    def guarded_rate(version: int, epoch: int) -> float:
        with guard("the learning rate schedule"):
            return rate(version, epoch)

    return guarded_rate


def _rate_of(optimizer: KerasOptimizer, callbacks: Sequence[Callback]) -> LearningRate | None:
    found = _own_rate(optimizer)
    for callback in callbacks:
        if isinstance(callback, LearningRateScheduler | EpochSchedule):
            if isinstance(found, keras.optimizers.schedules.LearningRateSchedule):
                raise UserCodeError(
                    f"callbacks() has a LearningRateScheduler, and the optimizer a {type(found).__name__} besides",
                    fix="keep one of them",
                )
            return _of_callback(callback, float(tf.convert_to_tensor(optimizer.learning_rate)))
    if not isinstance(found, keras.optimizers.schedules.LearningRateSchedule):
        return None
    compiled = tf.function(lambda step: tf.cast(found(step), tf.float32), autograph=False)
    return lambda version, epoch: float(compiled(tf.constant(version, tf.int64)))


def _of_callback(callback: LearningRateScheduler | EpochSchedule, first: float) -> LearningRate:
    if isinstance(callback, EpochSchedule):
        return lambda version, epoch: callback.rate(epoch, first)
    schedule = callback.schedule
    return lambda version, epoch: float(schedule(version))


def _own_rate(optimizer: object) -> object:
    # The optimizers of Keras 2 that came before 2.11 keep their numbers in ``_hyper``.
    return getattr(optimizer, "_hyper", {}).get("learning_rate", getattr(optimizer, "_learning_rate", None))

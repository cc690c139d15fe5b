"""Refuses what a model module brings and nobody would act on; what that is says ``elasticdl_core.contract``."""

from __future__ import annotations

import functools
import inspect
import sys
from collections.abc import Iterator, Mapping
from typing import cast

from elasticdl_core.contract import Subject, Verdict, find, refusal
from elasticdl_core.errors import UserCodeError
from elasticdl_worker.trainers.tensorflow.framework import keras, raw_variable, tf
from elasticdl_worker.trainers.tensorflow.types import KerasModel, KerasOptimizer
from elasticdl_worker.user_code.zoo_path import source_location

_KERAS = ("keras.", "tf_keras.", "tensorflow.", "elasticdl.")
_WRAPPING = ("elasticdl_worker.", "contextlib")
_HALF = "float16"
_UNKNOWN = ("use_ema", "loss_scale_factor", "gradient_accumulation_steps", "adaptive_epsilon")


def check_optimizer(optimizer: object) -> KerasOptimizer:
    """Returns a Keras optimizer instance, made from its name if it is one.

    Raises:
        UserCodeError: it is no optimizer of the Keras in use, has an update of its own, or has an option that the
            parameter servers do not have.
    """
    if isinstance(optimizer, str):
        try:
            optimizer = keras.optimizers.get(optimizer)
        except ValueError:
            raise UserCodeError(
                f"optimizer() returned {optimizer!r}, which Keras does not know",
                fix="return a Keras optimizer, e.g. tf.keras.optimizers.Adam(0.001)",
            ) from None
    if inspect.isclass(optimizer) or not hasattr(optimizer, "apply_gradients"):
        what = "a class, not an instance" if inspect.isclass(optimizer) else f"a {type(optimizer).__name__}"
        raise UserCodeError(
            f"optimizer() returned {what}", fix="return a Keras optimizer, e.g. tf.keras.optimizers.Adam(0.001)"
        )
    name = optimizer_name(optimizer)
    row = find(Subject.OPTIMIZER, name)
    if row is None or row.verdict is Verdict.REFUSED:
        raise refusal(Subject.OPTIMIZER, name if row else "Optimizer", f"the optimizer {name}")
    if replaced := _replaced(optimizer):
        shown = f"the optimizer {name}, whose {', '.join(replaced)} the module replaced,"
        raise refusal(Subject.OPTIMIZER, "Optimizer", shown)
    _check_options(optimizer, name)
    return cast(KerasOptimizer, optimizer)


def optimizer_name(optimizer: object) -> str:
    """The name in Keras of the class that an optimizer is of, or that its class adds nothing to.

    Raises:
        UserCodeError: the class changes what Keras' own does, or is of another Keras.
    """
    kind = type(optimizer)
    known = _own_classes()
    base = next((one for one in kind.__mro__ if one in known), None)
    if base is None or known[base] == "Optimizer":
        if kind.__module__.startswith(_KERAS):
            raise UserCodeError(
                f"the optimizer {kind.__name__} is of {kind.__module__.partition('.')[0]}, which is not the Keras in "
                f"use, {keras.__name__.partition('.')[0]}",
                fix="import it as tf.keras.optimizers; for Keras 2 (tf_keras) give --keras legacy",
            )
        raise refusal(Subject.OPTIMIZER, "Optimizer", f"the optimizer {describe_class(kind)}")
    changed = sorted({name for one in kind.__mro__ if one not in known for name in _overridden(one, base)})
    if changed:
        raise refusal(
            Subject.OPTIMIZER,
            "Optimizer",
            f"the optimizer {kind.__name__}, a {known[base]} with its own {', '.join(changed)},",
        )
    return known[base]


def keras_class(optimizer: KerasOptimizer) -> type[KerasOptimizer]:
    """Keras' own class of an optimizer: a subclass may take other arguments."""
    known = _own_classes()
    return next((one for one in type(optimizer).__mro__ if one in known), type(optimizer))


def describe_class(kind: type) -> str:
    """A class of the user's, with its file."""
    return f"{kind.__name__} ({getattr(sys.modules.get(kind.__module__), '__file__', None) or kind.__module__})"


def _own_classes() -> Mapping[type, str]:
    """Keras' optimizers, those of version 2 that were there before 2.11 included."""
    found: dict[type, str] = {}
    for place in ("experimental", "legacy", ""):
        namespace = getattr(keras.optimizers, place, None) if place else keras.optimizers
        for name, value in vars(namespace).items() if namespace is not None else ():
            if inspect.isclass(value) and callable(getattr(value, "apply_gradients", None)):
                found[value] = name
    return found


def _overridden(kind: type, base: type) -> Iterator[str]:
    """The methods of Keras' optimizer that a class between it and the user's overrides."""
    if kind is object or kind in base.__mro__:
        return
    for name in vars(kind):
        plain = name.startswith("__") and name.endswith("__")
        if not plain and hasattr(base, name):
            yield name


def _replaced(thing: object) -> list[str]:
    """Methods of Keras' own classes that were replaced, on the instance or on the class, by others than Keras."""
    own = [kind for kind in reversed(type(thing).__mro__) if kind.__module__.startswith(_KERAS)]
    methods = {name: value for kind in own for name, value in vars(kind).items() if inspect.isroutine(value)}
    given = {name: value for name, value in vars(thing).items() if name in methods}
    return sorted(name for name, value in (methods | given).items() if not _is_of_keras(value))


def _is_of_keras(method: object) -> bool:
    # What binds a method of Keras, as Keras itself does with some, is of Keras; what wraps one has to be, too.
    while True:
        method = getattr(method, "__func__", method)
        if not (inspect.isfunction(method) or isinstance(method, functools.partial)):
            return True
        written_in = getattr(method, "__globals__", {}).get("__name__", "")
        if not written_in.startswith(_KERAS + _WRAPPING):
            return False
        wrapped = getattr(method, "__wrapped__", None)
        if wrapped is None:
            return True
        method = wrapped


def _check_options(optimizer: object, name: str) -> None:
    given = {option: getattr(optimizer, option, None) for option in _UNKNOWN}
    given["decay"] = getattr(optimizer, "_initial_decay", None)
    for option, value in given.items():
        if value:
            raise refusal(Subject.OPTION, option, f"the optimizer {name} has {option}={value}, which")
    rate = getattr(optimizer, "_hyper", {}).get("learning_rate", getattr(optimizer, "_learning_rate", None))
    schedule = keras.optimizers.schedules.LearningRateSchedule
    if callable(rate) and not isinstance(rate, schedule | tf.Variable) and not hasattr(rate, "assign"):
        raise refusal(Subject.OPTION, "learning_rate=callable", f"the learning rate of the optimizer {name}")


def check_model(model: KerasModel, *, training: bool) -> None:
    """Refuses a model that defines what is never called or cannot be trained as Keras would.

    Args:
        model: a Keras model that was built.
        training: whether it is to be trained.

    Raises:
        UserCodeError: see the table.
    """
    kind = type(model)
    for one in kind.__mro__:
        if one.__module__.startswith(_KERAS) or one is object:
            continue
        for name in vars(one):
            row = None if name.startswith("_") else find(Subject.MODEL, name)
            if row is not None and row.verdict is Verdict.REFUSED and hasattr(keras.Model, name):
                raise refusal(
                    Subject.MODEL, name, f"{one.__name__}.{name}{source_location(getattr(one, name, None))}"
                )
    for name in _replaced(model):
        row = find(Subject.MODEL, name)
        if row is not None and row.verdict is Verdict.REFUSED:
            raise refusal(Subject.MODEL, name, f"{name} of the model {model.name}, which the module replaced,")
    if getattr(model, "compiled", False) or getattr(model, "_is_compiled", False):
        raise refusal(Subject.MODEL, "compile", f"compile() was called on the model {model.name}, which")
    if model.metrics:
        names = ", ".join(metric.name for metric in model.metrics)
        raise refusal(Subject.LAYER, "metric_of_a_layer", f"the metric {names} inside the model {model.name}")
    if training:
        _check_policies(model)


def _check_policies(model: KerasModel) -> None:
    for layer in model._flatten_layers():
        if getattr(layer, "compute_dtype", None) == _HALF and layer.trainable_variables:
            policy = getattr(layer.dtype_policy, "name", _HALF)
            name = policy if find(Subject.LAYER, str(policy)) else _HALF
            raise refusal(Subject.LAYER, name, f"the policy {policy} of the layer {layer.name}")
    for variable in model.trainable_variables:
        if raw_variable(variable).dtype == tf.float16:
            raise refusal(Subject.LAYER, _HALF, f"the trainable variable {variable.name} in float16")

"""A decorator that says which inputs a subclassed model takes."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, TypeVar

_Model = TypeVar("_Model", bound=type[Any])


def declare_model_inputs(*names: str) -> Callable[[_Model], _Model]:
    """Sets ``_model_inputs`` of a model's class to names.

    Raises:
        ValueError: there is none, or one is no string.
    """
    if not names or not all(isinstance(name, str) for name in names):
        raise ValueError(f"declare_model_inputs takes the names of the inputs, at least one, not {names}")

    def decorate(model: _Model) -> _Model:
        setattr(model, "_model_inputs", list(names))  # noqa: B010  # the class does not declare it
        return model

    return decorate

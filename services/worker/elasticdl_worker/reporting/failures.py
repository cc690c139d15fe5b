"""Kinds of failures, as the master counts them."""

from __future__ import annotations

from elasticdl_core.errors import DataError, ElasticDLError, UserCodeError


class NotFiniteError(UserCodeError):
    """A minibatch has a loss or gradients that are NaN or infinite; another worker would fail in the same way."""


def classify(error: BaseException) -> tuple[str, ElasticDLError, str]:
    """Gives the kind of a failure for the master, the error to show, and its traceback."""
    if isinstance(error, NotFiniteError):
        return "nan", error, ""
    if isinstance(error, UserCodeError):
        return "user_code", error, error.traceback
    if isinstance(error, DataError):
        return "data", error, ""
    if isinstance(error, ElasticDLError):
        return "infrastructure", error, ""
    shown = ElasticDLError(f"{type(error).__name__}: {error}", fix="see the worker's log")
    return "infrastructure", shown, ""

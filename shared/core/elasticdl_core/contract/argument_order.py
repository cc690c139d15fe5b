"""The order of the arguments of losses and metric functions: labels come first; names tell who forgot it."""

from __future__ import annotations

import inspect
from collections.abc import Callable, Sequence

from elasticdl_core.errors import UserCodeError

_PREDICTIONS = frozenset(
    (
        *("input", "inputs", "logit", "logits", "out", "output", "outputs", "pred", "preds"),
        *("predicted", "prediction", "predictions", "y_hat", "y_pred", "y_preds", "yhat"),
    )
)
_LABELS = frozenset(
    (
        *("ground_truth", "gt", "label", "labels", "target", "targets", "true", "truth"),
        *("y", "y_target", "y_targets", "y_true", "ytrue"),
    )
)


def names_swapped(names: Sequence[str]) -> bool:
    """Whether the names of arguments say that predictions come first and labels second."""
    return len(names) > 1 and names[0].lower() in _PREDICTIONS and names[1].lower() in _LABELS


def swapped_words(what: str, names: Sequence[str]) -> tuple[str, str]:
    """The fault of a function whose arguments are in the other order, and the remedy."""
    return (
        f"{what} names its arguments ({names[0]}, {names[1]}), but labels come first: it would take labels for "
        "predictions",
        f"write it as a function of (labels, predictions): def ...({names[1]}, {names[0]})",
    )


def refuse_swapped(what: str, function: Callable[..., object]) -> None:
    """Refuses a function that names the predictions first, and a class, which would make an object of them.

    Args:
        what: names it for the message, e.g. ``the loss``.
        function: it.

    Raises:
        UserCodeError: it does, or is one.
    """
    if inspect.isclass(function):
        raise UserCodeError(f"{what} is the class {function.__name__}", fix=f"give an object: {function.__name__}()")
    try:
        signature = inspect.signature(function)
    except (TypeError, ValueError):
        return
    kinds = (inspect.Parameter.POSITIONAL_ONLY, inspect.Parameter.POSITIONAL_OR_KEYWORD)
    names = [one.name for one in signature.parameters.values() if one.kind in kinds]
    refuse_swapped_names(what, names)


def refuse_swapped_names(what: str, names: Sequence[str]) -> None:
    """Refuses arguments whose names say that predictions come first.

    Raises:
        UserCodeError: they do.
    """
    names = names[1:] if names[:1] == ["self"] else names
    if names_swapped(names):
        message, fix = swapped_words(what, names)
        raise UserCodeError(message, fix=fix)

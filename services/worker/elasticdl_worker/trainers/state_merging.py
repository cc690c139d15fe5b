"""Merges the changes of a model's state by several workers, or by the parts of an update, into one."""

from __future__ import annotations

import enum
import math
from collections.abc import Mapping
from typing import Any

from elasticdl_core.errors import UserCodeError

DECLARED_BY = "state_merging"
"""The attribute of a layer or module that says it: ``{"low": "min"}``, by the names of what it holds."""


class Merge(enum.StrEnum):
    """A rule for one tensor of the state."""

    AVERAGE = "average"
    """A running statistic, of which a known share is kept in each update."""
    ONCE = "once"
    """A count of updates: the parts of one count once, and the changes of workers with servers are added."""
    SUM = "sum"
    """A counter: all changes are added."""
    MEAN = "mean"
    """Parts of an update move it by the mean of their changes; of workers with servers the last value counts."""
    MAX = "max"
    MIN = "min"
    LAST = "last"
    """The value of the last part of an update, or of the last worker."""

    @property
    def selects(self) -> bool:
        """Whether one of the values is taken as it is, element by element, infinite ones as well."""
        return self in (Merge.MAX, Merge.MIN, Merge.LAST)

    @property
    def keep(self) -> float:
        """The word for parameter servers: the share of the old value, infinite for the larger or smaller value."""
        return {Merge.ONCE: 1.0, Merge.SUM: 1.0, Merge.MAX: math.inf, Merge.MIN: -math.inf}.get(self, 0.0)


_WORDS = tuple(str(one) for one in Merge if one not in (Merge.AVERAGE, Merge.ONCE))


def declared_merges(holder: Any, shown: str) -> dict[str, Merge]:
    """The merge rules that a layer or module declares for its state, by its names for it.

    Args:
        holder: the layer or module.
        shown: what it is called.

    Raises:
        UserCodeError: it says what is no rule.
    """
    given = getattr(holder, DECLARED_BY, None)
    if not isinstance(given, Mapping):
        return {}
    for name, rule in given.items():
        if rule not in _WORDS:
            raise UserCodeError(
                f"{DECLARED_BY} of {shown} says {rule!r} of {name}", fix=f"give one of {', '.join(_WORDS)}"
            )
    return {str(name): Merge(rule) for name, rule in given.items()}


def not_of_state(shown: str, name: str) -> UserCodeError:
    """The error for a rule of what is no state."""
    return UserCodeError(
        f"{DECLARED_BY} of {shown} names {name}, which is none of its shared tensors that no gradient changes",
        fix="name a buffer, or a variable with trainable=False, by its attribute",
    )


def infinite_state(name: str) -> UserCodeError:
    """The error for infinite numbers in state whose rule is arithmetic."""
    key = name.rpartition(".")[2].rpartition("/")[2]
    return UserCodeError(
        f"the state {name} begins with infinite numbers, or none, and changes while the model trains, and nothing "
        "says how the changes of several parts of an update become one",
        fix=f'say it in its layer: {DECLARED_BY} = {{"{key}": "max"}}, or min, last; or begin with finite numbers',
    )


def nothing_merges(name: str) -> UserCodeError:
    """The error for state that no rule makes of the parts of an update."""
    key = name.rpartition(".")[2].rpartition("/")[2]
    return UserCodeError(
        f"the state {name} is neither a statistic nor a sum of a minibatch's records, as the first ones show, and "
        "nothing says how the changes of several parts of an update become one",
        fix=f'give --microbatches 1, or say it in its layer: {DECLARED_BY} = {{"{key}": "last"}}, or sum, mean, max, '
        "min",
    )

"""The parameter server's description of an optimizer."""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field

import numpy as np

from elasticdl_core.errors import InvalidInputError

Params = Mapping[str, float]


@dataclass(frozen=True, slots=True)
class Interval:
    """The range of a hyper-parameter, both ends included unless ``below`` is set.

    Attributes:
        low: the least value.
        high: the largest value.
        below: whether ``high`` itself is out of range.
    """

    low: float = 0.0
    high: float = math.inf
    below: bool = False

    def contains(self, value: float) -> bool:
        """Whether a value lies within."""
        return self.low <= value <= self.high and not (self.below and value == self.high)

    def __str__(self) -> str:
        return f"from {self.low:g} to {'below ' if self.below else ''}{self.high:g}"


@dataclass(frozen=True, slots=True)
class FamilyUpdate:
    """One update, as a family sees it for the parameters of a group.

    Attributes:
        params: the group's hyper-parameters.
        layout: as ``Family.layout`` names them, over all groups: what the slots are laid out for.
        rate: the learning rate.
        step: 1 for the first update: of the parameter or of the optimizer, as the family counts.
        decays: how often weight decay acts; 0 where it does not apply.
    """

    params: Params
    layout: Params
    rate: np.float32
    step: int
    decays: int


@dataclass(frozen=True, slots=True)
class Family:
    """An optimizer.

    Attributes:
        defaults: its hyper-parameters and what they are if left out.
        kernel: the name of its kernel, from hyper-parameters and layout.
        slots: the slots' names and first values, from the same.
        numbers: what the kernel is given for an update after scale and learning rate: weight decay, then its own.
        ignored: further hyper-parameters that change nothing, with the values that ask for nothing; None for any.
        bounds: of hyper-parameters that are not just 0 or more.
        layout: hyper-parameters on which kernel and slots depend. Of several groups the largest value counts, and
            ``numbers`` say to the kernel what a group with a smaller one does without. A family that has none here
            needs all groups to have the same kernel and slots.
        shared: hyper-parameters that PyTorch, or whoever else, takes from the optimizer whatever a group says.
        check: refuses hyper-parameters that do not go together.
        counts_parameters: whether each parameter counts the updates that it had; else the optimizer counts its own.
    """

    defaults: Params
    kernel: Callable[[Params], str]
    slots: Callable[[Params], dict[str, float]]
    numbers: Callable[[FamilyUpdate], list[float]]
    ignored: Mapping[str, Sequence[object] | None]
    bounds: Mapping[str, Interval] = field(default_factory=dict)
    layout: Sequence[str] = ()
    shared: Sequence[str] = ()
    check: Callable[[Params], None] = lambda params: None
    counts_parameters: bool = False

    def checked(self, optimizer: str, given: Mapping[str, object]) -> dict[str, float]:
        """All hyper-parameters, of which some are given.

        Args:
            optimizer: its name, for messages.
            given: the others have their defaults; None is one of them too.

        Raises:
            InvalidInputError: one is unknown, out of range, or cannot be carried out.
        """
        params = dict(self.defaults)
        for name, value in given.items():
            if name in self.ignored:
                harmless = self.ignored[name]
                if harmless is not None and value not in harmless:
                    raise InvalidInputError(
                        f"{optimizer} has {name}={value}, which a parameter server cannot apply",
                        fix=f"leave {name} out of the optimizer",
                    )
            elif name not in params:
                raise InvalidInputError(
                    f"{optimizer} has no hyper-parameter {name!r}", fix=f"use some of {', '.join(sorted(params))}"
                )
            elif value is not None:
                params[name] = self._number(optimizer, name, value)
        self.check(params)
        return params

    def _number(self, optimizer: str, name: str, value: object) -> float:
        if not isinstance(value, int | float) or not math.isfinite(value):
            raise InvalidInputError(f"{optimizer}: {name}={value!r} is no finite number", fix=f"give {name} a number")
        bounds = self.bounds.get(name, Interval())
        if not bounds.contains(value):
            raise InvalidInputError(f"{optimizer}: {name}={value} is out of range", fix=f"choose {name} {bounds}")
        return float(value)


def compound_decay(of: FamilyUpdate) -> float:
    """The factor for kernels that take ``rate * decay`` of a weight once, as much as so many single decays."""
    decay, rate = of.params["weight_decay"], float(of.rate)
    if of.decays > 1 and decay and rate:
        return (1.0 - (1.0 - decay * rate) ** of.decays) / rate
    return decay if of.decays else 0.0

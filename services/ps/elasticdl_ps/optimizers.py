"""Optimizers: from a specification to a kernel, its slots and its numbers at a step, for each group of parameters.

What the optimizers mean is said in ``families``: ``families.keras`` and ``families.torch``.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from itertools import chain

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import DenseSpec, OptimizerSpec, TableSpec
from elasticdl_ps.families.family import Family, FamilyUpdate, Params
from elasticdl_ps.families.keras import KERAS_FAMILIES
from elasticdl_ps.families.torch import TORCH_FAMILIES

_FAMILIES: Mapping[str, Family] = {**KERAS_FAMILIES, **TORCH_FAMILIES}
OPTIMIZER_NAMES = tuple(_FAMILIES)
NUMBERS = 12
"""What every kernel is given: scale, learning rate, weight decay, and up to nine numbers of the optimizer's own."""


class Optimizer:
    """An optimizer made ready for a partition.

    Args:
        spec: name and hyper-parameters; those left out have their defaults.

    Attributes:
        spec: as given.
        kernel: name of the update kernel, for all groups.
        slots: the slots' names, in the order in which they follow a row's value, and the first values in group 0.
        counts_parameters: whether steps are counted for each parameter and table, not for the optimizer.

    Raises:
        InvalidInputError: the optimizer or one of its hyper-parameters is unknown or out of range, or its groups
            cannot go together.
    """

    def __init__(self, spec: OptimizerSpec) -> None:
        family = _FAMILIES.get(spec.name)
        if family is None:
            raise InvalidInputError(
                f"the optimizer {spec.name!r} is not known to the parameter server",
                fix=f"use one of {', '.join(OPTIMIZER_NAMES)}",
            )
        self.spec = spec
        self._family = family
        self.counts_parameters = family.counts_parameters
        self._groups = [family.checked(spec.name, params) for params in spec.params_of_groups]
        self._layout = {name: max(group[name] for group in self._groups) for name in family.layout}
        self._slots = [family.slots({**group, **self._layout}) for group in self._groups]
        kernels = [family.kernel({**group, **self._layout}) for group in self._groups]
        self.kernel = kernels[0]
        self.slots: dict[str, float] = self._slots[0]
        self._require_one_layout(kernels)
        self._require_shared()
        self.check_learning_rates(self.learning_rates)

    @property
    def learning_rates(self) -> tuple[float, ...]:
        """The optimizer's own learning rates, of each group."""
        return tuple(group["learning_rate"] for group in self._groups)

    def slot_values(self, group: int = 0) -> NDArray[np.float32]:
        """First values of the slots of a group, float32 ``[len(slots)]``."""
        return np.array(list(self._slots[group].values()), np.float32)

    def direction(self, group: int) -> float:
        """1 where a group goes down its gradients, -1 where it goes up (``maximize``)."""
        return -1.0 if self._groups[group].get("maximize") else 1.0

    def check_learning_rates(self, rates: Sequence[float]) -> None:
        """Refuses rates that the optimizer cannot compute with.

        Args:
            rates: of each group, or none.

        Raises:
            InvalidInputError: there is another number of groups, or the optimizer divides by a rate that is 0.
        """
        if rates and len(rates) != len(self._groups):
            raise InvalidInputError(
                f"{self.spec.name} has {len(self._groups)} groups of parameters, not {len(rates)} learning rates",
                fix="send one learning rate for each group, or none",
            )
        if 0 in rates and self.spec.name == "ftrl":
            raise InvalidInputError("ftrl: learning_rate=0 divides by zero", fix="choose a positive learning rate")

    def check_groups(self, dense: Iterable[DenseSpec], tables: Iterable[TableSpec]) -> None:
        """Refuses parameters of a group that there is not.

        Raises:
            InvalidInputError: there is none of that number.
        """
        for spec in chain[DenseSpec | TableSpec](dense, tables):
            if not 0 <= spec.group < len(self._groups):
                raise InvalidInputError(
                    f"{spec.name!r} is in the group {spec.group} of {self.spec.name}, which has {len(self._groups)}",
                    fix="count groups from 0, and declare each in OptimizerSpec.groups",
                )

    def numbers(
        self,
        step: int,
        learning_rates: Sequence[float] = (),
        *,
        scale: float = 1.0,
        decays: int = 1,
        group: int = 0,
    ) -> NDArray[np.float32]:
        """The kernel's numbers for one update.

        Args:
            step: 1 for the first update.
            learning_rates: of each group; none for the optimizer's own.
            scale: what gradients are multiplied with.
            decays: how often weight decay acts; 0 where it does not apply.
            group: of which parameters.
        """
        params = self._groups[group]
        rate = np.float32(learning_rates[group] if learning_rates else params["learning_rate"])
        of = FamilyUpdate(params, self._layout, rate, step, decays)
        given = np.array([scale * self.direction(group), rate, *self._family.numbers(of)], np.float32)
        numbers = np.zeros(NUMBERS, np.float32)
        numbers[: len(given)] = given
        return numbers

    def _require_shared(self) -> None:
        for name in self._family.shared:
            if len({group[name] for group in self._groups}) > 1:
                raise InvalidInputError(
                    f"a group of {self.spec.name} has a {name} of its own, which is the optimizer's alone",
                    fix=f"give {name} to the optimizer, not to a group",
                )

    def _require_one_layout(self, kernels: Sequence[str]) -> None:
        for number, (kernel, slots) in enumerate(zip(kernels, self._slots, strict=True)):
            if kernel != self.kernel or list(slots) != list(self.slots):
                differing = _differing(self._groups[0], self._groups[number])
                raise InvalidInputError(
                    f"the groups 0 and {number} of {self.spec.name} differ in {differing}, and so in what is kept",
                    fix="give all groups the same kind of update; rates, decay and other numbers may differ",
                )


class UpdateNumbers:
    """The kernel's numbers of one update for whatever parameter, made when they are first asked for.

    Args:
        optimizer: the optimizer.
        iterations: the number of this update among the optimizer's, from 1.
        learning_rates: of each group; none for the optimizer's own.
        scale: what gradients are multiplied with.
        decays: how often weight decay acts.
    """

    def __init__(
        self, optimizer: Optimizer, iterations: int, learning_rates: Sequence[float], scale: float, decays: int
    ) -> None:
        self._optimizer = optimizer
        self._iterations = 0 if optimizer.counts_parameters else iterations
        self._rates = learning_rates
        self._scale = scale
        self._decays = decays
        self._made: dict[tuple[int, bool, int], NDArray[np.float32]] = {}

    def of(self, spec: DenseSpec | TableSpec, steps: int) -> NDArray[np.float32]:
        """The numbers for a parameter: as its group has them, with its weight decay if that applies to it.

        Args:
            spec: the parameter.
            steps: the number of this update among those that it had a gradient in, from 1.
        """
        step = self._iterations or steps
        key = spec.group, spec.weight_decay, step
        made = self._made.get(key)
        if made is None:
            made = self._made[key] = self._optimizer.numbers(
                step,
                self._rates,
                scale=self._scale,
                decays=self._decays if spec.weight_decay else 0,
                group=spec.group,
            )
        return made


def _differing(one: Params, other: Params) -> str:
    return ", ".join(name for name in one if one[name] != other[name])

"""The variables of a Keras optimizer in the words of parameter servers, so that either strategy reads them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl_worker.trainers.replica_rules import slots_refusal
from elasticdl_worker.trainers.tensorflow.framework import raw_variable
from elasticdl_worker.trainers.tensorflow.model.contract import optimizer_name
from elasticdl_worker.trainers.tensorflow.types import KerasOptimizer, KerasVariable, Variable

_ADAM = (
    ("momentum", "_momentums", "m"),
    ("velocity", "_velocities", "v"),
    ("velocity_hat", "_velocity_hats", "vhat"),
)
_SLOTS: Mapping[str, Sequence[tuple[str, str, str]]] = {
    "sgd": (("momentum", "momentums", "momentum"),),
    "adam": _ADAM,
    "adamw": _ADAM,
    "adagrad": (("accumulator", "_accumulators", "accumulator"),),
    "rmsprop": (
        ("velocity", "_velocities", "rms"),
        ("momentum", "_momentums", "momentum"),
        ("average_gradient", "_average_gradients", "mg"),
    ),
    "adadelta": (
        ("accumulated_grad", "_accumulated_grads", "accum_grad"),
        ("accumulated_delta_var", "_accumulated_delta_vars", "accum_var"),
    ),
    "adamax": (("momentum", "_m", "m"), ("norm", "_u", "v")),
    "ftrl": (("accumulator", "_accumulators", "accumulator"), ("linear", "_linears", "linear")),
}
"""For each optimizer its slots: how parameter servers name one, the attribute that has it, and the name that the
optimizers of Keras 2 before 2.11 gave it."""


class OptimizerSlots:
    """The slots of a built optimizer, and its count of updates.

    Args:
        optimizer: a Keras optimizer, built for ``trained``.
        trained: what it trains, by name, in the order in which it was built for.

    Attributes:
        names: of the slots that it has, in the order of parameter servers.
    """

    def __init__(self, optimizer: KerasOptimizer, trained: Mapping[str, KerasVariable]) -> None:
        self._iterations: Variable = raw_variable(_iterations(optimizer))
        names = []
        self._variables: dict[str, list[Variable]] = {name: [] for name in trained}
        for name, attribute, old in _SLOTS[optimizer_name(optimizer).lower()]:
            found = _slot(optimizer, attribute, old, list(trained.values()))
            if found:
                names.append(name)
                for variables, variable in zip(self._variables.values(), found, strict=True):
                    variables.append(raw_variable(variable))
        self.names = tuple(names)
        # All elements of a slot begin alike.
        self._fresh = {
            name: [float(next(iter(np.ravel(one.numpy())), 0.0)) for one in variables]
            for name, variables in self._variables.items()
        }

    def of(self, name: str) -> Sequence[Variable]:
        """The variables of a trained parameter's slots."""
        return self._variables[name]

    def spread(
        self, name: str, slots: Sequence[NDArray[Any]], places: NDArray[np.int64]
    ) -> list[NDArray[np.float32]]:
        """The slots of a whole table, from those of some rows: the others begin anew.

        Args:
            name: of the parameter that is the table.
            slots: of the rows.
            places: where the rows are.
        """
        made = []
        for variable, fresh, given in zip(self._variables[name], self._fresh[name], slots, strict=True):
            whole = np.full_like(np.asarray(variable.numpy(), np.float32), fresh)
            whole[places] = given
            made.append(whole)
        return made

    def values(self) -> dict[str, list[NDArray[np.float32]]]:
        """The slots of each trained parameter."""
        return {
            name: [np.asarray(one.numpy(), np.float32) for one in variables]
            for name, variables in self._variables.items()
        }

    def steps(self) -> dict[str, int]:
        """The number of updates of each trained parameter's slots: Keras has one count for all."""
        return dict.fromkeys(self._variables, int(self._iterations.numpy()))

    def assign(self, slots: Mapping[str, Sequence[NDArray[Any]]], steps: Iterable[int]) -> None:
        """Sets the slots and the count of updates; slots of a parameter that has none there begin anew.

        Args:
            slots: as ``values`` gives them; where none are, the optimizer begins anew, and so does its count.
            steps: how many updates they are of.

        Raises:
            DataError: they are of another optimizer.
        """
        for name, variables in self._variables.items():
            if name not in slots:
                continue
            given = slots[name]
            if [value.shape for value in given] != [tuple(variable.shape) for variable in variables]:
                shapes = [tuple(variable.shape) for variable in variables]
                raise slots_refusal(name, given, self.names, shapes)
        for name, variables in self._variables.items():
            if name in slots:
                for variable, value in zip(variables, slots[name], strict=True):
                    variable.assign(value)
                continue
            for variable, fresh in zip(variables, self._fresh[name], strict=True):
                variable.assign(np.full_like(variable.numpy(), fresh))
        self._iterations.assign(max(steps, default=0) if slots or not self.names else 0)


def _iterations(optimizer: Any) -> KerasVariable:
    found: KerasVariable = optimizer.iterations
    return found


def _slot(optimizer: Any, attribute: str, old: str, trained: Sequence[KerasVariable]) -> Sequence[KerasVariable]:
    if hasattr(optimizer, "get_slot_names"):  # of Keras 2, before 2.11
        return [optimizer.get_slot(one, old) for one in trained] if old in optimizer.get_slot_names() else []
    return list(getattr(optimizer, attribute, None) or ())

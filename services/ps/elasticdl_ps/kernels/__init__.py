"""The loops over ids and rows: compiled by numba, with a numpy reference of the same signatures."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from dataclasses import dataclass, fields
from typing import Any

from elasticdl_core.errors import InvalidInputError

Kernel = Callable[..., Any]


@dataclass(frozen=True, slots=True)
class KernelSet:
    """One implementation of all kernels; the modules of ``compiled`` describe their arguments."""

    find: Kernel
    find_or_insert: Kernel
    grow: Kernel
    has_duplicates: Kernel
    merge_rows: Kernel
    gather: Kernel
    scatter: Kernel
    all_finite: Kernel
    initialise: Kernel
    initial_values: Kernel
    enter: Kernel
    initialise_rows: Kernel
    count_sightings: Kernel
    sgd: Kernel
    momentum: Kernel
    nesterov: Kernel
    adam: Kernel
    amsgrad: Kernel
    adagrad: Kernel
    rmsprop: Kernel
    adadelta: Kernel
    adamax: Kernel
    ftrl: Kernel
    torch_momentum: Kernel
    torch_adam: Kernel
    torch_amsgrad: Kernel
    torch_adagrad: Kernel
    torch_rmsprop: Kernel
    torch_adadelta: Kernel
    torch_adamax: Kernel
    torch_nadam: Kernel
    torch_radam: Kernel

    def update(self, name: str) -> Kernel:
        """The update kernel of an optimizer."""
        kernel: Kernel = getattr(self, name)
        return kernel


_MODULES = {
    "numba": ("compiled.rows", "compiled.initial", "compiled.updates", "compiled.torch_updates", "compiled.policy"),
    "numpy": ("reference", "reference_torch", "reference_policy"),
}


def load_kernels(name: str = "numba") -> KernelSet:
    """Imports an implementation.

    Args:
        name: ``numba`` or ``numpy``.

    Raises:
        InvalidInputError: there is no such implementation.
    """
    if name not in _MODULES:
        raise InvalidInputError(f"there are no kernels called {name!r}", fix="use numba or numpy")
    modules = [importlib.import_module(f"elasticdl_ps.kernels.{module}") for module in _MODULES[name]]
    found = {}
    for field in fields(KernelSet):
        found[field.name] = next(getattr(module, field.name) for module in modules if hasattr(module, field.name))
    return KernelSet(**found)

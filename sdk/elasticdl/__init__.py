"""ElasticDL: elastic deep-learning training. Importing it loads neither a framework nor a server.

What a model module uses: ``Mode``, ``elasticdl.layers``, ``elasticdl.callbacks``. What a program that submits jobs
uses: ``Client`` and ``AsyncClient``. What talks to parameter servers: ``ParameterServerClient``, which needs the
extra ``worker``. Notebooks: ``%load_ext elasticdl``.
"""

from __future__ import annotations

import importlib
from typing import Any

from elasticdl.modes import Mode

__version__ = "0.2.0"
__all__ = [
    "AsyncClient",
    "BasePredictionOutputsProcessor",
    "Client",
    "Mode",
    "ParameterServerClient",
    "callbacks",
    "data",
    "layers",
]

_LAZY = {
    "AsyncClient": "elasticdl.client",
    "Client": "elasticdl.client",
    "BasePredictionOutputsProcessor": "elasticdl.prediction",
    "load_ipython_extension": "elasticdl.magic",  # `%load_ext elasticdl`
}


_NAMES = "elasticdl.names"
"""The group of entry points under which services, which stand above this package, offer names here."""
_FROM_SERVICES = {"ParameterServerClient": "worker"}
"""Such names, and the extra that each needs."""


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    if name in ("callbacks", "data", "layers"):
        return importlib.import_module(f"elasticdl.{name}")
    if name in _FROM_SERVICES:
        return _from_service(name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def _from_service(name: str) -> Any:
    from elasticdl.extras import require
    from elasticdl_core.errors import InvalidInputError
    from elasticdl_core.installation import install_command, own_distribution

    require(f"elasticdl.{name}", _FROM_SERVICES[name])
    for entry in own_distribution().entry_points.select(group=_NAMES, name=name):
        return entry.load()
    raise InvalidInputError(
        f"this installation of elasticdl was made before it had {name}", fix=f"install it again: {install_command()}"
    )

"""ElasticDL: elastic deep-learning training. Importing it loads neither a framework nor a server.

What a model module uses: ``Mode``, ``elasticdl.layers``, ``elasticdl.callbacks``. What a program that submits jobs
uses: ``Client`` and ``AsyncClient``.
"""

from __future__ import annotations

import importlib
from typing import Any

from elasticdl.modes import Mode

__version__ = "0.1.0"
__all__ = ["AsyncClient", "BasePredictionOutputsProcessor", "Client", "Mode", "callbacks", "data", "layers"]

_LAZY = {
    "AsyncClient": "elasticdl.client",
    "Client": "elasticdl.client",
    "BasePredictionOutputsProcessor": "elasticdl.prediction",
}


def __getattr__(name: str) -> Any:
    if name in _LAZY:
        return getattr(importlib.import_module(_LAZY[name]), name)
    if name in ("callbacks", "data", "layers"):
        return importlib.import_module(f"elasticdl.{name}")
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

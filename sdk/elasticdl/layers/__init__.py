"""Layers for models of ElasticDL; importing this package is light, using a layer imports its framework."""

from __future__ import annotations

from typing import TYPE_CHECKING, Any

if TYPE_CHECKING:
    from elasticdl.layers.tensorflow import Embedding

__all__ = ["Embedding"]


def __getattr__(name: str) -> Any:
    if name == "Embedding":
        from elasticdl.layers.tensorflow import Embedding

        return Embedding
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")

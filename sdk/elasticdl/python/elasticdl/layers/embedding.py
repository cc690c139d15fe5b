"""The embedding layer at the original project's import path."""

from __future__ import annotations

from elasticdl.layers.tensorflow import Embedding

__all__ = ["Embedding"]

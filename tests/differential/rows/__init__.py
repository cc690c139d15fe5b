"""The rows, by what they are about."""

from __future__ import annotations

from tests.differential.driver import Row
from tests.differential.rows import (
    callbacks,
    embeddings,
    entries,
    layers,
    metrics,
    optimizers,
    options,
    preprocessing,
    readers,
    regularisation,
)

ROWS: list[Row] = [
    *entries.ROWS,
    *layers.ROWS,
    *preprocessing.ROWS,
    *embeddings.ROWS,
    *optimizers.ROWS,
    *regularisation.ROWS,
    *callbacks.ROWS,
    *metrics.ROWS,
    *readers.ROWS,
    *options.ROWS,
]
"""All of them; names are unique."""

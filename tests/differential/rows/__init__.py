"""The rows, by what they are about."""

from __future__ import annotations

from tests.differential.driver import Row
from tests.differential.rows import (
    callbacks,
    embeddings,
    entries,
    errors,
    layers,
    legacy,
    metrics,
    optimizers,
    options,
    preprocessing,
    readers,
    regularisation,
    torch_models,
    whole_clusters,
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
    *errors.ROWS,
]
"""All for Keras 3; names are unique."""

LEGACY_ROWS: list[Row] = legacy.ROWS
"""Those for Keras 2, which take a process of their own."""

WHOLE_CLUSTER_ROWS: list[Row] = whole_clusters.ROWS
"""Those that go through the command line."""

TORCH_ROWS: list[Row] = torch_models.ROWS
"""Those in PyTorch."""

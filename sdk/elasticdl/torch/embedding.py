"""The PyTorch embedding with an unbounded vocabulary."""

from __future__ import annotations

from collections.abc import Mapping

import torch
from torch import nn

from elasticdl.torch.lookup import FoundRows, find_rows, take_rows

MODES = ("sum", "mean", "max")
INITIALIZERS: Mapping[str, tuple[str, ...]] = {
    "uniform": ("minval", "maxval"),
    "normal": ("mean", "stddev"),
    "truncated_normal": ("mean", "stddev"),
    "constant": ("value",),
    "zeros": (),
    "ones": (),
}
"""How rows can begin, and the numbers that each way takes."""


class OpenEmbedding(nn.Module):
    """Turns int64 ids into vectors that live on the parameter servers, one row for each id that occurs.

    Rows come into being, by the initializer, when their id is first seen. Outside ElasticDL (in a unit test of the
    model, say) each id has a fixed vector.

    Args:
        embedding_dim: length of a vector.
        mode: ``sum``, ``mean`` or ``max`` of the vectors of a bag of ids, as ``torch.nn.EmbeddingBag`` does; None for
            one vector an id, as ``torch.nn.Embedding``.
        padding_idx: an id that means padding: it reads as zeros, and is left out of bags.
        initializer: how a row begins: ``uniform``, ``normal``, ``truncated_normal``, ``constant``, ``zeros`` or
            ``ones``.
        initializer_params: its numbers: ``minval`` and ``maxval`` (-0.05, 0.05), ``mean`` and ``stddev`` (0, 0.05),
            ``value``.

    Attributes:
        weight: stands for all rows in an optimizer's parameter groups; the rows themselves are elsewhere.

    Raises:
        ValueError: an argument that cannot work.
    """

    def __init__(
        self,
        embedding_dim: int,
        mode: str | None = None,
        padding_idx: int | None = None,
        initializer: str = "uniform",
        initializer_params: Mapping[str, float] | None = None,
    ) -> None:
        super().__init__()
        if embedding_dim < 1:
            raise ValueError(f"embedding_dim is {embedding_dim}; give 1 or more")
        if mode is not None and mode not in MODES:
            raise ValueError(f"mode {mode!r} is none of {MODES}")
        if initializer not in INITIALIZERS:
            raise ValueError(f"initializer {initializer!r} is none of {', '.join(INITIALIZERS)}")
        params = dict(initializer_params or {})
        unknown = [name for name in params if name not in INITIALIZERS[initializer]]
        if unknown:
            raise ValueError(f"the initializer {initializer} takes no {unknown[0]}")
        self.embedding_dim = embedding_dim
        self.mode = mode
        self.padding_idx = padding_idx
        self.initializer = initializer
        self.initializer_params = {name: float(value) for name, value in params.items()}
        self.weight = nn.Parameter(torch.zeros(0, embedding_dim))
        self.elasticdl_table: str | None = None

    def forward(
        self,
        ids: torch.Tensor,
        offsets: torch.Tensor | None = None,
        per_sample_weights: torch.Tensor | None = None,
    ) -> torch.Tensor:
        """The vectors of ids.

        Args:
            ids: integers of any shape; with a mode ``[bags, ids]``, or ``[ids]`` with offsets.
            offsets: where each bag begins, with a mode and ids ``[ids]``.
            per_sample_weights: float32 in the ids' shape, with the mode ``sum``.
        """
        found = None
        if self.elasticdl_table is not None:
            found = find_rows(self.elasticdl_table, ids, self.embedding_dim, self.padding_idx)
        return self._combine(found or self._standalone(ids), offsets, per_sample_weights)

    def extra_repr(self) -> str:
        """The arguments, for ``repr``."""
        return f"{self.embedding_dim}, mode={self.mode!r}, padding_idx={self.padding_idx}"

    def _combine(
        self, found: FoundRows, offsets: torch.Tensor | None, per_sample_weights: torch.Tensor | None
    ) -> torch.Tensor:
        if self.mode is None:
            if offsets is not None or per_sample_weights is not None:
                raise ValueError("offsets and per_sample_weights need a mode: sum, mean or max")
            return take_rows(found)
        return nn.functional.embedding_bag(
            found.positions,
            found.rows,
            offsets,
            mode=self.mode,
            per_sample_weights=per_sample_weights,
            sparse=found.sparse,
            padding_idx=found.padding,
        )

    def _standalone(self, ids: torch.Tensor) -> FoundRows:
        """A fixed vector for each id in [-0.05, 0.05), so that a model can be tried out without ElasticDL."""
        distinct, positions = torch.unique(ids.to(torch.int64), return_inverse=True)
        columns = torch.arange(self.embedding_dim, dtype=torch.int64)
        mixed = distinct[:, None] * 2654435761 + columns * 40503
        rows = (torch.remainder(mixed, 1 << 20).to(torch.float32) / float(1 << 20) - 0.5) / 10.0
        if self.padding_idx is None:
            return FoundRows(rows, positions, None)
        place = len(distinct)
        rows = torch.cat([rows, torch.zeros(1, self.embedding_dim)])
        return FoundRows(rows, torch.where(ids == self.padding_idx, place, positions), place)

"""The interface through which embedding layers get rows from the trainer that runs the model.

The trainer activates a *scope* around each run of the model; a layer whose rows lie elsewhere asks it for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, NamedTuple, Protocol

import torch
from torch import nn


class FoundRows(NamedTuple):
    """The rows for ids.

    Attributes:
        rows: float32 ``[n, dim]``; gradients flow into them.
        positions: int64, in the ids' shape: which of the rows belongs to each id.
        padding: the position that means padding; None for none.
        sparse: whether the gradient of the rows is to be a sparse tensor.
    """

    rows: torch.Tensor
    positions: torch.Tensor
    padding: int | None
    sparse: bool = False


class _TakenRows(torch.autograd.Function):
    """Rows by their positions. The gradient is that of ``embedding``, to the bit, several times as fast.

    PyTorch's own goes through all positions once in each thread and adds to every row by a call of its own.
    """

    @staticmethod
    def forward(ctx: Any, rows: torch.Tensor, positions: torch.Tensor, padding: int | None) -> torch.Tensor:
        ctx.save_for_backward(positions)
        ctx.count, ctx.padding = rows.shape[0], padding
        return nn.functional.embedding(positions, rows)

    @staticmethod
    def backward(ctx: Any, *gradients: torch.Tensor) -> tuple[torch.Tensor, None, None]:
        (positions,), (gradient,) = ctx.saved_tensors, gradients
        dim = gradient.shape[-1]
        # One after the other in the order of the positions, as ``embedding`` adds them.
        total = gradient.new_zeros(ctx.count, dim).index_add_(0, positions.reshape(-1), gradient.reshape(-1, dim))
        if ctx.padding is not None:
            total = total.index_fill(0, positions.new_tensor([ctx.padding]), 0.0)
        return total, None, None


def take_rows(found: FoundRows) -> torch.Tensor:
    """One row for each position, as ``nn.functional.embedding`` gives them."""
    plain = found.sparse or torch.compiler.is_compiling() or not found.rows.requires_grad
    # Elsewhere than on the host sums by index are in any order.
    plain = plain or found.rows.device.type != "cpu" or torch._C._are_functorch_transforms_active()
    if plain or not torch.is_grad_enabled():
        return nn.functional.embedding(found.positions, found.rows, found.padding, sparse=found.sparse)
    taken: torch.Tensor = _TakenRows.apply(found.rows, found.positions, found.padding)  # type: ignore[no-untyped-call]
    return taken


class RowScope(Protocol):
    """Serves the lookups of one run of a model."""

    def find(self, table: str, ids: torch.Tensor, dim: int, padding_idx: int | None) -> FoundRows:
        """Rows for ids.

        Args:
            table: the table's name.
            ids: int64, of any shape.
            dim: length of a row.
            padding_idx: the id that means padding; it has no row, reads as zeros and gets no gradient.
        """


_scope: ContextVar[RowScope | None] = ContextVar("elasticdl_torch_scope", default=None)


def current_scope() -> RowScope | None:
    """The scope that is active, if any."""
    return _scope.get()


@contextlib.contextmanager
def finding_rows(scope: RowScope | None) -> Iterator[None]:
    """Makes a scope the active one."""
    token = _scope.set(scope)
    try:
        yield
    finally:
        _scope.reset(token)


def find_rows(table: str, ids: torch.Tensor, dim: int, padding_idx: int | None) -> FoundRows | None:
    """The active scope's rows for ids; None without one."""
    return _find(table, ids, dim, padding_idx)


def keep_out_of_graphs() -> None:
    """Has ``torch.compile`` leave lookups out of its graphs; not at import, for its parts take seconds to load."""
    global _find
    _find = torch.compiler.disable(_find_now)  # type: ignore[no-untyped-call]


def _find_now(table: str, ids: torch.Tensor, dim: int, padding_idx: int | None) -> FoundRows | None:
    scope = _scope.get()
    return None if scope is None else scope.find(table, ids.to(torch.int64), dim, padding_idx)


_find = _find_now

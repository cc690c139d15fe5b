"""The interface through which embedding layers get rows from the trainer that runs the model.

The trainer activates a *scope* around each run of the model; a layer whose rows lie elsewhere asks it for them.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import NamedTuple, Protocol

import torch


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
    """What the active scope has for ids; None without one."""
    return _find(table, ids, dim, padding_idx)


def keep_out_of_graphs() -> None:
    """Has ``torch.compile`` leave lookups out of its graphs; not at import, for its parts take seconds to load."""
    global _find
    _find = torch.compiler.disable(_find_now)  # type: ignore[no-untyped-call]


def _find_now(table: str, ids: torch.Tensor, dim: int, padding_idx: int | None) -> FoundRows | None:
    scope = _scope.get()
    return None if scope is None else scope.find(table, ids.to(torch.int64), dim, padding_idx)


_find = _find_now

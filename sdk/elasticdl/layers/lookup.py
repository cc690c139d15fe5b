"""The interfaces through which an embedding layer gets its rows from the trainer that runs the model.

The runner (a worker, or training on one machine) activates a *registry* while the model is built, so that each
such layer gets a table, and a *scope* around each run of the model, which answers the layers' lookups.
"""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from contextvars import ContextVar
from typing import Any, Protocol


class Registry(Protocol):
    """Gives tables to layers while a model is built."""

    def register(self, layer: Any) -> str:
        """The unique table name of an embedding layer that is being built."""


class Scope(Protocol):
    """Serves the lookups of one run of a model."""

    def lookup(self, table: str, ids: Any, dim: int) -> Any:
        """Rows for ids.

        Args:
            table: the table's name.
            ids: an int64 tensor of any shape.
            dim: length of a row.

        Returns:
            A float32 tensor of the ids' shape and ``dim`` as last dimension.
        """


_registry: ContextVar[Registry | None] = ContextVar("elasticdl_registry", default=None)
_scope: ContextVar[Scope | None] = ContextVar("elasticdl_scope", default=None)


def current_registry() -> Registry | None:
    """The registry that is active, if any."""
    return _registry.get()


def current_scope() -> Scope | None:
    """The scope that is active, if any."""
    return _scope.get()


@contextlib.contextmanager
def registering(registry: Registry | None) -> Iterator[None]:
    """Makes a registry the active one; ``None`` lets layers be built as if there was none."""
    token = _registry.set(registry)
    try:
        yield
    finally:
        _registry.reset(token)


@contextlib.contextmanager
def looking_up(scope: Scope) -> Iterator[None]:
    """Makes a scope the active one."""
    token = _scope.set(scope)
    try:
        yield
    finally:
        _scope.reset(token)

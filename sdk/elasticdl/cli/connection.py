"""The client that commands talk to the API with."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from typing import TYPE_CHECKING

if TYPE_CHECKING:
    from elasticdl.client import Client


@contextmanager
def connect() -> Iterator[Client]:
    """A client of the API that the environment, the context or this machine names; closed at the end."""
    from elasticdl.client import Client

    with Client() as client:
        yield client

"""A fake API on loopback and a client for it."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from elasticdl.client import Client, RetryPolicy
from tests.fakes.api import TOKEN, FakeApi, serving

EAGER = RetryPolicy(attempts=4, first_s=0.0)


@pytest.fixture
def api() -> Iterator[FakeApi]:
    yield from serving()


@pytest.fixture
def client(api: FakeApi) -> Iterator[Client]:
    with Client(api.url, TOKEN, retry=EAGER) as client:
        yield client

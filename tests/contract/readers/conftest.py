"""The Postgres of the suites of readers, that of the integration tests, and a MaxCompute."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from elasticdl_core.backoff import Backoff
from tests.fakes.maxcompute import ENVIRONMENT, FakeMaxCompute, serving_maxcompute
from tests.integration.conftest import postgres_server

__all__ = ["postgres_server"]


@pytest.fixture
def maxcompute(monkeypatch: pytest.MonkeyPatch) -> Iterator[FakeMaxCompute]:
    with serving_maxcompute() as service:
        for name, value in ENVIRONMENT.items():
            monkeypatch.setenv(name, value)
        monkeypatch.setenv("MAXCOMPUTE_ENDPOINT", service.url)
        monkeypatch.setattr("elasticdl.data.odps_service._PAUSES", Backoff(0.0, 0.0))
        yield service

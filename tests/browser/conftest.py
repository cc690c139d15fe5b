"""The dashboard in a real Chromium, served by the real api process from recorded states.

Everything here is synchronous: Playwright keeps a loop of its own in the thread of the tests.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import httpx
import pytest

from tests.browser.visits import Visit
from tests.fakes import recorded_states
from tests.fakes.browser import MISSING, find_chromium, launched_chromium
from tests.fakes.recorded_cluster import RecordedCluster, recorded_cluster
from tests.integration.conftest import PostgresServer

MANY_SLOTS = 1300


def pytest_collection_modifyitems(items: list[pytest.Item]) -> None:
    """Without a browser these tests are skipped, with what to install; the first waits for all that is recorded."""
    for item in items:
        if "browser" in item.path.parts:
            item.add_marker(pytest.mark.timeout(300))
            if find_chromium() is None:
                item.add_marker(pytest.mark.skip(reason=MISSING))


@pytest.fixture(scope="session")
def chromium() -> Iterator[Any]:
    """The browser of the session. A busy machine takes its time to show what is expected."""
    from playwright.sync_api import expect

    expect.set_options(timeout=20_000)
    with launched_chromium() as browser:
        yield browser


@pytest.fixture(scope="session")
def server() -> Iterator[PostgresServer]:
    """The Postgres of the session."""
    with PostgresServer() as server:
        yield server


@pytest.fixture(scope="session")
def recorded(server: PostgresServer) -> Iterator[RecordedCluster]:
    """All that was recorded: a job's story, 1,000 workers, 10,000 jobs, failures of every class."""
    with recorded_cluster(server, recorded_states.everything, slots=MANY_SLOTS) as cluster:
        yield cluster


@pytest.fixture(scope="session")
def fresh(server: PostgresServer) -> Iterator[RecordedCluster]:
    """A cluster in which nothing has happened yet."""
    with recorded_cluster(server, recorded_states.nothing) as cluster:
        yield cluster


@pytest.fixture
def visit(chromium: Any) -> Iterator[Callable[..., Visit]]:
    """Opens the page of a cluster; whatever its console says that is an error fails the test."""
    visits: list[Visit] = []

    def open_page(cluster: RecordedCluster, **options: Any) -> Visit:
        visits.append(Visit(chromium, cluster, **options))
        return visits[-1]

    yield open_page
    complaints = [complaint for one in visits for complaint in one.close()]
    assert not complaints, complaints


@pytest.fixture
def api() -> Iterator[Callable[[RecordedCluster], httpx.Client]]:
    """Clients of the API, to compare what the page shows with."""
    clients: list[httpx.Client] = []

    def client(cluster: RecordedCluster) -> httpx.Client:
        headers = {"Authorization": f"Bearer {cluster.token}"}
        one = httpx.Client(base_url=f"{cluster.url}/v1", headers=headers, timeout=30, trust_env=False)
        clients.append(one)
        return one

    yield client
    for one in clients:
        one.close()

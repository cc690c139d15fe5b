"""The API's reference page shows its operations without the network."""

from __future__ import annotations

from collections.abc import Callable

import pytest

from tests.browser.visits import Visit
from tests.fakes.recorded_cluster import RecordedCluster

pytestmark = pytest.mark.browser


def test_the_reference_shows_the_operations(visit: Callable[..., Visit], fresh: RecordedCluster) -> None:
    page = visit(fresh, path="/docs").page
    shown = page.locator(".opblock-summary-path")
    shown.first.wait_for()
    assert shown.count() > 30
    page.get_by_text("Submit a job").first.wait_for()

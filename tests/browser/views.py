"""The views of the dashboard with what shows that each of them is there, for tests and pictures."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from playwright.sync_api import expect

from tests.fakes.recorded_jobs import MANY_WORKERS, failed_id
from tests.fakes.recorded_story import STORY

VIEWS: Mapping[str, tuple[str, str]] = {
    "cluster": ("/#/", "h1"),
    "jobs": ("/#/jobs", "tbody tr"),
    "job": (f"/#/jobs/{STORY}", ".stats"),
    "job-processes": (f"/#/jobs/{STORY}/processes", "main .panel"),
    "job-why": (f"/#/jobs/{STORY}/why", "main .panel"),
    "job-events": (f"/#/jobs/{STORY}/events", "main .panel"),
    "job-logs": (f"/#/jobs/{STORY}/logs", "main .panel"),
    "job-files": (f"/#/jobs/{STORY}/files", "main .panel"),
    "job-specification": (f"/#/jobs/{STORY}/specification", "main .panel"),
    "job-failed": (f"/#/jobs/{failed_id('user-code')}", ".stats"),
    "job-wide": (f"/#/jobs/{MANY_WORKERS}", ".stats"),
    "stacks": (f"/#/jobs/{STORY}/stacks", "h1"),
    "compare": (f"/#/compare?job={STORY}&job={MANY_WORKERS}", "h1"),
    "submit": ("/#/submit", "form"),
    "sql": ("/#/sql", "#statement"),
    "admin-tokens": ("/#/admin", "tbody tr"),
    "admin-namespaces": ("/#/admin/namespaces", "tbody tr"),
    "admin-reservations": ("/#/admin/reservations", "main .panel"),
    "admin-audit": ("/#/admin/audit", "tbody tr"),
}
"""By name: where it is, and a selector of what is there once it has loaded."""


def settle(page: Any) -> None:
    """Waits until nothing is being loaded and the last picture is painted."""
    expect(page.locator("main .loading")).to_have_count(0)
    page.evaluate("() => new Promise((done) => requestAnimationFrame(() => requestAnimationFrame(done)))")

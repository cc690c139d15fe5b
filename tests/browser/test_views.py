"""Every view, wide and narrow, light and dark: it is there, fits, its console is silent, and axe finds nothing."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from typing import Any

import pytest
from playwright.sync_api import expect

from tests.browser.views import VIEWS, settle
from tests.browser.visits import DESKTOP, PHONE, Visit
from tests.fakes.recorded_cluster import RecordedCluster
from tests.fakes.recorded_jobs import FAILURES, failed_id
from tests.fakes.recorded_story import STORY

pytestmark = pytest.mark.browser
NEW = ("cluster", "jobs", "compare", "submit", "admin-tokens", "admin-reservations", "admin-audit")
AWAY = {"type": "about:blank", "title": "Unavailable", "status": 503, "detail": "the database is away", "fix": "wait"}


def open_view(name: str, visit: Callable[..., Visit], recorded: RecordedCluster) -> Visit:
    """A view with all that it shows."""
    path, sign = VIEWS[name]
    here = visit(recorded, path=path)
    here.page.locator(sign).first.wait_for()
    settle(here.page)
    return here


def assert_well_made(here: Visit, size: dict[str, int], scheme: str) -> None:
    """Nothing sticks out, and axe finds nothing that is serious."""
    here.page.set_viewport_size(size)
    here.page.emulate_media(color_scheme=scheme)
    assert here.overflow() <= 0
    assert here.findings() == []


@pytest.mark.parametrize("name", VIEWS)
def test_a_view(name: str, visit: Callable[..., Visit], recorded: RecordedCluster) -> None:
    here = open_view(name, visit, recorded)
    main = here.page.locator("main")
    expect(main).not_to_contain_text("This view failed")
    expect(main).not_to_contain_text("could not be loaded")
    assert_well_made(here, DESKTOP, "light")
    assert_well_made(here, PHONE, "dark")


@pytest.mark.slow
@pytest.mark.parametrize("name", VIEWS)
def test_a_view_in_the_other_colours(name: str, visit: Callable[..., Visit], recorded: RecordedCluster) -> None:
    here = open_view(name, visit, recorded)
    assert_well_made(here, DESKTOP, "dark")
    assert_well_made(here, PHONE, "light")


@pytest.mark.parametrize("name", NEW)
def test_a_view_of_a_new_cluster(name: str, visit: Callable[..., Visit], fresh: RecordedCluster) -> None:
    here = visit(fresh, path=VIEWS[name][0].partition("?")[0])
    here.page.locator("h1").wait_for()
    settle(here.page)
    expect(here.page.locator("main")).not_to_contain_text("This view failed")
    assert here.findings() == []


@pytest.mark.parametrize("name", VIEWS)
def test_a_view_says_that_the_api_does_not_answer(
    name: str, visit: Callable[..., Visit], fresh: RecordedCluster
) -> None:
    here = visit(fresh, path="/#/admin/nothing", expected="503|ERR_FAILED|Failed to load")
    here.page.get_by_text("There is no such part").wait_for()
    answer = {"status": 503, "content_type": "application/problem+json", "body": json.dumps(AWAY)}
    here.page.route("**/v1/**", lambda route: route.fulfill(**answer))
    here.page.evaluate("(path) => { location.hash = path; }", VIEWS[name][0].removeprefix("/"))
    expect(here.page.get_by_text("the database is away").first).to_be_visible()
    expect(here.page.locator("main")).not_to_contain_text("This view failed")


@pytest.mark.parametrize("kind", FAILURES)
def test_a_failure_is_shown_with_what_to_do(
    kind: str, visit: Callable[..., Visit], recorded: RecordedCluster
) -> None:
    message, fix, traceback = FAILURES[kind]
    page = visit(recorded, path=f"/#/jobs/{failed_id(kind)}").page
    expect(page.locator("main")).to_contain_text(message)
    expect(page.locator("main")).to_contain_text(fix)
    if traceback:
        expect(page.get_by_text("Traceback (most recent call last)")).to_be_visible()


def test_what_is_on_its_way_is_no_zero(visit: Callable[..., Visit], recorded: RecordedCluster) -> None:
    here = visit(recorded, path="/#/jobs")
    here.page.locator("tbody tr").first.wait_for()
    held: list[Any] = []
    here.page.route(re.compile(r"/v1/jobs/[^/]+/(series|ledger)"), lambda route: held.append(route))
    here.page.evaluate("(id) => { location.hash = `/jobs/${id}`; }", STORY)
    loss = here.page.get_by_role("figure", name="Loss", exact=True)
    records = here.page.locator("section.panel").filter(
        has=here.page.get_by_role("heading", name="Records", exact=True)
    )
    expect(loss).to_contain_text("Loading Loss")
    expect(records).to_contain_text("Loading The ledger")
    expect(records).not_to_contain_text("Planned")
    while held:
        held.pop(0).continue_()
    expect(records).to_contain_text("1,843,200 records")
    expect(loss.get_by_role("img")).to_have_accessible_name(re.compile(r"training last 0\.\d+, least"))


def test_a_job_without_a_plan_shows_no_zeros(visit: Callable[..., Visit], recorded: RecordedCluster) -> None:
    waiting = recorded.add_job("unplanned-zero1")
    page = visit(recorded, path=f"/#/jobs/{waiting}").page
    expect(page.locator("main")).to_contain_text("The records are not planned yet")

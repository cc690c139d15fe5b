"""The list of 10,000 jobs: the server filters, sorts and counts; what is chosen is in the address."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any

import httpx
import pytest
from playwright.sync_api import Page, expect

from tests.browser.visits import Visit
from tests.fakes.recorded_cluster import RecordedCluster

pytestmark = pytest.mark.browser
Client = Callable[[RecordedCluster], httpx.Client]


def shown_ids(page: Page) -> list[str]:
    """The ids in the table, from the top."""
    rows = page.get_by_role("table", name="Jobs").locator("tbody tr")
    rows.first.wait_for()
    return [str(text) for text in rows.locator(".name small").all_inner_texts()]


def listed(client: httpx.Client, **query: Any) -> dict[str, Any]:
    answer = client.get("/jobs", params={"limit": 50, "total": True, **query})
    assert answer.status_code == 200, answer.text
    return dict(answer.json())


def test_filters_order_and_search_are_in_the_address(
    visit: Callable[..., Visit], recorded: RecordedCluster, api: Client
) -> None:
    page, client = visit(recorded, path="/#/jobs").page, api(recorded)
    table = page.get_by_role("table", name="Jobs")
    everything = listed(client)
    assert shown_ids(page) == [job["id"] for job in everything["jobs"]]
    expect(page.locator(".head")).to_contain_text(f"{everything['total']:,}")

    page.get_by_label("State").select_option("FAILED")
    failed = listed(client, state="FAILED")
    expect(page.locator(".head")).to_contain_text(f"{failed['total']:,}")
    expect(page).to_have_url(f"{recorded.url}/#/jobs?state=FAILED")
    table.get_by_role("button", name="Owner").click()
    expect(table.get_by_role("columnheader", name="Owner")).to_have_attribute("aria-sort", "ascending")
    ordered = listed(client, state="FAILED", sort="owner")
    expect(table.locator("tbody tr .name small").first).to_have_text(ordered["jobs"][0]["id"])

    page.reload()
    expect(table.locator("tbody tr .name small").first).to_have_text(ordered["jobs"][0]["id"])
    expect(page.get_by_label("State")).to_have_value("FAILED")

    page.get_by_role("button", name="Clear filters").click()
    page.get_by_role("searchbox").fill("story")
    expect(table.locator("tbody tr")).to_have_count(1)
    expect(page).to_have_url(f"{recorded.url}/#/jobs?sort=owner&q=story")


def test_chosen_values_are_columns_to_sort_and_filter_by(
    visit: Callable[..., Visit], recorded: RecordedCluster, api: Client
) -> None:
    page, client = visit(recorded, path="/#/jobs?show=metric:auc").page, api(recorded)
    table = page.get_by_role("table", name="Jobs")
    shown_ids(page)
    known = client.get("/jobs", params={"limit": 500}).json()["jobs"]
    values = {job["id"]: job["status"].get("metrics", {}).get("auc") for job in known}
    table.get_by_role("button", name="auc").click()
    expect(table.get_by_role("columnheader", name="auc")).to_have_attribute("aria-sort", "descending")
    expect(page.get_by_text(f"{len(known)} of the newest {len(known)}")).to_be_visible()
    best = max((value for value in values.values() if value is not None), default=None)
    assert best is not None
    page.get_by_label("Where").fill(f"metric:auc<{best}")
    page.get_by_label("Where").press("Enter")
    fewer = sum(value is not None and value < best for value in values.values())
    expect(page.get_by_text(f"{fewer} of the newest {len(known)}")).to_be_visible()
    page.get_by_label("Where").fill("auc>1")
    page.get_by_label("Where").press("Enter")
    expect(page.get_by_label("Where")).to_have_attribute("aria-invalid", "true")


def test_by_progress_workers_end_owner_and_choice(
    visit: Callable[..., Visit], recorded: RecordedCluster, api: Client
) -> None:
    page, client = visit(recorded, path="/#/jobs?of=live").page, api(recorded)
    table = page.get_by_role("table", name="Jobs")
    live = ["QUEUED", "STARTING", "RUNNING", "SUSPENDED", "CANCELLING"]
    for label, sort in (("Progress", "-progress"), ("Workers", "-workers"), ("End", "-end")):
        shown_ids(page)
        table.get_by_role("button", name=label).click()
        expect(table.get_by_role("columnheader", name=label)).to_have_attribute("aria-sort", "descending")
        first = listed(client, state=live, sort=sort)["jobs"][0]["id"]
        expect(table.locator("tbody tr .name small").first).to_have_text(first)
    page.goto("/#/jobs")
    shown_ids(page)
    table.get_by_role("link", name="grace").first.click()
    expect(page.locator(".head")).to_contain_text(f"{listed(client, owner='grace')['total']:,}")
    page.get_by_role("button", name="Do not filter by owner grace").click()
    expect(page.locator(".head")).to_contain_text(f"{listed(client)['total']:,}")
    chosen = shown_ids(page)[:2]
    for job in chosen:
        page.get_by_label(f"Compare {job}").check()
    page.get_by_role("button", name="Only these").click()
    expect(table.locator("tbody tr")).to_have_count(2)
    assert shown_ids(page) == chosen
    page.get_by_role("button", name="Do not filter by chosen jobs").click()
    expect(table.locator("tbody tr")).to_have_count(50)


@pytest.mark.parametrize("path", ["/#/", "/#/jobs", "/#/jobs/clicks-story1"])
def test_what_a_view_shows_first_is_asked_for_once_and_early(
    visit: Callable[..., Visit], recorded: RecordedCluster, path: str
) -> None:
    here = visit(recorded, path=path)
    expect(here.page.get_by_title("The live stream of changes")).to_contain_text("Live")
    expect(here.page.locator("main .loading")).to_have_count(0)
    loaded = "performance.getEntriesByType('resource').map((one) => one.name)"
    asked: list[str] = here.page.evaluate(loaded)
    # Lists are read once more when a stream begins: what changed in between is told by nobody.
    lists = ("/scheduler/", "/v1/jobs?", "/processes?")
    told = [url for url in asked if "/v1/" in url and not any(part in url for part in lists)]
    assert sorted(set(told)) == sorted(told)
    assert here.page.evaluate("window.elasticdlEarly.size") == 0, told
    modules = [name for name in asked if name.endswith(".js")]
    links = here.page.evaluate("[...document.querySelectorAll('[rel=modulepreload]')].map((one) => one.href)")
    start = [name for name in modules if name.endswith("/start.js")]
    assert sorted(modules) == sorted([*set(links), *start])  # each is named at the head, and none in vain


def test_a_page_that_nobody_sees_rests(visit: Callable[..., Visit], recorded: RecordedCluster) -> None:
    job_id = recorded.add_job("unseen-rest01")
    here = visit(recorded, path="/#/jobs?q=unseen-rest01", expected="ERR_")
    page = here.page
    expect(page.locator("tbody tr")).to_contain_text("Queued")
    expect(page.get_by_title("The live stream of changes")).to_contain_text("Live")
    show = """(state) => { Object.defineProperty(document, "visibilityState", { value: state, configurable: true });
      document.dispatchEvent(new Event("visibilitychange")); }"""
    page.clock.install()
    with page.expect_event("requestfailed", lambda request: "/v1/events" in request.url):
        page.evaluate(show, "hidden")
        page.clock.fast_forward(60_000)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    recorded.sql("UPDATE jobs SET state = 'CANCELLED', finished_at = now() WHERE id = $1", job_id)
    page.clock.fast_forward(60_000)
    assert asked == []
    page.evaluate(show, "visible")
    expect(page.locator("tbody tr")).to_contain_text("Cancelled")
    assert any("/v1/events" in url for url in asked)


def test_pages_and_the_back_button(visit: Callable[..., Visit], recorded: RecordedCluster, api: Client) -> None:
    page, client = visit(recorded, path="/#/jobs").page, api(recorded)
    first = shown_ids(page)
    page.get_by_role("button", name="Next").click()
    following = listed(client, page_token=listed(client)["next_page_token"])
    expect(page.locator("tbody tr .name small").first).to_have_text(following["jobs"][0]["id"])
    assert set(shown_ids(page)).isdisjoint(first)
    asked: list[str] = []
    page.on("request", lambda request: asked.append(request.url))
    page.get_by_role("searchbox").fill("clicks-story1")
    expect(page.locator("tbody tr")).to_have_count(1)
    assert not [url for url in asked if "q=clicks-story1" in url and "page_token" in url], asked
    page.locator("tbody tr a").first.click()
    expect(page).to_have_url(f"{recorded.url}/#/jobs/clicks-story1")
    expect(page.get_by_role("heading", name="clicks")).to_be_visible()
    page.go_back()
    expect(page.get_by_role("searchbox")).to_have_value("clicks-story1")
    expect(page.locator("tbody tr")).to_have_count(1)


def test_a_job_that_changes_changes_on_the_page(visit: Callable[..., Visit], recorded: RecordedCluster) -> None:
    job_id = recorded.add_job("shown-live01", owner="live-owner")
    page = visit(recorded, path="/#/jobs?q=shown-live01").page
    expect(page.locator("tbody tr")).to_contain_text("Queued")
    expect(page.get_by_title("The live stream of changes")).to_contain_text("Live")
    recorded.sql("UPDATE jobs SET state = 'CANCELLED', finished_at = now() WHERE id = $1", job_id)
    expect(page.locator("tbody tr")).to_contain_text("Cancelled")


def test_an_empty_cluster_says_what_to_do(visit: Callable[..., Visit], fresh: RecordedCluster) -> None:
    page = visit(fresh, path="/#/jobs").page
    expect(page.get_by_text("No jobs yet")).to_be_visible()
    page.get_by_role("link", name="this page").click()
    expect(page.get_by_role("heading", name="Submit a job")).to_be_visible()

"""What can be done with a job, each after a confirmation that shows what the scheduler expects of it."""

from __future__ import annotations

import re
from collections.abc import Callable
from typing import Any

import httpx
import pytest
from playwright.sync_api import Locator, Page, expect

from tests.browser.visits import Visit
from tests.fakes.recorded_cluster import RecordedCluster

pytestmark = pytest.mark.browser
Client = Callable[[RecordedCluster], httpx.Client]


@pytest.fixture
def job(recorded: RecordedCluster, request: pytest.FixtureRequest) -> str:
    """A job of this test alone, in the state that the test asks for."""
    words = re.sub("[^a-z]", "", request.node.name.removeprefix("test_"))[:20]
    return recorded.add_job(f"{words}-act001", **getattr(request, "param", {"max_workers": 2}))


def open_dialog(page: Page, action: str) -> Locator:
    page.get_by_role("group", name="Actions").get_by_role("button", name=action, exact=True).click()
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    return dialog


def state_of(client: httpx.Client, job: str) -> dict[str, Any]:
    return dict(client.get(f"/jobs/{job}").json())


def test_cancelling(visit: Callable[..., Visit], recorded: RecordedCluster, api: Client, job: str) -> None:
    page, client = visit(recorded, path=f"/#/jobs/{job}").page, api(recorded)
    dialog = open_dialog(page, "Cancel")
    expect(dialog).to_contain_text("final")
    dialog.get_by_role("button", name="Back").click()
    assert state_of(client, job)["state"] == "QUEUED"
    open_dialog(page, "Cancel").get_by_role("button", name="Cancel the job").click()
    expect(page.locator(".head")).to_contain_text("Cancelled")
    assert state_of(client, job)["state"] == "CANCELLED"
    expect(page.get_by_role("group", name="Actions").get_by_role("button", name="Suspend")).to_have_count(0)


def test_suspending_and_resuming(
    visit: Callable[..., Visit], recorded: RecordedCluster, api: Client, job: str
) -> None:
    page, client = visit(recorded, path=f"/#/jobs/{job}").page, api(recorded)
    open_dialog(page, "Suspend").get_by_role("button", name="Suspend", exact=True).click()
    expect(page.locator(".head")).to_contain_text("Suspended")
    assert state_of(client, job)["state"] == "SUSPENDED"
    open_dialog(page, "Resume").get_by_role("button", name="Resume", exact=True).click()
    expect(page.locator(".head")).to_contain_text("Queued")
    assert state_of(client, job)["state"] == "QUEUED"


def test_scaling(visit: Callable[..., Visit], recorded: RecordedCluster, api: Client, job: str) -> None:
    page, client = visit(recorded, path=f"/#/jobs/{job}").page, api(recorded)
    dialog = open_dialog(page, "Scale")
    scale = dialog.get_by_role("button", name="Scale", exact=True)
    expect(scale).to_be_disabled()
    dialog.get_by_label("Least workers").fill("5")
    expect(dialog.get_by_text("The least is more than the most.")).to_be_visible()
    expect(scale).to_be_disabled()
    dialog.get_by_label("Most workers").fill("8")
    expect(dialog.get_by_role("heading", name="Forecast")).to_be_visible()
    scale.click()
    expect(page.get_by_role("dialog")).to_have_count(0)
    expect(page.locator(".stats")).to_contain_text("5 to 8")
    now = state_of(client, job)
    assert (now["min_workers"], now["max_workers"]) == (5, 8)


def test_giving_another_priority(
    visit: Callable[..., Visit], recorded: RecordedCluster, api: Client, job: str
) -> None:
    page, client = visit(recorded, path=f"/#/jobs/{job}").page, api(recorded)
    dialog = open_dialog(page, "Priority")
    dialog.get_by_label("Priority").fill("5000")
    expect(dialog.get_by_role("button", name="Change")).to_be_disabled()
    dialog.get_by_label("Priority").fill("700")
    expect(dialog.get_by_role("heading", name="Forecast")).to_be_visible()
    dialog.get_by_role("button", name="Change").click()
    expect(page.locator(".stats")).to_contain_text("priority 700")
    assert state_of(client, job)["priority"] == 700


@pytest.mark.parametrize("job", [{"spec": {"labels": {"team": "ads", "old": "5"}}}], indirect=True, ids=["labelled"])
def test_changing_labels(visit: Callable[..., Visit], recorded: RecordedCluster, api: Client, job: str) -> None:
    here = visit(recorded, path=f"/#/jobs/{job}", expected="422")
    page, client = here.page, api(recorded)
    dialog = open_dialog(page, "Labels")
    change, typed = dialog.get_by_role("button", name="Change"), dialog.get_by_label("Labels", exact=True)
    expect(typed).to_have_value("old=5\nteam=ads")
    expect(change).to_be_disabled()
    typed.fill("no pair")
    expect(dialog.get_by_text("Write each as key=value")).to_be_visible()
    expect(change).to_be_disabled()
    typed.fill("x" * 400 + "=1")
    change.click()
    expect(dialog.get_by_role("alert")).to_contain_text("is no key of a label")
    typed.fill("team=vision\nround=7=a")
    change.click()
    expect(dialog).to_have_count(0)
    labels = page.get_by_role("list", name="Labels")
    expect(labels.get_by_role("listitem")).to_have_text(["team=vision", "round=7=a"])
    assert state_of(client, job)["spec"]["labels"] == {"team": "vision", "round": "7=a"}
    labels.get_by_role("link", name="round=7=a").click()
    expect(page.locator("tbody tr")).to_have_count(1)
    expect(page.locator("tbody tr")).to_contain_text(job)


@pytest.mark.parametrize("job", [{"state": "SUCCEEDED", "reason": "done"}], indirect=True, ids=["succeeded"])
def test_deleting_a_job_that_is_over(
    visit: Callable[..., Visit], recorded: RecordedCluster, api: Client, job: str
) -> None:
    page, client = visit(recorded, path=f"/#/jobs/{job}").page, api(recorded)
    dialog = open_dialog(page, "Delete")
    remove = dialog.get_by_role("button", name="Delete the job")
    expect(remove).to_be_disabled()
    dialog.get_by_role("checkbox").check()
    remove.click()
    expect(page).to_have_url(f"{recorded.url}/#/jobs")
    assert client.get(f"/jobs/{job}").status_code == 404


def test_what_the_api_refuses_is_said_in_the_dialog(
    visit: Callable[..., Visit], recorded: RecordedCluster, job: str
) -> None:
    here = visit(recorded, path=f"/#/jobs/{job}", expected="409")
    with here.page.expect_response("**/v1/scheduler/what-if"):  # which asks for an active job
        dialog = open_dialog(here.page, "Suspend")
    # Somebody else was faster: the page does not know yet, as its stream is told of changes of jobs that commit.
    here.page.route("**/v1/jobs/*/events", lambda route: route.abort())
    recorded.sql("ALTER TABLE jobs DISABLE TRIGGER jobs_after_write")
    recorded.sql("UPDATE jobs SET state = 'CANCELLED' WHERE id = $1", job)
    recorded.sql("ALTER TABLE jobs ENABLE TRIGGER jobs_after_write")
    dialog.get_by_role("button", name="Suspend", exact=True).click()
    expect(dialog.get_by_role("alert")).to_contain_text("CANCELLED")

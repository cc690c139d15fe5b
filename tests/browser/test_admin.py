"""Administration by the page: tokens, namespaces, reservations, the log of all changes."""

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


def row_of(page: Page, name: str) -> object:
    return page.locator("tbody tr").filter(has_text=name)


def test_a_token_is_made_shown_once_used_and_revoked(visit: Callable[..., Visit], recorded: RecordedCluster) -> None:
    page = visit(recorded, path="/#/admin").page
    expect(row_of(page, "ada-laptop")).to_contain_text("submit")
    expect(row_of(page, "lost-phone")).to_have_count(0)
    page.get_by_label("Also ended ones").check()
    expect(row_of(page, "lost-phone")).to_contain_text("revoked")

    page.get_by_role("button", name="New token").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("browser-made")
    dialog.get_by_label("Its holder may").select_option("read")
    dialog.get_by_label("Namespace").fill("team-ads")
    dialog.get_by_role("button", name="Make it").click()
    secret = page.get_by_role("dialog").locator("code").inner_text()
    page.get_by_role("button", name="I have it").click()
    expect(page.get_by_text(secret)).to_have_count(0)
    expect(row_of(page, "browser-made")).to_contain_text("read")

    mine = {"Authorization": f"Bearer {secret}"}
    who = httpx.get(f"{recorded.url}/v1/whoami", headers=mine, timeout=30, trust_env=False)
    assert (who.json()["namespace"], who.json()["scope"]) == ("team-ads", "read")

    page.get_by_role("button", name="Revoke browser-made").click()
    page.get_by_role("dialog").get_by_role("button", name="Revoke").click()
    expect(row_of(page, "browser-made")).to_contain_text("revoked")
    refused = httpx.get(f"{recorded.url}/v1/whoami", headers=mine, timeout=30, trust_env=False)
    assert refused.status_code == 401


def test_a_name_that_is_taken_is_said_in_the_dialog(visit: Callable[..., Visit], recorded: RecordedCluster) -> None:
    page = visit(recorded, path="/#/admin/tokens", expected="409").page
    page.get_by_role("button", name="New token").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("ada-laptop")
    dialog.get_by_label("Namespace").fill("team-ads")
    dialog.get_by_role("button", name="Make it").click()
    expect(dialog.get_by_role("alert")).to_contain_text("ada-laptop")
    dialog.get_by_role("button", name="Back").click()
    expect(dialog).to_have_count(0)


def test_a_namespace_is_made_changed_and_removed(
    visit: Callable[..., Visit], recorded: RecordedCluster, api: Client
) -> None:
    page, client = visit(recorded, path="/#/admin/namespaces").page, api(recorded)
    page.get_by_role("button", name="New namespace").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("Name", exact=True).fill("team-new")
    dialog.get_by_label("Places").fill("/data/new\ns3://bucket/new")
    dialog.get_by_label("Disk, MiB").fill("2048")
    dialog.get_by_role("button", name="Make it").click()
    expect(row_of(page, "team-new")).to_contain_text("disk 2.0 GiB")
    made = client.get("/namespaces/team-new").json()
    assert made["data_roots"] == ["/data/new", "s3://bucket/new"] and made["limits"] == {"disk_mib": 2048}

    page.get_by_role("button", name="Change team-new").click()
    page.get_by_role("dialog").get_by_label("Parameter servers").fill("3")
    page.get_by_role("dialog").get_by_label("Disk, MiB").fill("")
    page.get_by_role("dialog").get_by_role("button", name="Change it").click()
    expect(row_of(page, "team-new")).to_contain_text("max ps 3")
    assert client.get("/namespaces/team-new").json()["limits"] == {"max_ps": 3}

    page.get_by_role("button", name="Remove team-new").click()
    page.get_by_role("dialog").get_by_role("button", name="Remove").click()
    expect(row_of(page, "team-new")).to_have_count(0)
    assert client.get("/namespaces/team-new").status_code == 404
    expect(page.get_by_role("button", name="Remove default")).to_be_disabled()


def test_slots_are_reserved_and_given_back(
    visit: Callable[..., Visit], recorded: RecordedCluster, api: Client
) -> None:
    page, client = visit(recorded, path="/#/admin/reservations", expected="422").page, api(recorded)
    expect(page.get_by_text("Nothing is reserved")).to_be_visible()
    page.get_by_role("button", name="Reserve slots").click()
    dialog = page.get_by_role("dialog")
    dialog.get_by_label("For").fill("web-shop")
    dialog.get_by_label("Slots").fill("many")
    dialog.get_by_role("button", name="Reserve").click()
    expect(dialog.locator(".field").filter(has_text="Slots").get_by_role("alert")).not_to_be_empty()
    dialog.get_by_label("Slots").fill("3")
    dialog.get_by_role("button", name="Reserve").click()
    expect(row_of(page, "web-shop")).to_contain_text("3 of 3")
    assert client.get("/cluster/reservations/web-shop").json()["slots"] == 3
    page.get_by_role("button", name="Give back web-shop").click()
    page.get_by_role("dialog").get_by_role("button", name="Give back").click()
    expect(page.get_by_text("Nothing is reserved")).to_be_visible()


def test_the_log_of_changes_is_filtered_in_the_address(
    visit: Callable[..., Visit], recorded: RecordedCluster, api: Client
) -> None:
    page = visit(recorded, path="/#/admin/audit?action=job.suspend").page
    entries = api(recorded).get("/audit", params={"action": "job.suspend", "limit": 50}).json()
    rows = page.get_by_role("table", name="Changes").locator("tbody tr")
    expect(rows).to_have_count(len(entries["entries"]))
    expect(rows.first).to_contain_text(entries["entries"][0]["actor"])
    held: list[Any] = []
    page.route("**/audit?*page_token=*", lambda route: held.append(route))
    with page.expect_request("**/audit?*page_token=*"):
        page.get_by_role("button", name="Next").click()
    target = page.get_by_placeholder("target")
    target.fill("nobody-knows")
    held[0].continue_()
    expect(page.get_by_text("Page 2")).to_be_visible()
    following = {"action": "job.suspend", "limit": 50, "page_token": entries["next_page_token"]}
    second = api(recorded).get("/audit", params=following).json()["entries"]
    expect(rows).to_have_count(len(second))
    expect(target).to_have_value("nobody-knows")  # what is typed outlives an answer
    page.keyboard.press("Enter")
    expect(page.get_by_text("No change matches")).to_be_visible()
    assert "target=nobody-knows" in page.url

"""Who may see the page: a token begins a session, a wrong one does not, and a session ends."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import expect

from tests.browser.visits import Visit
from tests.fakes import recorded_states
from tests.fakes.recorded_cluster import RecordedCluster, recorded_cluster
from tests.integration.conftest import PostgresServer

pytestmark = pytest.mark.browser


def test_a_stranger_logs_in_and_out(visit: Callable[..., Visit], fresh: RecordedCluster) -> None:
    here = visit(fresh, path="/#/jobs", token=None, expected="401|404")
    page = here.page
    token = page.get_by_label("Token")
    expect(token).to_be_focused()
    token.fill("not-a-token-of-this-cluster")
    token.press("Enter")
    expect(page.get_by_role("alert")).to_contain_text("token")
    assert here.context.cookies() == []
    token.fill(fresh.token)
    token.press("Enter")
    expect(page.get_by_role("heading", name="Jobs")).to_be_visible()
    (cookie,) = here.context.cookies()
    assert cookie["httpOnly"] and cookie["sameSite"] == "Strict"
    page.get_by_role("button", name="Log out").click()
    expect(page.get_by_label("Token")).to_be_visible()
    assert here.context.cookies() == []
    page.reload()
    expect(page.get_by_label("Token")).to_be_visible()


def test_a_session_that_ended_asks_for_a_token_and_goes_on_there(
    visit: Callable[..., Visit], fresh: RecordedCluster
) -> None:
    page = visit(fresh, path="/#/admin/namespaces", expected="401").page
    expect(page.get_by_role("table", name="Namespaces")).to_be_visible()
    fresh.sql("DELETE FROM sessions")
    page.get_by_role("link", name="Audit log").click()
    expect(page.get_by_label("Token")).to_be_visible()
    expect(page.get_by_role("alert")).not_to_be_empty()
    page.get_by_label("Token").fill(fresh.token)
    page.keyboard.press("Enter")
    expect(page.get_by_role("heading", name="Audit log")).to_be_visible()


def test_a_reader_sees_no_way_to_change_anything(visit: Callable[..., Visit], recorded: RecordedCluster) -> None:
    token = recorded.make_token("read")
    page = visit(recorded, path="/#/jobs/clicks-story1", token=token).page
    expect(page.get_by_role("heading", name="clicks")).to_be_visible()
    views = page.get_by_role("navigation", name="Views")
    expect(views.get_by_role("link", name="Jobs")).to_be_visible()
    for name in ("Submit", "Admin"):
        expect(views.get_by_role("link", name=name)).to_have_count(0)
    for name in ("Cancel", "Suspend", "Scale"):
        expect(page.get_by_role("button", name=name)).to_have_count(0)


def test_what_is_shown_says_that_it_is_stale_without_the_api(
    visit: Callable[..., Visit], server: PostgresServer
) -> None:
    with recorded_cluster(server, recorded_states.nothing) as cluster:
        page = visit(cluster, path="/#/jobs", expected="ERR_|Failed to load").page
        life = page.get_by_title("The live stream of changes")
        expect(life).to_contain_text("Live")
        cluster.process.kill()
        expect(life).to_contain_text("Stale since")
        expect(page.get_by_role("heading", name="Jobs")).to_be_visible()

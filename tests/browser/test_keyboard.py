"""The page by the keyboard: the way round, dialogs that keep the focus and give it back."""

from __future__ import annotations

from collections.abc import Callable

import pytest
from playwright.sync_api import Page, expect

from tests.browser.visits import PHONE, Visit
from tests.fakes.recorded_cluster import RecordedCluster
from tests.fakes.recorded_story import STORY

pytestmark = pytest.mark.browser
INSIDE = "document.activeElement.closest('dialog') !== null || document.activeElement === document.body"
FOCUSED = "(document.activeElement.getAttribute('aria-label') || document.activeElement.innerText || '').trim()"


def focused(page: Page) -> str:
    """The words of what has the focus."""
    return str(page.evaluate(FOCUSED))


def test_the_way_round_begins_with_a_way_past_the_navigation(
    visit: Callable[..., Visit], recorded: RecordedCluster
) -> None:
    page = visit(recorded, path="/#/jobs").page
    expect(page.get_by_role("table", name="Jobs")).to_be_visible()
    page.keyboard.press("Tab")
    assert focused(page) == "Skip to the content"
    page.keyboard.press("Enter")
    expect(page.locator("#main")).to_be_focused()
    page.keyboard.press("Tab")
    assert page.evaluate("document.activeElement.closest('main') !== null")
    # All that can be used is reached once, in the order in which it stands.
    page.reload()
    expect(page.get_by_role("table", name="Jobs")).to_be_visible()
    expect(page.get_by_role("link", name="Admin")).to_be_visible()
    seen = []
    for _ in range(13):
        page.keyboard.press("Tab")
        seen.append(focused(page))
    views = ["Cluster", "Jobs", "Compare", "Submit", "SQL", "Admin", "API"]
    assert [one for one in seen if one in views] == views


def test_a_dialog_keeps_the_focus_and_gives_it_back(visit: Callable[..., Visit], recorded: RecordedCluster) -> None:
    page = visit(recorded, path=f"/#/jobs/{STORY}").page
    scale = page.get_by_role("button", name="Scale", exact=True)
    scale.focus()
    page.keyboard.press("Enter")
    dialog = page.get_by_role("dialog")
    expect(dialog).to_be_visible()
    inside = []
    for _ in range(12):
        page.keyboard.press("Tab")
        # The browser's own controls come between the last and the first; nothing of the page behind does.
        inside.append(
            page.evaluate(
                "document.activeElement.closest('dialog') !== null || document.activeElement === document.body"
            )
        )
    assert all(inside)
    page.keyboard.press("Escape")
    expect(dialog).to_have_count(0)
    expect(scale).to_be_focused()


def test_on_a_phone_the_navigation_opens_and_closes(visit: Callable[..., Visit], recorded: RecordedCluster) -> None:
    page = visit(recorded, path="/#/jobs", size=PHONE).page
    views = page.get_by_role("navigation", name="Views")
    expect(views).to_be_hidden()
    page.get_by_role("button", name="Navigation").click()
    views.get_by_role("link", name="Admin").click()
    expect(page.get_by_role("heading", name="Admin")).to_be_visible()
    expect(views).to_be_hidden()


def test_the_choice_of_colours_stays(visit: Callable[..., Visit], fresh: RecordedCluster) -> None:
    page = visit(fresh, path="/#/jobs", scheme="dark").page
    background = "getComputedStyle(document.body).backgroundColor"
    dark = page.evaluate(background)
    page.get_by_role("button", name="Light colours").click()
    light = page.evaluate(background)
    assert dark != light
    page.reload()
    expect(page.get_by_role("button", name="Dark colours")).to_be_visible()
    assert page.evaluate(background) == light

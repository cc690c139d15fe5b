"""What stands on the page, to be compared with what the API says."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from playwright.sync_api import Page

from tests.browser.visits import module_address


def written(page: Page, function: str, values: Iterable[Any]) -> list[str]:
    """How the page writes values, by one of the functions of ``ui/format.js``."""
    script = (
        "async ([address, name, all]) => { const m = await import(address); return all.map((one) => m[name](one)); }"
    )
    return list(page.evaluate(script, [module_address(page, "ui/format.js"), function, list(values)]))


def column(page: Page, table: str, number: int) -> list[str]:
    """The texts of a column of a table, without what is for screen readers alone."""
    rows = page.get_by_role("table", name=table, exact=True).locator("tbody tr")
    return [text.strip() for text in rows.locator(f"td:nth-child({number})").all_inner_texts()]

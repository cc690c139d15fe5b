"""One visit to the dashboard: a browser's context with a page in it, logged in or not."""

from __future__ import annotations

import re
from typing import Any

from tests.fakes.recorded_cluster import RecordedCluster

DESKTOP = {"width": 1440, "height": 900}
PHONE = {"width": 390, "height": 844}
_QUIET = re.compile(r"404 .*/v1/(jobs/[^/]+/(audit|ledger|logs|processes|series|stacks)|session)|401 .*/v1/session")
"""A part that a cluster keeps nothing for says so in the page; the browser says so in its console, too."""
_SERIOUS = ("serious", "critical")
RULES = ["wcag2a", "wcag2aa", "wcag21a", "wcag21aa", "best-practice"]


def module_address(page: Any, name: str) -> str:
    """The address of a module of the page."""
    return str(page.locator("script[type=module]").get_attribute("src")).rpartition("/")[0] + "/" + name


class Visit:
    """A page of the dashboard.

    Args:
        browser: Playwright's browser.
        cluster: whose dashboard.
        path: where to go.
        token: log in with it first; None for a stranger.
        size: of the window.
        scheme: ``dark`` or ``light``.
        expected: a pattern of what the console may complain about.

    Attributes:
        page: Playwright's page.
    """

    def __init__(
        self,
        browser: Any,
        cluster: RecordedCluster,
        *,
        path: str = "/",
        token: str | None = "",
        size: dict[str, int] = DESKTOP,
        scheme: str = "light",
        expected: str = "",
        **options: Any,
    ) -> None:
        self.cluster = cluster
        self._complaints: list[str] = []
        self._expected = re.compile(expected) if expected else None
        self.context = browser.new_context(
            viewport=size, color_scheme=scheme, base_url=cluster.url, reduced_motion="reduce", **options
        )
        self.context.set_default_timeout(30_000)
        if token is not None:
            self.log_in(token or cluster.token)
        self.page = self.context.new_page()
        self.page.on("console", self._hear)
        self.page.on("pageerror", lambda error: self._complaints.append(f"uncaught: {error}"))
        self.page.goto(path)

    def log_in(self, token: str) -> None:
        """Gives the browser a session, as the form of the page does."""
        answer = self.context.request.post("/v1/session", headers={"Authorization": f"Bearer {token}"})
        assert answer.ok, answer.text()

    def findings(self) -> list[str]:
        """What axe finds that is serious or worse, in words."""
        from axe_playwright_python.sync_playwright import Axe

        result = Axe().run(self.page, options={"runOnly": {"type": "tag", "values": RULES}})
        return [
            f"{one['id']} ({one['impact']}): {one['help']}: {node['target']} {node.get('failureSummary', '')}"
            for one in result.response["violations"]
            if one["impact"] in _SERIOUS
            for node in one["nodes"]
        ]

    def overflow(self) -> int:
        """Pixels by which the document is wider than the window."""
        return int(self.page.evaluate("document.documentElement.scrollWidth - window.innerWidth"))

    def close(self) -> list[str]:
        """Ends the visit; returns what the console complained about."""
        self.context.close()
        return self._complaints

    def _hear(self, message: Any) -> None:
        if message.type != "error":
            return
        text = f"{message.text} ({message.location.get('url', '')})"
        if not _QUIET.search(text) and (self._expected is None or not self._expected.search(text)):
            self._complaints.append(text)

"""A real browser for tests and benchmarks: Debian's Chromium, driven by Playwright.

As a program it prints where the browser is, with exit code 1 if there is none: ``./dev`` asks before it installs one.
"""

from __future__ import annotations

import contextlib
import os
import shutil
import sys
from collections.abc import Iterator
from typing import Any

NAMES = ("chromium", "chromium-browser", "google-chrome-stable", "google-chrome")
MISSING = (
    "there is no Chromium: install your system's (Debian: apt install chromium), or name one in ELASTICDL_CHROMIUM"
)


def find_chromium() -> str | None:
    """The path of a Chromium, if there is one: that of ``ELASTICDL_CHROMIUM``, else by the names that systems use."""
    named = os.environ.get("ELASTICDL_CHROMIUM")
    return named or next((path for name in NAMES if (path := shutil.which(name))), None)


@contextlib.contextmanager
def launched_chromium() -> Iterator[Any]:
    """A headless browser (Playwright's ``Browser``) that is closed with the block.

    Raises:
        RuntimeError: there is none on this machine.
    """
    path = find_chromium()
    if path is None:
        raise RuntimeError(MISSING)
    from playwright.sync_api import sync_playwright

    # Its sandbox refuses root; what it shows is ours.
    arguments = ["--disable-dev-shm-usage", "--force-color-profile=srgb"]
    if hasattr(os, "geteuid") and os.geteuid() == 0:
        arguments.append("--no-sandbox")
    with sync_playwright() as playwright:
        browser = playwright.chromium.launch(executable_path=path, args=arguments, timeout=60_000)
        try:
            yield browser
        finally:
            browser.close()


if __name__ == "__main__":
    print(find_chromium() or MISSING)
    sys.exit(0 if find_chromium() else 1)

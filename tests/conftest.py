"""What holds for all tests: bad inputs are counted, and slow runs end with a table of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

from tests.fakes.bad_inputs import TOLD, table


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Keeps with each test what it tried; its report carries that to the process that prints."""
    before = Counter(TOLD)
    yield
    item.user_properties += list((TOLD - before).items())


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Prints, after slow tests, how many bad inputs were tried and what came of them, and what tests measured."""
    if not config.option.markexpr.startswith("slow"):
        return
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())]
    measured = [f"{name} {text}" for report in reports for name, text in report.user_properties if name == "TARGET"]
    for line in (*table(reports), *measured):
        terminalreporter.write_line(line)

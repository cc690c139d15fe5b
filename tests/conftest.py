"""What holds for all tests: bad inputs are counted, and slow runs end with a table of them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

from tests.fakes.bad_inputs import ERRORS_OF, SERVER_ERRORS, TRIED, TRIED_AT, table


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Keeps with each test what it tried; its report carries that to the process that prints."""
    before = Counter(TRIED), Counter(SERVER_ERRORS)
    yield
    for name, now, then in ((TRIED_AT, TRIED, before[0]), (ERRORS_OF, SERVER_ERRORS, before[1])):
        item.user_properties += [(name + door, number) for door, number in (now - then).items()]


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Prints, after slow tests, how many bad inputs were tried and what came of them, as ``TARGET`` lines."""
    if config.option.markexpr != "slow":
        return
    reports = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())]
    for line in table(reports):
        terminalreporter.write_line(line)

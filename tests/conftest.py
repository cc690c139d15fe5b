"""What holds for all tests: whose turn it is, what each costs, and, of slow runs, a table of bad inputs."""

from __future__ import annotations

import gc
import os
from collections import Counter
from collections.abc import Generator
from typing import Any

import pytest

from tests import rotation
from tests.data_apart import remove_data_apart
from tests.fakes.bad_inputs import TOLD, table

_SPENT = [0.0]
_SHOWN_FROM_S = 60.0
_freeze, _unfreeze = gc.freeze, gc.unfreeze
_REPLACED = pytest.MonkeyPatch()
_THAWED, _FROZEN_ANEW = [False], [False]


def pytest_configure(config: pytest.Config) -> None:
    """Decides for all processes of the run which cases have their turn; has objects frozen by this file alone."""
    rotation.decide()
    _REPLACED.setattr(gc, "freeze", _freeze_what_was_thawed)
    _REPLACED.setattr(gc, "unfreeze", _note_unfreeze)


def pytest_unconfigure() -> None:
    _REPLACED.undo()


def pytest_report_header() -> str:
    return f"rotation: {rotation.decide()} (the same cases again: {rotation.VARIABLE}={rotation.decide()})"


@pytest.hookimpl(tryfirst=True)
def pytest_collection_modifyitems(config: pytest.Config, items: list[pytest.Item]) -> None:
    """Leaves cases out that have no turn, before markers are selected."""
    rotation.mark(items, whole=config.option.markexpr.startswith("slow"))
    if order := os.environ.get(rotation.ORDER):
        rotation.shuffle(items, order)


@pytest.hookimpl(hookwrapper=True)
def pytest_collection() -> Generator[None]:
    """Lets the collector rest while tests are found, since what imports make stays."""
    gc.disable()
    yield
    _look_no_more_at_what_is_alive()
    gc.enable()


def pytest_collection_finish() -> None:
    _SPENT[0] = _processor_s()


@pytest.fixture(scope="module", autouse=True)
def _nothing_left_to_the_collector() -> Generator[None]:
    """Collects after each file, so that what its tests left open fails there, and not in a later file."""
    yield
    if _FROZEN_ANEW[0]:  # what a test had made is among it
        _unfreeze()
    _look_no_more_at_what_is_alive()


@pytest.fixture(scope="session", autouse=True)
def _no_database_stays_apart(tmp_path_factory: pytest.TempPathFactory) -> Generator[None]:
    """Removes the databases of clusters below ``tmp_path``, which root keeps apart from them."""
    yield
    remove_data_apart(f"{tmp_path_factory.getbasetemp()}/")


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_call(item: pytest.Item) -> Generator[None]:
    """Keeps with each test what it tried; its report carries that to the process that prints."""
    before = Counter(TOLD)
    yield
    item.user_properties += list((TOLD - before).items())


@pytest.hookimpl(hookwrapper=True)
def pytest_runtest_makereport() -> Generator[None, Any]:
    """Keeps what each phase of a test cost: of this process, and of those that it waited for."""
    outcome = yield
    before, _SPENT[0] = _SPENT[0], _processor_s()
    outcome.get_result().processor_s = _SPENT[0] - before


def pytest_terminal_summary(terminalreporter: Any, config: pytest.Config) -> None:
    """Prints what cost most, and, after slow tests, how many bad inputs were tried and what tests measured."""
    # Those of successful phases around a test have the empty category.
    reports = [
        one for kind in ("", "passed", "failed", "skipped", "error") for one in terminalreporter.stats.get(kind, ())
    ]
    _print_costs(terminalreporter, reports)
    if not config.option.markexpr.startswith("slow"):
        return
    calls = [report for kind in ("passed", "failed") for report in terminalreporter.stats.get(kind, ())]
    measured = [f"{name} {text}" for report in calls for name, text in report.user_properties if name == "TARGET"]
    for line in (*table(calls), *measured):
        terminalreporter.write_line(line)


def _look_no_more_at_what_is_alive() -> None:
    """Collects, and spares later collections what is left: a million objects of frameworks and tests cost 1.2 s."""
    gc.collect()
    _freeze()
    _THAWED[0] = _FROZEN_ANEW[0] = False


def _freeze_what_was_thawed() -> None:
    """``gc.freeze`` for what is tested. A worker that freezes what it loaded would hide what tests before it made."""
    if _THAWED[0]:
        _freeze()
        _THAWED[0], _FROZEN_ANEW[0] = False, True


def _note_unfreeze() -> None:
    _unfreeze()
    _THAWED[0] = True


def _print_costs(terminalreporter: Any, reports: list[Any]) -> None:
    files: Counter[str] = Counter()
    for report in reports:
        files[report.nodeid.partition("::")[0]] += getattr(report, "processor_s", 0.0)
    if (total := sum(files.values())) >= _SHOWN_FROM_S:
        terminalreporter.write_line(f"processor seconds of tests and of the processes they waited for: {total:.0f}")
        for file, cost in files.most_common(15):
            terminalreporter.write_line(f"{cost:8.1f} {file}")


def _processor_s() -> float:
    return sum(os.times()[:4])

"""The table of bad inputs at the end of slow runs adds up what tests tried, and shows what went wrong."""

from __future__ import annotations

from dataclasses import dataclass, field

import pytest

from tests.fakes.bad_inputs import TRIED_AT, table

pytestmark = pytest.mark.unit


@dataclass
class Report:
    """What a test reports."""

    user_properties: list[tuple[str, object]] = field(default_factory=list)
    when: str = "call"
    failed: bool = False


def test_numbers_of_all_tests_are_added_up() -> None:
    tried = [(f"{TRIED_AT}the door", 60_000), ("other", 5)]
    window = [(f"{TRIED_AT}the window", 1_000)]
    reports = [Report(tried), Report(tried), Report(tried, when="teardown"), Report(window), Report()]
    assert table(reports) == [
        "  120,000  bad inputs to the door",
        "    1,000  bad inputs to the window",
        "TARGET bad_inputs_tried 121000 >=100000 met",
        "TARGET server_errors 0 <=0 met",
        "TARGET freezes_over_1_s 0 <=0 met",
        "TARGET leaks 0 <=0 met",
        "TARGET slots_leaked 0 <=0 met",
        "TARGET tests_of_bad_inputs_failed 0 <=0 met",
    ]
    assert table([Report()]) == []


def test_what_went_wrong_is_missed() -> None:
    told = [(f"{TRIED_AT}the door", 10), ("server_errors", 2), ("leaks", 1)]
    assert [line.split()[1:] for line in table([Report(told, failed=True)])[1:]] == [
        ["bad_inputs_tried", "10", ">=100000", "missed"],
        ["server_errors", "2", "<=0", "missed"],
        ["freezes_over_1_s", "0", "<=0", "met"],
        ["leaks", "1", "<=0", "missed"],
        ["slots_leaked", "0", "<=0", "met"],
        ["tests_of_bad_inputs_failed", "1", "<=0", "missed"],
    ]

"""Counts the bad inputs that tests send, by the door that they are sent to."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

TRIED_AT, ERRORS_OF = "bad inputs to ", "server errors of "
"""How the properties of a test begin in which its numbers travel."""
WANTED = 100_000
TRIED: Counter[str] = Counter()
"""In this process, since it began."""
SERVER_ERRORS: Counter[str] = Counter()
"""Of these, those that were answered with a failure of the server's own."""


def count(door: str, number: int = 1, *, server_errors: int = 0) -> None:
    """Notes that inputs were tried.

    Args:
        door: what they were sent to, in a word or two.
        number: how many.
        server_errors: how many of them the server failed at: 5xx, or an undocumented status.
    """
    TRIED[door] += number
    SERVER_ERRORS[door] += server_errors


def table(reports: Sequence[Any]) -> list[str]:
    """The lines about what some reports of tests tell; none where no test tried anything."""
    sums: dict[str, Counter[str]] = {TRIED_AT: Counter(), ERRORS_OF: Counter()}
    broken = 0
    for report in reports:
        told = {name: number for name, number in report.user_properties if name.startswith((TRIED_AT, ERRORS_OF))}
        if not told or report.when != "call":
            continue
        broken += report.failed
        for name, number in told.items():
            prefix = TRIED_AT if name.startswith(TRIED_AT) else ERRORS_OF
            sums[prefix][name.removeprefix(prefix)] += number
    if not sums[TRIED_AT]:
        return []
    tried, errors = sums[TRIED_AT].total(), sums[ERRORS_OF].total()
    lines = [f"{number:>9,}  bad inputs to {door}" for door, number in sums[TRIED_AT].most_common()]
    goals = (
        ("bad_inputs_tried", tried, f">={WANTED}", tried >= WANTED),
        ("server_errors", errors, "<=0", errors == 0),
        ("tests_of_bad_inputs_failed", broken, "<=0", broken == 0),
    )
    return lines + [f"TARGET {name} {value} {goal} {'met' if met else 'missed'}" for name, value, goal, met in goals]

"""Counts the bad inputs that tests send, by the door that they are sent to, and what they did that none may do."""

from __future__ import annotations

from collections import Counter
from collections.abc import Sequence
from typing import Any

TRIED_AT = "bad inputs to "
"""How the properties of a test begin in which its numbers travel; the others are ``HARMS``."""
HARMS = ("server_errors", "freezes_over_1_s", "leaks", "slots_leaked")
WANTED = 100_000
FREEZE_S = 1.0
TOLD: Counter[str] = Counter()
"""By property, in this process, since it began."""


def count(
    door: str, number: int = 1, *, server_errors: int = 0, seconds: float = 0.0, leaks: int = 0, slots_leaked: int = 0
) -> None:
    """Notes that inputs were tried.

    Args:
        door: what they were sent to, in a word or two.
        number: how many.
        server_errors: how many of them the server failed at: 5xx, or an undocumented status.
        seconds: how long the answer took.
        leaks: how many secrets came out.
        slots_leaked: slots that are taken though their process has ended.
    """
    TOLD[TRIED_AT + door] += number
    for harm, found in zip(HARMS, (server_errors, seconds > FREEZE_S, leaks, slots_leaked), strict=True):
        TOLD[harm] += int(found)


def table(reports: Sequence[Any]) -> list[str]:
    """The lines about what some reports of tests tell; none where no test tried anything."""
    sums: Counter[str] = Counter()
    broken = 0
    for report in reports:
        told = {name: number for name, number in report.user_properties if name.startswith((TRIED_AT, *HARMS))}
        if told and report.when == "call":
            broken += report.failed
            sums.update(told)
    doors = Counter({name: number for name, number in sums.items() if name.startswith(TRIED_AT)})
    if not doors:
        return []
    lines = [f"{number:>9,}  {name}" for name, number in doors.most_common()]
    tried = doors.total()
    lines.append(f"TARGET bad_inputs_tried {tried} >={WANTED} {'met' if tried >= WANTED else 'missed'}")
    for harm, number in (*((harm, sums[harm]) for harm in HARMS), ("tests_of_bad_inputs_failed", broken)):
        lines.append(f"TARGET {harm} {number} <=0 {'missed' if number else 'met'}")
    return lines

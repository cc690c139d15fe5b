"""Sides of a comparison, measured in turns."""

from __future__ import annotations

import traceback
from collections.abc import Callable, Sequence
from typing import Protocol

from benchmarks.harness import Sample

Say = Callable[[str], None]


class Side(Protocol):
    """One way to train, whose speed is measured several times.

    Attributes:
        name: for tables and ``--sides``.
        label: for people.
    """

    name: str
    label: str

    def prepare(self) -> None:
        """Starts what can stay; the side is idle until it is measured."""

    def ready(self) -> None:
        """Waits until it can be measured."""

    def measure(self, seconds: float) -> float:
        """Trains for about so long, after a warm-up of its own; returns samples a second."""

    def close(self) -> None:
        """Ends its processes."""


def take_turns(sides: Sequence[Side], rounds: int, seconds: float, say: Say) -> dict[str, Sample]:
    """Measures the sides in turns, so that what else the machine does falls on all of them alike.

    A side that fails is left out of what follows, and what went wrong is said.

    Args:
        sides: started here and ended here, whatever happens.
        rounds: measurements of each.
        seconds: of one measurement.
        say: shows progress.

    Returns:
        Samples a second by name, of the sides that were measured in every round.
    """
    values: dict[str, list[float]] = {}
    alive = list(sides)

    def attempt(side: Side, action: Callable[[], object]) -> None:
        try:
            action()
        except Exception as error:
            alive.remove(side)
            values.pop(side.name, None)
            side.close()  # It may still be at it, at the cost of the others.
            say(f"{side.label} cannot be measured: {error}")
            say(traceback.format_exc(limit=-3))

    try:
        for side in sides:
            say(f"starting {side.label}")
            attempt(side, side.prepare)
        for side in list(alive):
            attempt(side, side.ready)
        for turn in range(rounds):
            for side in list(alive):
                attempt(side, lambda side=side: values.setdefault(side.name, []).append(side.measure(seconds)))
                if side in alive:
                    say(f"round {turn + 1} of {rounds}: {side.label}: {values[side.name][-1]:,.0f} samples/s")
    finally:
        for side in sides:
            side.close()
    return {name: Sample(tuple(found)) for name, found in values.items()}

"""The work of a job that never ran, from jobs that had the same to do.

The service and the simulator ask the same function: what is simulated is what the service knows.
"""

from __future__ import annotations

import statistics
from collections.abc import Sequence
from dataclasses import dataclass

LATEST = 5
"""Jobs that are asked, the last ones."""

LONE_SPREAD = 0.1
"""Relative error that is taken for possible where data may have changed since they were counted."""


@dataclass(frozen=True, slots=True)
class ExpectedWork:
    """The work to expect.

    Attributes:
        records: how many there are.
        spread: relative error that four of five stay within.
    """

    records: float
    spread: float


def expected_work(past: Sequence[float]) -> ExpectedWork | None:
    """The mean of the last jobs' work, with its error; None if there were none.

    Args:
        past: records that each had to process, the last one first.
    """
    last = past[:LATEST]
    if not last:
        return None
    mean = statistics.fmean(last)
    spread = 1.28 * statistics.stdev(last) / mean if len(last) > 1 and mean > 0 else 0.0
    return ExpectedWork(mean, max(spread, LONE_SPREAD))

"""The log of a background step that fails again and again: the first failure, then counts at growing intervals."""

from __future__ import annotations

import pytest
import structlog

from elasticdl_api.background.loops import BackgroundStep
from elasticdl_core.errors import UnavailableError

pytestmark = pytest.mark.unit


class Failing:
    """A step that fails as it is told to, on a clock of its own."""

    def __init__(self) -> None:
        self.now = 0.0
        self.error: Exception | None = None
        self.step = BackgroundStep("relay", self._work, lambda: self.now)

    async def _work(self) -> None:
        if self.error is not None:
            raise self.error

    async def take(self, times: int = 1) -> None:
        for _ in range(times):
            await self.step.take()
            self.now += 1.2


@pytest.mark.parametrize(
    ("error", "said"), [(UnavailableError("no agent", fix="wait"), "put off"), (KeyError("x"), "failed")]
)
async def test_a_step_that_fails_for_an_hour_is_told_seldom_with_a_count(error: Exception, said: str) -> None:
    failing = Failing()
    failing.error = error
    with structlog.testing.capture_logs() as lines:
        await failing.take(3000)
    assert {line["event"] for line in lines} == {"a step is put off" if said == "put off" else "a step failed"}
    counts = [line["failures"] for line in lines]
    assert counts[0] == 1
    assert 8 <= len(counts) <= 24, counts
    assert counts == sorted(counts) and counts[-1] > 2000
    assert counts[1] - counts[0] <= 10 < 200 < counts[-1] - counts[-2]


async def test_another_failure_and_a_recovery_are_told_at_once() -> None:
    failing = Failing()
    failing.error = UnavailableError("no agent", fix="wait")
    with structlog.testing.capture_logs() as lines:
        await failing.take(2)
        failing.error = UnavailableError("no database", fix="wait")
        await failing.take(2)
        failing.error = None
        await failing.take(2)
        failing.error = UnavailableError("no database", fix="wait")
        await failing.take(1)
    told = [(line["event"], line.get("error"), line["failures"]) for line in lines]
    assert told == [
        ("a step is put off", "no agent", 1),
        ("a step is put off", "no database", 1),
        ("a step went well again", None, 2),
        ("a step is put off", "no database", 1),
    ]

"""Changes are made one after the other, each to its end, until the process ends."""

from __future__ import annotations

import asyncio

import pytest

from elasticdl_master.changes import ChangeInbox

pytestmark = pytest.mark.unit


class Steps:
    """Changes of two steps each, the second of which waits until it is let go."""

    def __init__(self) -> None:
        self.made: list[str] = []
        self.go = asyncio.Event()

    async def make(self, name: str) -> str:
        self.made.append(f"{name} begins")
        await self.go.wait()
        self.made.append(f"{name} ends")
        if name == "bad":
            raise ValueError("a bad change")
        return name


async def settle() -> None:
    for _ in range(10):
        await asyncio.sleep(0)


async def test_each_is_made_to_its_end_before_the_next_whoever_goes_away() -> None:
    changes, steps = ChangeInbox(), Steps()
    callers = [asyncio.create_task(changes.make(steps.make(name))) for name in ("a", "bad", "c")]
    await settle()
    assert steps.made == ["a begins"]
    callers[0].cancel()
    callers[2].cancel()
    await settle()
    assert callers[0].cancelled()
    assert steps.made == ["a begins"]
    steps.go.set()
    with pytest.raises(ValueError, match="a bad change"):
        await callers[1]
    await settle()
    assert steps.made == ["a begins", "a ends", "bad begins", "bad ends", "c begins", "c ends"]
    assert await changes.make(steps.make("d")) == "d"


async def test_a_change_that_fails_is_logged_if_nobody_waits(capsys: pytest.CaptureFixture[str]) -> None:
    changes, steps = ChangeInbox(), Steps()
    caller = asyncio.create_task(changes.make(steps.make("bad")))
    await settle()
    caller.cancel()
    steps.go.set()
    await settle()
    assert "a bad change" in capsys.readouterr().out
    assert await changes.make(steps.make("next")) == "next"


@pytest.mark.parametrize("in_time", [True, False])
async def test_what_was_asked_for_ends_with_the_process_or_before(in_time: bool) -> None:
    changes, steps = ChangeInbox(), Steps()
    callers = [asyncio.create_task(changes.make(steps.make(name))) for name in ("a", "b")]
    await settle()
    closing = asyncio.create_task(changes.close(60.0 if in_time else 0.0))
    await settle()
    with pytest.raises(asyncio.CancelledError):
        await changes.make(steps.make("late"))
    if in_time:
        steps.go.set()
    await closing
    answers = await asyncio.gather(*callers, return_exceptions=True)
    if in_time:
        assert answers == ["a", "b"]
    else:
        assert [type(answer) for answer in answers] == [asyncio.CancelledError] * 2
        assert steps.made == ["a begins"]

"""What the api does not take of a heartbeat takes nothing else with it."""

from __future__ import annotations

from typing import Any

import pytest

from elasticdl_core.errors import FencedError, InvalidInputError
from elasticdl_core.series import NAME_CHARS, SeriesRecorder
from elasticdl_master.heartbeats import Heartbeats
from elasticdl_master.job_lease import DesiredState

pytestmark = pytest.mark.unit


class Api:
    """Refuses every heartbeat with something of some kinds; gathers the others."""

    def __init__(self, *refuses: str) -> None:
        self.refuses = refuses
        self.taken: dict[str, list[Any]] = {"status": [], "losses": [], "series": []}
        self.beats = 0

    async def heartbeat(self, status: Any, losses: Any, series: Any = ()) -> DesiredState:
        given = {"status": status, "losses": losses, "series": series}
        if "everything" in self.refuses:
            raise FencedError("a newer master took over")
        if any(given[kind] for kind in self.refuses):
            raise InvalidInputError("no", fix="")
        self.beats += 1
        for kind, part in given.items():
            self.taken[kind] += [part] if part else []
        return DesiredState("cancel", 3, {"losses": ["one is bad"]} if given["losses"] == ["bad"] else {})


class Events:
    """The outbox, as far as it goes here."""

    def __init__(self) -> None:
        self.told: list[str] = []

    def add_event(self, kind: str, message: str, detail: Any) -> None:
        self.told.append(f"{kind} {detail['of']}: {message}")


@pytest.mark.parametrize("kind", ["status", "losses", "series"])
async def test_a_part_that_is_refused_is_left_out_and_said_once(kind: str) -> None:
    api, events = Api(kind), Events()
    beats = Heartbeats(api, events)  # type: ignore[arg-type]  # all that is asked of them
    for _ in range(3):
        assert await beats.send({"s": 1}, ["loss"], ["row"]) == DesiredState("cancel", 3)  # type: ignore[list-item]
    assert [len(part) for name, part in api.taken.items() if name != kind] == [3, 3]
    assert not api.taken[kind]
    assert events.told == [f"report_refused {kind}: the api does not take some of the job's {kind}: no"]


async def test_what_the_api_left_out_is_said_and_a_fenced_master_hears_of_it() -> None:
    events = Events()
    await Heartbeats(Api(), events).send({}, ["bad"], [])  # type: ignore[arg-type,list-item]
    assert events.told == ["report_refused losses: the api does not take some of the job's losses: one is bad"]
    with pytest.raises(FencedError):
        await Heartbeats(Api("everything"), events).send({}, [], [])  # type: ignore[arg-type]


def test_names_of_series_are_as_long_as_the_api_takes_and_told_apart() -> None:
    recorder = SeriesRecorder()
    names = ["m" * NAME_CHARS, "m" * 500 + "a", "m" * 500 + "b"]
    recorder.record(1e9, dict.fromkeys(names, 1.0))
    found = [*recorder.take(everything=True)[0].numbers]
    assert (found[0], len(set(found))) == (names[0], 3)
    assert {len(name) for name in found} == {NAME_CHARS}

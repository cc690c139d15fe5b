"""What surviving members did of what they could have done, from the lines of their traces and their master's log."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.chaos.capacity import Generation, Update, capacity, read_generations, read_updates, thrown_away

pytestmark = pytest.mark.unit
BOTH, ONE = frozenset({"a", "b"}), frozenset({"a"})


def updates(*, first: int, at: float, count: int, apart: float = 1.0) -> list[Update]:
    return [Update(at + number * apart, first + number, 40) for number in range(count)]


def test_undisturbed_members_use_all_there_is() -> None:
    found = capacity(updates(first=1, at=1.0, count=11), [Generation(0.0, BOTH)])
    assert (found.share, found.had, found.usual) == (1.0, 20.0, {2: 1.0})


def test_what_a_survivor_waits_for_beyond_its_own_update_went_away() -> None:
    made = [*updates(first=1, at=1.0, count=11), *updates(first=12, at=14.0, count=11, apart=2.0)]
    found = capacity(made, [Generation(0.0, BOTH), Generation(12.5, ONE)])
    assert (found.had, found.lost, found.changes) == (20.0 + 3.0 + 20.0, 1.0, 1)
    assert found.share == pytest.approx(42 / 43)


def test_a_pause_while_a_fault_lasts_went_away_also_without_another_generation() -> None:
    made = [*updates(first=1, at=1.0, count=11), *updates(first=12, at=14.5, count=11)]
    found = capacity(made, [Generation(0.0, BOTH)], [(11.2, 13.7)])
    assert (found.lost, found.changes) == (2 * 2.5, 1)


def test_nobody_had_what_passed_while_nobody_lived_who_was_there_before() -> None:
    made = [*updates(first=1, at=1.0, count=7), *updates(first=3, at=99.0, count=7)]
    found = capacity(made, [Generation(0.0, BOTH), Generation(90.0, frozenset({"c"}))])
    assert (found.share, found.had) == (1.0, 12.0 + 6.0)


def test_generations_are_read_from_the_logs_of_masters(tmp_path: Path) -> None:
    def log(incarnation: int, *lines: str) -> None:
        path = tmp_path / "logs" / f"master-0.{incarnation}.log"
        path.parent.mkdir(exist_ok=True)
        path.write_text("".join(f"1970-01-01T00:0{line} event_kind=group job=j\n" for line in lines))

    log(
        1,
        "0:09.500000Z [info     ] generation 1048576: 1 member; joined: worker-1.0",
        "0:10.000000Z [info     ] generation 1048577: 3 members; joined: worker-0.0, worker-2.0",
        "1:00.000000Z [info     ] worker-1.0 ended",
        "1:01.000000Z [info     ] generation 1048578: 2 members; left: worker-1.0",
    )
    log(
        2,
        "2:00.000000Z [info     ] generation 2097152: 2 members; joined: worker-3.0; left: worker-0.0",
        "3:00.000000Z [info     ] generation 2097153: 1 member; joined: worker-4.0",
    )
    names = [(one.at, sorted(one.members)) for one in read_generations(tmp_path)]
    assert names == [
        (9.5, ["worker-1.0"]),
        (10.0, ["worker-0.0", "worker-1.0", "worker-2.0"]),
        (61.0, ["worker-0.0", "worker-2.0"]),
        (120.0, ["worker-2.0", "worker-3.0"]),
        (180.0, ["worker-4.0"]),
    ]


def test_updates_that_were_made_again_are_told(tmp_path: Path) -> None:
    def trace(member: str, *lines: tuple[str, int, float]) -> None:
        path = tmp_path / "traces" / f"{member}.jsonl"
        path.parent.mkdir(exist_ok=True)
        told = [{"token": token, "version": version, "at": at, "start": 0, "end": 20} for token, version, at in lines]
        path.write_text("".join(json.dumps(one) + "\n" for one in told))

    trace("worker-0.0.before", ("1.1.a", 1, 10.0))
    trace("worker-0.0", ("1.2.a", 2, 11.0))
    trace("worker-1.0", ("1.1.a", 1, 10.1), ("1.2.a", 2, 11.1))
    trace("worker-0.1", ("1.3.a", 2, 15.0))
    found = read_updates(tmp_path)
    assert found == [Update(10.0, 1, 40), Update(11.0, 2, 40), Update(15.0, 2, 20)]
    assert thrown_away(found) == 40

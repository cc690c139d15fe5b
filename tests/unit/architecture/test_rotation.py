"""Cases take turns by commit: the same commit has the same, none waits for more than five, slow suites have all."""

from __future__ import annotations

from types import SimpleNamespace

import pytest

from tests import rotation

pytestmark = pytest.mark.unit


class Item:
    """A case of a family, as the collection has it."""

    def __init__(self, place: int, *names: str) -> None:
        self.nodeid = f"tests/test_a.py::test_family[{place}]"
        self.path = SimpleNamespace(name="test_a.py")
        self.marks = {name: SimpleNamespace(kwargs={}) for name in names}

    def get_closest_marker(self, name: str) -> SimpleNamespace | None:
        return self.marks.get(name)

    def add_marker(self, marker: pytest.MarkDecorator) -> None:
        self.marks[marker.name] = SimpleNamespace(kwargs={})


def run_at(monkeypatch: pytest.MonkeyPatch, number: str, *, whole: bool = False) -> set[int]:
    """The places of the cases that run, of twelve that take turns."""
    monkeypatch.setenv(rotation.VARIABLE, number)
    items = [Item(place, "rotates") for place in range(12)]
    rotation.mark(items, whole)
    return {place for place, item in enumerate(items) if ("slow" in item.marks) is whole}


def test_each_case_has_its_turn_once_in_five_commits(monkeypatch: pytest.MonkeyPatch) -> None:
    turns = [run_at(monkeypatch, str(number)) for number in range(700, 705)]
    assert sorted(place for turn in turns for place in turn) == list(range(12))
    assert run_at(monkeypatch, "700") == turns[0] == run_at(monkeypatch, "705")


def test_slow_suites_run_all_and_none_leaves_all_out(monkeypatch: pytest.MonkeyPatch) -> None:
    assert run_at(monkeypatch, "3", whole=True) == set(range(12))
    assert run_at(monkeypatch, "none") == set()


def test_what_takes_no_turns_runs_always(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv(rotation.VARIABLE, "none")
    item = Item(0)
    rotation.mark([item], whole=True)
    assert item.marks == {}


@pytest.mark.parametrize(("cases", "most"), [(200, 6), (10, 3), (2, 5), (0, 5)])
def test_shares_are_small_and_come_to_all(monkeypatch: pytest.MonkeyPatch, cases: int, most: int) -> None:
    seen = []
    for number in range(-(-cases // most)):
        monkeypatch.setenv(rotation.VARIABLE, str(number))
        seen.append(rotation.share("name", range(cases), most))
    assert sorted(case for one in seen for case in one) == list(range(cases))
    assert all(len(one) <= most for one in seen)


def test_without_the_variable_the_commit_decides_for_all_processes(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv(rotation.VARIABLE)
    chosen = rotation.decide()
    assert chosen.isdigit()
    monkeypatch.setenv("PATH", "")  # no git: what was decided stays
    assert rotation.decide() == chosen


def test_a_tree_of_another_user_has_its_turns_too(monkeypatch: pytest.MonkeyPatch) -> None:
    """Git says nothing there by itself: the number would always be 0, and the other cases would never run."""
    mine = rotation._commits()
    monkeypatch.setenv("GIT_TEST_ASSUME_DIFFERENT_OWNER", "1")
    assert rotation._commits() == mine


def test_a_seed_gives_one_order_that_keeps_files_together() -> None:
    def order(seed: str) -> list[tuple[str, int]]:
        items = [SimpleNamespace(path=name, place=place) for name in "abcdef" for place in range(4)]
        rotation.shuffle(items, seed)  # type: ignore[arg-type]
        return [(item.path, item.place) for item in items]

    first = order("1")
    assert first == order("1") != order("2")
    files = [path for path, _ in first]
    assert sum(here != before for here, before in zip(files[1:], files, strict=False)) == 5

"""The book of reservations: what is granted, what is overdue, what is remembered."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl_agent.processes.reservations import Reservations
from elasticdl_core.errors import InvalidInputError

pytestmark = pytest.mark.unit


@pytest.fixture
def path(tmp_path: Path) -> Path:
    return tmp_path / "reservations.json"


@pytest.fixture
def book(path: Path) -> Reservations:
    return Reservations(path, slots=4)


def granted(book: Reservations) -> dict[str, int]:
    return {one.name: one.granted for one in book.all()}


def test_the_oldest_is_granted_first_and_keeps_what_it_has(book: Reservations) -> None:
    book.set("a", 2, 10.0, now=1.0, clock=0.0)
    book.set("b", 2, 10.0, now=2.0, clock=1.0)
    book.grant(3, now=3.0)
    assert granted(book) == {"a": 1, "b": 0}
    book.grant(1, now=4.0)
    assert granted(book) == {"a": 2, "b": 1}
    assert [one.granted_at for one in book.all()] == [4.0, None]
    book.grant(4, now=5.0)
    assert granted(book) == {"a": 2, "b": 1}


def test_what_cannot_be_kept_is_not_done(book: Reservations, path: Path) -> None:
    """Done all the same, it would be undone by the next agent, and nobody could ask for it again."""
    book.set("a", 2, 10.0, now=1.0, clock=0.0)
    before = book.all()
    path.unlink()
    (path / "in the way").mkdir(parents=True)
    for change in (
        lambda: book.set("a", 1, 10.0, now=2.0, clock=1.0),
        lambda: book.set("b", 1, 10.0, now=2.0, clock=1.0),
        lambda: book.release("a"),
    ):
        with pytest.raises(OSError):
            change()
        assert book.all() == before


def test_only_what_is_missing_after_the_grace_is_overdue(book: Reservations) -> None:
    book.set("a", 3, 10.0, now=0.0, clock=100.0)
    book.grant(2, now=0.0)
    assert (book.overdue(109.9), book.overdue(110.0)) == (0, 1)
    book.grant(1, now=1.0)
    assert book.overdue(200.0) == 0


def test_what_is_released_or_lowered_is_not_overdue(book: Reservations) -> None:
    book.set("a", 3, 10.0, now=0.0, clock=0.0)
    book.set("b", 1, 10.0, now=0.0, clock=0.0)
    book.grant(4, now=0.0)
    assert book.overdue(10.0) == 4
    assert book.release("a") and not book.release("a")
    book.set("b", 0, 10.0, now=1.0, clock=1.0)
    book.grant(4, now=1.0)
    assert book.overdue(10.0) == 0


def test_growing_starts_a_new_grace_and_asking_again_does_not(book: Reservations) -> None:
    book.set("a", 1, 10.0, now=0.0, clock=0.0)
    book.grant(4, now=0.0)
    book.set("a", 1, 10.0, now=5.0, clock=5.0)
    assert book.overdue(10.0) == 1
    book.set("a", 2, 10.0, now=8.0, clock=8.0)
    assert (book.overdue(10.0), book.overdue(18.0)) == (0, 2)


def test_headroom_and_wishes_are_withheld_from_workers(path: Path) -> None:
    book = Reservations(path, slots=4, headroom=1)
    assert book.withheld == 1
    book.set("a", 1, 1.0, now=0.0, clock=0.0)
    assert book.withheld == 1
    book.set("a", 4, 1.0, now=0.0, clock=0.0)
    assert book.withheld == 4
    with pytest.raises(InvalidInputError, match="headroom"):
        Reservations(path, slots=4, headroom=4)


def test_a_smaller_machine_cuts_what_it_remembers(book: Reservations, path: Path) -> None:
    book.set("a", 3, 1.0, now=0.0, clock=0.0)
    book.set("b", 1, 1.0, now=0.0, clock=0.0)
    assert [one.slots for one in Reservations(path, slots=2).all()] == [2, 0]


@pytest.mark.parametrize("text", ["", "[]", '{"a": 1}', '{"a": {"slots": "x"}}'])
def test_a_damaged_file_is_forgotten(path: Path, text: str) -> None:
    path.write_text(text)
    assert Reservations(path, slots=2).all() == []


@pytest.mark.parametrize(("name", "slots", "grace"), [("A", 1, 1.0), ("a", 5, 1.0), ("a", -1, 1.0), ("a", 1, 601.0)])
def test_what_cannot_be_is_refused(book: Reservations, name: str, slots: int, grace: float) -> None:
    with pytest.raises(InvalidInputError):
        book.set(name, slots, grace, now=0.0, clock=0.0)

"""``elasticdl reserve``: slots for processes that are not the cluster's."""

from __future__ import annotations

import json

import pytest

from tests.fakes.api import FakeApi
from tests.unit.cli.conftest import Cli

pytestmark = pytest.mark.unit


def test_slots_are_reserved_and_what_is_granted_is_told(api: FakeApi, cli: Cli) -> None:
    outcome = cli("reserve", "shop", "--slots", "2", "--grace", "5")
    assert (outcome.code, outcome.out) == (0, "0 of 2 slots are granted to shop.\n")
    assert api.requests("PUT", "/cluster/reservations/shop")[0].json() == {"slots": 2, "grace_s": 5.0}


def test_waiting_ends_when_all_is_granted(api: FakeApi, cli: Cli) -> None:
    outcome = cli("reserve", "shop", "--slots", "2", "--wait", "30", "--json")
    assert outcome.code == 0 and json.loads(outcome.out)["granted"] == 2


def test_waiting_that_ends_too_early_has_a_code_of_its_own(api: FakeApi, cli: Cli) -> None:
    api.granting = 0
    outcome = cli("reserve", "shop", "--slots", "2", "--wait", "0.3")
    assert (outcome.code, outcome.out) == (4, "0 of 2 slots are granted to shop.\n")


def test_reservations_are_listed_and_released(api: FakeApi, cli: Cli) -> None:
    assert "Nothing is reserved." in cli("reserve").out
    cli("reserve", "shop", "--slots", "3")
    shown = cli("reserve").out
    assert "shop" in shown and "1 of 4 slots are for jobs" in shown
    assert cli("reserve", "shop", "--release").code == 0
    assert api.reserved == {}
    again = cli("reserve", "shop", "--release")
    assert again.code != 0 and "no slots are reserved for 'shop'" in again.err


@pytest.mark.parametrize(
    "words",
    [
        ("reserve", "shop"),
        ("reserve", "shop", "--slots", "1", "--release"),
        ("reserve", "--slots", "1"),
        ("reserve", "--release"),
        ("reserve", "shop", "--release", "--wait", "3"),
    ],
)
def test_what_is_not_clear_is_refused(api: FakeApi, cli: Cli, words: tuple[str, ...]) -> None:
    outcome = cli(*words)
    assert outcome.code == 2 and "fix:" in outcome.err
    assert api.requests("PUT") == []

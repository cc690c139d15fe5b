"""The scheduler service's settings."""

from __future__ import annotations

import pytest

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.scheduling import Quota, Resources
from elasticdl_runtime.database.engine import Database
from elasticdl_scheduler.settings import SchedulerSettings, parse_quotas

pytestmark = pytest.mark.unit

NEEDED = {"ELASTICDL_DATABASE_URL": "postgresql://x", "ELASTICDL_AGENT": "unix:/a", "ELASTICDL_NODE_TOKEN": "t"}


def read(**more: str) -> SchedulerSettings:
    return SchedulerSettings.read(NEEDED | more)


def test_defaults_and_quotas() -> None:
    assert read().policy == "goodput"
    assert read().interval_s == 5.0
    quotas = read(ELASTICDL_SCHEDULER_QUOTAS='{"ads": {"weight": 2, "limit": 8}}').quotas
    assert quotas == {"ads": Quota(2.0, None, Resources(slots=8.0))}


def test_a_guarantee_above_the_limit_is_refused() -> None:
    with pytest.raises(InvalidInputError, match="team 'ads' is guaranteed 8 slots and limited to 4"):
        parse_quotas('{"ads": {"guaranteed": 8, "limit": 4}}')
    parse_quotas('{"ads": {"guaranteed": 4, "limit": 4}, "shop": {"guaranteed": 9}}')


@pytest.mark.parametrize(
    "text", ["[", "[]", '{"a": 3}', '{"a": {"wieght": 2}}', '{"a": {"limit": 0}}', '{"a": {"limit": true}}']
)
def test_quotas_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="ELASTICDL_SCHEDULER_QUOTAS"):
        parse_quotas(text)


def test_numbers_of_the_policy_reach_it() -> None:
    given = read(ELASTICDL_SCHEDULER_GOODPUT='{"cooldown_s": 2.5, "first_size": 8}')
    assert (given.goodput.cooldown_s, given.goodput.first_size) == (2.5, 8)
    assert given.goodput.horizon_s == read().goodput.horizon_s
    assert (given.make_policy().name, read(ELASTICDL_SCHEDULER_POLICY="gang").make_policy().name) == (
        "goodput",
        "gang",
    )


@pytest.mark.parametrize(
    "text", ["{", "[]", '{"cool": 1}', '{"cooldown_s": "1"}', '{"first_size": 1.5}', '{"caution": -1}']
)
def test_numbers_that_make_no_sense_are_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="ELASTICDL_SCHEDULER_GOODPUT"):
        read(ELASTICDL_SCHEDULER_GOODPUT=text)


def test_other_nonsense_is_refused_by_name() -> None:
    with pytest.raises(InvalidInputError, match="'best'"):
        read(ELASTICDL_SCHEDULER_POLICY="best")
    with pytest.raises(InvalidInputError, match="ELASTICDL_SCHEDULER_INTERVAL_S=0"):
        read(ELASTICDL_SCHEDULER_INTERVAL_S="0")
    with pytest.raises(InvalidInputError, match="ELASTICDL_NODE_TOKEN"):
        SchedulerSettings.read({key: value for key, value in NEEDED.items() if key != "ELASTICDL_NODE_TOKEN"})
    with pytest.raises(InvalidInputError, match="not one of Postgres"):
        Database("sqlite:///x")

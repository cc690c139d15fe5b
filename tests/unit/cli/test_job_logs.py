"""``jobs logs``: of one process or all, and of that what a pattern finds."""

from __future__ import annotations

from datetime import UTC, datetime, timedelta, timezone

import pytest

from elasticdl.cli.job_logs import moment_of
from tests.fakes.api import FakeApi, make_job, make_status
from tests.unit.cli.conftest import Cli

pytestmark = pytest.mark.unit


@pytest.fixture
def job(api: FakeApi) -> FakeApi:
    """A job of a master, a silent PS, and workers of which one has gone."""
    status = make_status(1, 2, ps=[{"index": 0}], workers=[{"index": 1}])
    api.jobs["a-1"] = make_job("a-1", status=status)
    api.process_logs["a-1"] = {
        ("master", 0): "begun\n",
        ("worker", 0): "gone\nloss 0.5\n",
        ("worker", 1): "loss 0.25\n\x1b[2Jevil\n",
    }
    return api


def test_all_processes_are_printed_one_after_the_other_with_their_names(job: FakeApi, cli: Cli) -> None:
    assert cli("jobs", "logs", "a-1", "--all").out.splitlines() == [
        "master-0 | begun",
        "worker-0 | gone",
        "worker-0 | loss 0.5",
        "worker-1 | loss 0.25",
        "worker-1 | \\x1b[2Jevil",
    ]
    assert cli("jobs", "logs", "a-1", "--all", "--role=worker", "--tail=1").out.splitlines() == [
        "worker-0 | loss 0.5",
        "worker-1 | \\x1b[2Jevil",
    ]
    assert "\x1b[2Jevil" in cli("jobs", "logs", "a-1", "--all", "--raw").out


def test_a_pattern_chooses_lines(job: FakeApi, cli: Cli) -> None:
    assert cli("jobs", "logs", "a-1", "--all", "--grep", r"loss 0\.\d").out.splitlines() == [
        "worker-0 | loss 0.5",
        "worker-1 | loss 0.25",
    ]
    assert cli("jobs", "logs", "a-1", "--index", "1", "--grep=loss").out == "loss 0.25\n"
    assert cli("jobs", "logs", "a-1", "--index", "1", "--grep=loss", "--follow").out == "loss 0.25\n"


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--grep=(",), "is no regular expression"),
        (("--all", "--follow"), "do not go together"),
        (("--all", "--index=1"), "do not go together"),
        (("--since=yesterday",), "is no time"),
        (("--since=10",), "is no time"),
        (("--since=0001-01-01T00:00",), "is no time"),
        (("--since=9999-12-31T23:59Z",), "lies in the future"),
        (("--since=999999999d",), "is no time"),
    ],
)
def test_what_makes_no_sense_is_refused(job: FakeApi, cli: Cli, words: tuple[str, ...], said: str) -> None:
    outcome = cli("jobs", "logs", "a-1", *words)
    assert (outcome.code, said in outcome.err) == (2, True)


@pytest.mark.parametrize("more", [(), ("--all",), ("--follow",), ("--tail=3",)])
def test_a_time_is_asked_of_the_api(job: FakeApi, cli: Cli, more: tuple[str, ...]) -> None:
    assert cli("jobs", "logs", "a-1", "--since=2026-01-31T09:30+02:00", *more).code == 0
    asked = {seen.query.get("since") for seen in job.requests("GET", "/jobs/a-1/logs")}
    assert asked == {"2026-01-31T07:30:00+00:00"}


@pytest.mark.parametrize(
    ("text", "before"),
    [("30s", timedelta(seconds=30)), ("10m", timedelta(minutes=10)), ("2h", timedelta(hours=2)), ("0s", timedelta())],
)
def test_a_duration_counts_from_now(text: str, before: timedelta) -> None:
    now = datetime(2026, 1, 31, 9, 30, tzinfo=UTC)
    assert moment_of(text, now) == now - before
    assert moment_of("2026-01-31T09:00Z", now.astimezone(timezone(timedelta(hours=5)))) == now - timedelta(minutes=30)

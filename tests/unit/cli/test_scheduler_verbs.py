"""``elasticdl explain``, ``what-if`` and ``top`` against a fake API."""

from __future__ import annotations

import contextlib
import io
import json
import os
import pty
import signal
import subprocess
import sys
from typing import Any

import pytest
from rich.console import Console

from elasticdl.cli.scheduling_views import cluster
from tests.fakes.api import NOW, TOKEN, FakeApi, make_job
from tests.unit.cli.conftest import Cli

pytestmark = pytest.mark.unit
EXPECTED = {
    "starts_at": None,
    "ends_at": "2099-01-02T03:14:05+00:00",
    "seconds": 600.0,
    "seconds_low": 500.0,
    "seconds_high": 720.0,
    "basis": "measured",
    "why_unknown": "",
}
WORKERS = {"present": 1, "target": 1, "min": 1, "max": 4}
REASON = {"code": "cluster_full", "text": "it has 1 of at most 4 workers", "data": {}}


def make_explanation(**changes: Any) -> dict[str, Any]:
    found: dict[str, Any] = {
        "job_id": "digits-1",
        "state": "RUNNING",
        "desired": "run",
        "priority": 0,
        "workers": WORKERS,
        "reason": REASON,
        "blockers": [
            {
                "job_id": "wide-2",
                "priority": 3,
                "workers": 3,
                "min_workers": 1,
                "ends_at": "2099-01-02T03:14:05+00:00",
            }
        ],
        "hidden_blockers": {"jobs": 1, "workers": 2},
        "next": {"code": "at_max", "text": "it has 4 workers, the most that it can use", "data": {"workers": 4}},
        "remedies": [
            {
                "text": "with priority 4: it would have 2 workers instead of 1",
                "workers": 2,
                "change": {"priorities": {"digits-1": 4}},
                "command": "elasticdl jobs scale digits-1 --priority 4",
            }
        ],
        "slots": {"total": 4, "used": 4, "free": 0, "leaving": 0},
        "quota": {"team": "default", "used": 1.0, "weight": 2.0, "guaranteed": None, "limit": 3.0},
        "remaining_records": 4000.0,
        "speed": [
            {"workers": 1, "records_per_second": 100.0, "relative": 1.0, "basis": "measured"},
            {"workers": 2, "records_per_second": 190.0, "relative": 1.9, "basis": "estimated"},
        ],
        "expected": EXPECTED,
        "decisions": [
            {
                "sequence": 7,
                "at": NOW,
                "job_id": "digits-1",
                "before": 2,
                "after": 1,
                "code": "cluster_full",
                "text": "it makes room",
                "blockers": [],
            }
        ],
    }
    return {**found, **changes}


def make_plan(**changes: Any) -> dict[str, Any]:
    job = {
        "job_id": "digits-1",
        "name": "digits",
        "namespace": "default",
        "state": "RUNNING",
        "priority": 0,
        "workers": WORKERS,
        "reason": REASON,
        "blockers": [],
        "records_per_second": 1234.0,
        "progress": 0.25,
        "expected": EXPECTED,
    }
    plan = {
        "alive": True,
        "policy": "goodput",
        "epoch": 3,
        "sequence": 41,
        "input_hash": "0f",
        "decided_at": NOW,
        "age_s": 1.5,
        "seconds": 0.01,
        "passes": 100,
        "slots": {"total": 4, "used": 3, "free": 1, "leaving": 0},
        "nodes": [{"name": "local", "slots": 4.0}],
        "others": {"jobs": 1, "workers": 2},
        "jobs": [job],
    }
    return {**plan, **changes}


def test_explain_tells_reason_blockers_help_and_end(cli: Cli, api: FakeApi) -> None:
    api.jobs["digits-1"] = make_job("digits-1")
    api.explanations["digits-1"] = make_explanation()
    shown = cli("explain", "digits-1")
    assert shown.code == 0
    for words in (
        "1 present, 1 granted, 1-4 wanted",
        "cluster_full: it has 1 of at most 4 workers",
        "wide-2: 3 workers (minimum 1), priority 3, expected to end in",
        "1 job of other namespaces: 2 workers",
        "at_max: it has 4 workers",
        "with priority 4: it would have 2 workers instead of 1",
        "elasticdl jobs scale digits-1 --priority 4",
        "team default uses 1 slot, weight 2, limit 3",
        "ends in 0:10:00 (0:08:20 to 0:12:00), speed measured",
        "1.90x",
        "2 -> 1  it makes room",
    ):
        assert words in shown.out, words
    assert json.loads(cli("explain", "digits-1", "--json").out)["reason"] == REASON
    missing = cli("explain", "nobody")
    assert missing.code == 1
    assert "there is no job 'nobody'" in missing.err


def test_explain_says_when_it_knows_little(cli: Cli, api: FakeApi) -> None:
    api.jobs["digits-1"] = make_job("digits-1")
    unknown = {"ends_at": None, "seconds": None, "seconds_low": None, "seconds_high": None, "basis": "assumed"}
    api.explanations["digits-1"] = make_explanation(
        state="QUEUED",
        blockers=[],
        hidden_blockers={"jobs": 0, "workers": 0},
        next=None,
        remedies=[],
        quota=None,
        decisions=[],
        speed=[{"workers": 1, "records_per_second": None, "relative": 1.0, "basis": "assumed"}],
        expected={**EXPECTED, **unknown, "why_unknown": "its records are not counted yet"},
    )
    shown = cli("explain", "digits-1").out
    assert "its end is not known: its records are not counted yet" in shown
    assert "not measured yet, and no similar job ended before" in shown
    assert "held by" not in shown
    over = make_explanation(state="SUCCEEDED", speed=[], blockers=[], remedies=[], next=None)
    api.explanations["digits-1"] = over
    assert "it is over" in cli("explain", "digits-1").out


COURSE = {"workers": 2, "starts_at": "2026-01-02T03:04:00+00:00", "ends_at": "2026-01-02T03:14:05+00:00"}


def make_comparison() -> dict[str, Any]:
    later = {**COURSE, "workers": 1, "ends_at": "2026-01-02T03:24:05+00:00", "reason": REASON}
    new = {**COURSE, "starts_at": "2026-01-02T03:05:05+00:00", "ends_at": None, "reason": REASON}
    return {
        "policy": "goodput",
        "at": NOW,
        "slots_before": 4,
        "slots_after": 6,
        "jobs": [
            {
                "job_id": "what-if:new",
                "hypothetical": True,
                "priority": 5,
                "before": None,
                "after": new,
                "delay_s": None,
            },
            {
                "job_id": "digits-1",
                "hypothetical": False,
                "priority": 0,
                "before": {**COURSE, "reason": REASON},
                "after": later,
                "delay_s": 600.0,
            },
        ],
        "others": {"jobs": 2, "sooner": 0, "later": 1, "workers_before": 3, "workers_after": 2},
    }


def test_what_if_asks_and_compares(cli: Cli, api: FakeApi) -> None:
    api.comparison = make_comparison()
    api.jobs |= {job_id: make_job(job_id) for job_id in ("digits-1", "a-1", "b-2", "c-3")}
    arguments = ("--workers", "1:4", "--priority", "5", "--records", "60000", "--like", "digits-1", "--slots", "+2")
    shown = cli("what-if", *arguments)
    assert shown.code == 0, shown.err
    (asked,) = api.requests("POST", "/scheduler/what-if")
    assert asked.json() == {
        "add": [
            {"name": "new", "min_workers": 1, "max_workers": 4, "priority": 5, "records": 60000, "like": "digits-1"}
        ],
        "add_slots": 2,
    }
    for words in ("4 slots -> 6", "- -> 2", "- -> 0:01:00", "0:10:00 -> 0:20:00", "+0:10:00", "runs -> runs"):
        assert words in shown.out, words
    assert "2 jobs of other namespaces: workers 3 -> 2; 0 end sooner, 1 later" in shown.out
    more = ("--cancel", "a-1", "--cancel", "b-2", "--priority", "c-3=-4", "--workers", "c-3=2", "--slots", "0")
    assert json.loads(cli("what-if", *more, "--json").out) == api.comparison
    assert api.requests("POST", "/scheduler/what-if")[1].json() == {
        "cancel": ["a-1", "b-2"],
        "priorities": {"c-3": -4},
        "sizes": {"c-3": {"min_workers": 2, "max_workers": 2}},
        "slots": 0,
    }


@pytest.mark.parametrize(
    ("arguments", "said"),
    [
        (("--workers", "4:1"), "there is no such range"),
        (("--workers", "x"), "'x' is not a whole number"),
        (("--priority", "5"), "--priority 5 is of a new job, and there is none"),
        (("--slots", "+x"), "is not a whole number"),
        (("--records", "5", "--slots", "3"), "--records describes a new job"),
        (("--speed", "5", "--cancel", "a"), "--speed describes a new job"),
        (("--json",), "there is no change to try"),
    ],
)
def test_what_if_refuses_what_makes_no_sense(cli: Cli, api: FakeApi, arguments: tuple[str, ...], said: str) -> None:
    refused = cli("what-if", *arguments)
    assert refused.code == 2
    assert said in refused.err
    assert "fix:" in refused.err
    assert api.requests("POST", "/scheduler") == []


def test_top_once(cli: Cli, api: FakeApi) -> None:
    api.plans = [make_plan()]
    shown = cli("top", "--once")
    assert shown.code == 0
    for words in (
        "3/4",
        "goodput",
        "plan 41, looked 2 s ago",
        "digits-1",
        "1/1",
        "1-4",
        "1,234",
        "25%",
        "cluster_full",
    ):
        assert words in shown.out, words
    assert "0:10:00 +0:02:00" in shown.out
    assert "no scheduler leads" not in shown.out
    assert json.loads(cli("top", "--json").out) == make_plan()
    api.plans = [make_plan(alive=False, jobs=[], age_s=None)]
    asleep = cli("top", "--once").out
    assert "no scheduler leads" in asleep
    assert "no jobs" in asleep


def test_top_gives_reasons_lines_of_their_own_where_the_terminal_is_narrow() -> None:
    reason = {
        "code": "cluster_full",
        "text": "it has 1 of at most 4 workers; " + "1 more would speed it up by 90%, " * 2,
    }
    job = make_plan()["jobs"][0]
    shown = make_plan(jobs=[{**job, "job_id": "a-very-long-name-of-a-job-x7k2p9", "reason": reason}, job])

    def drawn(width: int) -> list[str]:
        console = Console(width=width, file=io.StringIO(), color_system=None, legacy_windows=False)
        with console.capture() as capture:
            console.print(cluster(shown))
        return [line.rstrip() for line in capture.get().splitlines()]

    assert drawn(80)[2:] == [
        "JOB             STATE    PRIO  WORKERS  RANGE  RECORDS/S  DONE  ENDS IN",
        "a-very-long-n…  RUNNING  0     1/1      1-4    1,234      25%   0:10:00 +0:02:00",
        "  cluster_full it has 1 of at most 4 workers; 1 more would speed it up by 90%, 1",
        "  more would speed it up by 90%,",
        "digits-1        RUNNING  0     1/1      1-4    1,234      25%   0:10:00 +0:02:00",
        "  cluster_full it has 1 of at most 4 workers",
    ]
    assert drawn(60)[2:4] == [
        "JOB                 STATE    WORKERS  DONE  ENDS IN",
        "a-very-long-name-…  RUNNING  1/1      25%   0:10:00 +0:02:00",
    ]
    assert "WHY" in drawn(130)[2]


def test_top_without_a_terminal_says_what_to_give(cli: Cli, api: FakeApi) -> None:
    api.plans = [make_plan()]
    refused = cli("top")
    assert refused.code == 2
    assert "--once" in refused.err


def test_top_renews_itself_on_a_terminal_until_ctrl_c(api: FakeApi) -> None:
    api.plans = [make_plan(policy="first-look"), make_plan(policy="second-look")]
    outer, inner = pty.openpty()
    environment = {
        **os.environ,
        "ELASTICDL_API_URL": api.url,
        "ELASTICDL_TOKEN": TOKEN,
        "COLUMNS": "200",
        "LINES": "40",
    }
    environment["TERM"] = "xterm"
    process = subprocess.Popen(
        [sys.executable, "-m", "elasticdl", "top", "--interval", "0.5"],
        stdin=inner,
        stdout=inner,
        stderr=inner,
        env=environment,
        # Tests that run in the background of a shell ignore SIGINT, and so would their children.
        preexec_fn=lambda: signal.signal(signal.SIGINT, signal.SIG_DFL),
    )
    os.close(inner)
    seen = b""
    try:
        while b"second-look" not in seen:
            seen += os.read(outer, 65536)
        process.send_signal(signal.SIGINT)
        # A terminal that nobody reads keeps a program from ending; Linux says EIO when it is the last to go.
        with contextlib.suppress(OSError):
            while os.read(outer, 65536):
                pass
        assert process.wait(timeout=30) == 0
    finally:
        process.kill()
        process.wait(timeout=30)
        os.close(outer)
    assert seen.index(b"first-look") < seen.index(b"second-look")

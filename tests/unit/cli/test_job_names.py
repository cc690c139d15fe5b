"""Jobs by id, name, beginning of an id or ``last``; waiting for them; formats; completion in shells."""

from __future__ import annotations

import json
import os
import socket
import subprocess
import sys

import pytest
import yaml

from elasticdl.client import Client
from tests.fakes.api import TOKEN, FakeApi, Fault, make_job, make_status
from tests.unit.cli.conftest import Cli

pytestmark = pytest.mark.unit


@pytest.fixture
def jobs(api: FakeApi) -> FakeApi:
    """Three jobs, the newest first; two have one name."""
    for job_id in ("digits-x7k2p9", "digits-b3c4d5", "wide-q1w2e3"):
        api.jobs[job_id] = make_job(job_id, state="RUNNING")
    return api


@pytest.mark.parametrize(
    ("given", "meant"),
    [
        ("digits-b3c4d5", "digits-b3c4d5"),
        ("last", "digits-x7k2p9"),
        ("wide", "wide-q1w2e3"),
        ("wide-q1", "wide-q1w2e3"),
        ("digits-b", "digits-b3c4d5"),
        ("w", "wide-q1w2e3"),
    ],
)
def test_every_verb_takes_a_job_as_people_name_it(jobs: FakeApi, cli: Cli, given: str, meant: str) -> None:
    assert json.loads(cli("jobs", "get", given, "--json").out)["id"] == meant
    jobs.logs[meant] = "said\n"
    assert cli("jobs", "logs", given).out == "said\n"
    assert cli("jobs", "scale", given, "--priority=1").out.startswith(meant)
    for verb in ("events", "metrics", "artifacts"):
        assert cli("jobs", verb, given).code == 0
        assert jobs.seen[-1].path.startswith(f"/jobs/{meant}/")
    assert cli("jobs", "suspend", given).out == f"{meant}  SUSPENDED\n"
    assert cli("jobs", "cancel", given).out == f"{meant}  CANCELLED\n"
    assert cli("jobs", "delete", given, "--yes").out == f"{meant}  deleted\n"


def test_what_could_be_several_jobs_is_refused_with_all_of_them(jobs: FakeApi, cli: Cli) -> None:
    for given in ("digits", "digits-"):
        outcome = cli("jobs", "cancel", "wide", given)
        assert outcome.code == 1
        assert "digits-x7k2p9 (RUNNING, " in outcome.err and "digits-b3c4d5 (RUNNING, " in outcome.err
        assert jobs.requests("POST") == []
        assert cli("jobs", "delete", given, "--yes").code == 1


def test_a_name_that_several_have_means_the_newest_and_says_so(jobs: FakeApi, cli: Cli) -> None:
    outcome = cli("jobs", "get", "digits", "--json")
    assert json.loads(outcome.out)["id"] == "digits-x7k2p9"
    assert outcome.err == "'digits' is the name of 2 jobs: the newest is meant, digits-x7k2p9\n"
    assert cli("jobs", "scale", "digits", "--priority=1").out.startswith("digits-x7k2p9")
    assert cli("jobs", "get", "digits-").code == 1, "the beginning of an id is no name"


def test_a_job_that_there_is_not_is_told_with_the_ways_to_name_one(jobs: FakeApi, cli: Cli) -> None:
    outcome = cli("jobs", "get", "nobody")
    assert outcome.code == 1
    assert "there is no job 'nobody'" in outcome.err and "`last` for the newest" in outcome.err
    jobs.jobs.clear()
    assert "there is no job yet" in cli("jobs", "get", "last").err


def test_an_id_is_asked_for_once(jobs: FakeApi, cli: Cli) -> None:
    cli("jobs", "get", "wide-q1w2e3")
    assert [seen.path for seen in jobs.seen] == ["/jobs/wide-q1w2e3"]


@pytest.mark.parametrize(("state", "code"), [("SUCCEEDED", 0), ("FAILED", 1), ("CANCELLED", 3)])
def test_waiting_ends_with_how_the_job_ended(jobs: FakeApi, cli: Cli, state: str, code: int) -> None:
    jobs.jobs["wide-q1w2e3"]["state"] = state
    outcome = cli("jobs", "wait", "wide")
    assert (outcome.code, outcome.out) == (code, f"wide-q1w2e3  {state}\n")


def test_waiting_for_a_state_ends_when_it_comes_and_when_it_cannot_come_any_more(jobs: FakeApi, cli: Cli) -> None:
    assert cli("jobs", "wait", "last", "wide", "--for", "STARTING", "--for", "RUNNING").code == 0
    jobs.jobs["wide-q1w2e3"]["state"] = "SUCCEEDED"
    outcome = cli("jobs", "wait", "wide", "--for=RUNNING")
    assert (outcome.code, outcome.out) == (1, "wide-q1w2e3  SUCCEEDED\n")
    assert cli("jobs", "wait", "wide", "--for=SUCCEEDED").code == 0


def test_waiting_ends_with_its_time(jobs: FakeApi, cli: Cli) -> None:
    outcome = cli("jobs", "wait", "wide", "--timeout", "0")
    assert outcome.code == 5
    assert "job wide-q1w2e3 is still RUNNING" in outcome.err


def test_waiting_has_patience_with_an_api_that_is_away(
    jobs: FakeApi, cli: Cli, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticdl.client.retry.RetryPolicy.pause", lambda *_: None)
    clock = [0.0]
    with Client() as client:
        client._api.now = lambda: clock[0]
        client._api.sleep = lambda seconds: clock.__setitem__(0, clock[0] + seconds)
        jobs.jobs["wide-q1w2e3"]["state"] = "SUCCEEDED"
        jobs.faults.append(Fault("GET", "/jobs/wide-q1w2e3", times=500))
        assert client.wait("wide-q1w2e3").state == "SUCCEEDED"
        assert 499 < clock[0] < 501
        jobs.faults.append(Fault("GET", "/jobs/wide-q1w2e3", times=500))
        with pytest.raises(Exception, match="the fake is told to fail"):
            client.wait("wide-q1w2e3", patience_s=30)
        assert len([one for one in jobs.faults if one.times > 400]) == 1
    jobs.faults.clear()
    jobs.faults.append(Fault("GET", "/jobs/wide-q1w2e3", times=2))
    assert cli("jobs", "wait", "wide-q1w2e3").code == 4  # the first look has none: nothing answers there


def test_a_listing_has_four_formats(jobs: FakeApi, cli: Cli) -> None:
    jobs.jobs["wide-q1w2e3"] = make_job(
        "wide-q1w2e3", state="RUNNING", status=make_status(1, 2), owner="ann", reason="größer\u202e", spec={}
    )
    whole = json.loads(cli("jobs", "list", "--json").out)
    assert json.loads(cli("jobs", "list", "-o", "json").out) == whole
    text = cli("jobs", "list", "-o", "yaml").out
    assert yaml.safe_load(text) == whole
    assert "\u202e" not in text
    header, *rows = cli("jobs", "list", "-o", "wide").out.splitlines()
    assert {"OWNER", "NAMESPACE", "LOSS", "RANGE"} <= set(header.split())
    assert "ann" in rows[2] and "1-3" in rows[2]
    assert cli("jobs", "list", "-o", "table").out == cli("jobs", "list").out
    for words in (("get", "wide"), ("metrics", "wide"), ("artifacts", "wide")):
        assert yaml.safe_load(cli("jobs", *words, "-o", "yaml").out) == json.loads(cli("jobs", *words, "--json").out)
    outcome = cli("jobs", "list", "--json", "-o", "yaml")
    assert (outcome.code, "do not go together" in outcome.err) == (2, True)
    assert cli("jobs", "list", "-o", "xml").code == 2


def asked_by_bash(*words: str) -> dict[str, str]:
    """The variables by which bash asks what to offer for the last word."""
    return {
        "_ELASTICDL_COMPLETE": "complete_bash",
        "COMP_WORDS": " ".join(words),
        "COMP_CWORD": str(len(words) - 1),
    }


@pytest.mark.parametrize(
    ("words", "offered"),
    [
        (("jobs", "get", "w"), ["wide-q1w2e3", "wide"]),
        (("jobs", "get", "d"), ["digits-x7k2p9", "digits-b3c4d5"]),
        (("jobs", "cancel", "la"), []),
    ],
)
def test_a_shell_completes_ids_and_names_that_mean_one_job(
    jobs: FakeApi, cli: Cli, monkeypatch: pytest.MonkeyPatch, words: tuple[str, ...], offered: list[str]
) -> None:
    # How long a shell waits is no matter here, and a busy machine is slow.
    monkeypatch.setattr("elasticdl.cli.job_names.COMPLETE_WITHIN_S", 60.0)
    for name, value in asked_by_bash("elasticdl", *words).items():
        monkeypatch.setenv(name, value)
    assert cli().out.split() == offered


def test_completion_is_silent_and_short_when_the_api_is_away_or_hangs() -> None:
    kept = {name: value for name, value in os.environ.items() if not name.startswith("ELASTICDL_")}
    with socket.socket() as silent:
        silent.bind(("127.0.0.1", 0))
        silent.listen()
        for port in (silent.getsockname()[1], 1):
            at = {"ELASTICDL_API_URL": f"http://127.0.0.1:{port}", "ELASTICDL_TOKEN": TOKEN}
            done = subprocess.run(
                [sys.executable, "-P", "-m", "elasticdl"],
                env={**kept, **asked_by_bash("elasticdl", "jobs", "get", "w"), **at},
                capture_output=True,
                text=True,
                timeout=60,
                check=False,
            )
            assert (done.stdout.strip(), done.stderr) == ("", "")

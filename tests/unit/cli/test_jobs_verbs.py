"""``elasticdl jobs``: what each verb asks and prints."""

from __future__ import annotations

import hashlib
import io
import json
from pathlib import Path

import pytest

from elasticdl.cli.metrics_csv import write_metrics
from tests.fakes.api import NOW, FakeApi, make_job, make_status, sse
from tests.unit.cli.conftest import Cli

pytestmark = pytest.mark.unit


def test_a_list_is_a_table_or_json(api: FakeApi, cli: Cli) -> None:
    assert cli("jobs", "list").out == "no jobs\n"
    api.jobs["digits-1"] = make_job(
        "digits-1", state="RUNNING", target_workers=2, priority=5, reason="", status=make_status(150, 600)
    )
    api.jobs["iris-1"] = make_job("iris-1", state="FAILED", error={"message": "loss() raised", "fix": ""})
    api.jobs["wide-1"] = make_job(
        "wide-1", state="QUEUED", reason="submitted; waiting for the scheduler", target_reason="no slot is free"
    )
    header, first, second, third = cli("jobs", "list").out.splitlines()
    assert third.endswith("no slot is free")
    assert header.split() == ["ID", "TYPE", "STATE", "PROGRESS", "WORKERS", "PRIORITY", "AGE", "REASON"]
    assert first.split()[:6] == ["digits-1", "training", "RUNNING", "25%", "1/2", "5"]
    assert second.split()[:5] == ["iris-1", "training", "FAILED", "-", "-"]
    assert second.rstrip().endswith("loss() raised")
    assert [job["id"] for job in json.loads(cli("jobs", "list", "--json").out)] == ["digits-1", "iris-1", "wide-1"]


def test_a_list_is_filtered_by_the_api_and_cut(api: FakeApi, cli: Cli) -> None:
    for number in range(5):
        api.jobs[f"a-{number}"] = make_job(f"a-{number}", state="RUNNING" if number % 2 else "QUEUED")
    cli("jobs", "list", "--state", "RUNNING", "--label", "team=ads", "--label", "x=y", "--name=a")
    query = api.requests("GET", "/jobs")[-1].query
    assert (query["state"], query["label"], query["name"]) == ("RUNNING", "x=y", "a")
    cli("jobs", "list", "--owner", "ann", "--search", "dig", "--namespace", "ads", "--sort", "-progress")
    query = api.requests("GET", "/jobs")[-1].query
    wanted = {"owner": "ann", "q": "dig", "namespace": "ads", "sort": "-progress"}
    assert {key: query[key] for key in wanted} == wanted
    assert len(json.loads(cli("jobs", "list", "--limit", "2", "--json").out)) == 2
    assert cli("jobs", "list", "--state", "ASLEEP").code == 2
    outcome = cli("jobs", "list", "--watch")
    assert (outcome.code, "needs a terminal" in outcome.err) == (2, True)


BEST = [(0.5, 3), (0.75, 6)]
"""Values of the marks of checkpoints, and their versions: the newest holds."""


def test_one_job_is_shown_whole_or_as_json(api: FakeApi, cli: Cli) -> None:
    api.jobs["a-1"] = make_job(
        "a-1", state="RUNNING", target_workers=1, status=make_status(1, 4), target_reason="fair"
    )
    shown = cli("jobs", "get", "a-1").out
    for part in ("a-1  RUNNING", "1/4 records 25%", "accuracy 0.9", "workers 1 to 3, now 1 (fair)", "priority 0"):
        assert part in shown
    assert json.loads(cli("jobs", "get", "a-1", "--json").out) == api.jobs["a-1"]
    api.jobs["a-1"] |= {"state": "SUCCEEDED", "target_workers": 0}
    shown = cli("jobs", "get", "a-1").out
    assert "workers 1 to 3   priority 0" in shown, "a job that is over has no number of workers, and no reason for it"
    assert "best model" not in shown
    marks = [{"metric": "auc", "mode": "max", "value": value, "version": at, "evaluation": at} for value, at in BEST]
    manifests = [{"version": mark["version"], "created_at": mark["version"], "best": mark} for mark in marks]
    kept = [{"version": one["version"], "manifest": one} for one in [*manifests, {"version": 9, "best": None}]]
    api.jobs["a-1"] |= {"checkpoints": kept}
    assert "best model: version 6 (auc 0.75, evaluation 6)" in cli("jobs", "get", "a-1").out


def test_an_unknown_job_is_told_and_exits_with_one(api: FakeApi, cli: Cli) -> None:
    outcome = cli("jobs", "get", "nope")
    assert outcome.code == 1
    assert outcome.err.startswith("error: there is no job 'nope'\n  fix: `elasticdl jobs list` shows the jobs")


def test_events_are_listed_and_followed(api: FakeApi, cli: Cli) -> None:
    api.jobs["a-1"] = make_job("a-1")
    api.events["a-1"] = [{"id": 1, "kind": "state", "message": "2 workers fit", "detail": {}, "at": NOW}]
    assert "state" in cli("jobs", "events", "a-1").out
    assert json.loads(cli("jobs", "events", "a-1", "--json").out) == api.events["a-1"][0]
    api.streams["a-1"] = [[sse("event", {"kind": "plan", "message": "3 workers now"}, 2), sse("end", {})]]
    assert cli("jobs", "events", "a-1", "--follow").out.endswith("plan        3 workers now\n")


def test_logs_are_printed_as_they_are(api: FakeApi, cli: Cli) -> None:
    api.jobs["a-1"] = make_job("a-1")
    api.logs["a-1"] = "one\n[red]two[/red]\n"
    assert cli("jobs", "logs", "a-1", "--role", "ps", "--index", "1", "-n", "1").out == "[red]two[/red]\n"
    assert api.requests("GET", "/jobs/a-1/logs")[0].query == {"role": "ps", "index": "1", "tail": "1"}
    assert cli("jobs", "logs", "a-1", "--follow").out == api.logs["a-1"]
    assert cli("jobs", "logs", "a-1", "--role", "boss").code == 2


def test_states_are_changed_for_many_jobs(api: FakeApi, cli: Cli) -> None:
    for job_id in ("a-1", "a-2"):
        api.jobs[job_id] = make_job(job_id, state="RUNNING")
    assert cli("jobs", "suspend", "a-1", "a-2").out == "a-1  SUSPENDED\na-2  SUSPENDED\n"
    assert cli("jobs", "resume", "a-1").out == "a-1  QUEUED\n"
    assert cli("jobs", "cancel", "a-1", "a-2", "--wait").out == "a-1  CANCELLED\na-2  CANCELLED\n"
    assert [job["state"] for job in json.loads(cli("jobs", "cancel", "a-1", "--json").out)] == ["CANCELLED"]
    api.jobs["a-3"] = make_job("a-3", state="CANCELLED", desired="cancel")
    assert cli("jobs", "cancel", "a-3").out == "a-3  CANCELLED\n"


def test_scaling_takes_either_spelling(api: FakeApi, cli: Cli) -> None:
    api.jobs["a-1"] = make_job("a-1", state="RUNNING")
    outcome = cli("jobs", "scale", "a-1", "--min_workers", "2", "--max-workers", "4", "--priority", "-3")
    assert outcome.out == "a-1  workers 2 to 4, priority -3\n"
    outcome = cli("jobs", "scale", "a-1")
    assert (outcome.code, "nothing to change" in outcome.err) == (2, True)
    assert cli("jobs", "scale", "a-1", "--max-workers", "0").code == 2


def test_a_job_says_how_large_updates_are_and_scaling_who_could_only_stand_by(api: FakeApi, cli: Cli) -> None:
    chosen = {"chosen": "AllReduceStrategy", "reason": "it has no embedding tables", "microbatches": 2}
    told = {"strategy": {**chosen, "records_per_update": 64, "updates_per_epoch": 1500}}
    api.jobs["a-1"] = make_job("a-1", state="RUNNING", status={**make_status(1, 4), **told})
    shown = cli("jobs", "get", "a-1").out
    assert "64 records an update in 2 microbatches, 1,500 updates an epoch" in shown
    outcome = cli("jobs", "scale", "a-1", "--max-workers", "3")
    assert outcome.out.startswith("a-1  workers 1 to 3")
    assert "of at most 3 workers 2 can compute" in outcome.err
    assert cli("jobs", "scale", "a-1", "--max-workers", "2").err == ""


def test_labels_are_set_and_removed(api: FakeApi, cli: Cli) -> None:
    api.jobs["a-1"] = make_job("a-1", state="SUCCEEDED")
    outcome = cli("jobs", "label", "a-1", "team=ads", "note=a=b", "draft-", "x-=1")
    assert (outcome.code, outcome.err) == (0, "")
    assert api.requests("PATCH")[-1].json() == {"labels": {"team": "ads", "note": "a=b", "draft": None, "x-": "1"}}
    for wrong in (["team"], ["=x"], ["-"], ["a=1", "a-"], [""]):
        outcome = cli("jobs", "label", "a-1", "--", *wrong)
        assert (outcome.code, len(api.requests("PATCH"))) == (2, 1), wrong
    assert "KEY-" in cli("jobs", "label", "a-1", "team").err


def test_metrics_are_shown(api: FakeApi, cli: Cli) -> None:
    api.jobs["a-1"] = make_job("a-1")
    assert cli("jobs", "metrics", "a-1").out.splitlines()[1].split() == ["1", "0.5"]
    assert json.loads(cli("jobs", "metrics", "a-1", "--json").out)["evaluations"] == []
    assert cli("jobs", "metrics", "a-1", "-o", "csv").out == "model_version,loss\n1,0.5\n"
    outcome = cli("jobs", "get", "a-1", "-o", "csv")
    assert (outcome.code, "-o csv is for `elasticdl jobs metrics`" in outcome.err) == (2, True)


def test_metrics_as_csv_have_a_row_for_each_version_and_a_column_for_each_metric() -> None:
    losses = [{"model_version": 2, "loss": 0.5}, {"model_version": 10, "loss": float("nan")}]
    evaluations = [
        {"model_version": 10, "metrics": {"auc": 0.75, "a,b": 1.0}},
        {"model_version": 4, "metrics": {"auc": float("inf")}},
    ]
    written = io.StringIO()
    write_metrics({"losses": losses, "evaluations": evaluations}, written)
    assert written.getvalue().splitlines() == [
        'model_version,loss,"evaluation.a,b",evaluation.auc',
        "2,0.5,,",
        "4,,,inf",
        "10,nan,1.0,0.75",
    ]


def test_artifacts_are_listed_and_fetched(api: FakeApi, cli: Cli, tmp_path: Path) -> None:
    digest = hashlib.sha256(b"abc").hexdigest()
    files = [{"name": name, "size": 3, "sha256": digest} for name in ("model.keras", "metrics.json")]
    api.jobs["a-1"] = make_job("a-1", artifacts=files)
    for item in files:
        api.files["a-1", item["name"]] = (b"abc", "application/octet-stream")
    assert cli("jobs", "artifacts", "a-1").out.splitlines()[1].split() == ["model.keras", "3", "B", digest[:12]]
    assert cli("jobs", "artifacts", "a-1", "--download", "out").code == 0
    assert sorted(path.name for path in (tmp_path / "out").iterdir()) == ["metrics.json", "model.keras"]
    outcome = cli("jobs", "artifacts", "a-1", "model.keras", "--download", "one", "--json")
    assert json.loads(outcome.out) == [str(tmp_path / "one" / "model.keras")]
    outcome = cli("jobs", "artifacts", "a-1", "model.h5", "--download", "two")
    assert outcome.code == 1
    assert "it has: model.keras, metrics.json" in outcome.err


def test_deleting_wants_a_yes(api: FakeApi, cli: Cli) -> None:
    api.jobs["a-1"] = make_job("a-1", state="FAILED")
    outcome = cli("jobs", "delete", "a-1")
    assert (outcome.code, list(api.jobs)) == (2, ["a-1"])
    assert "give --yes" in outcome.err
    assert cli("jobs", "delete", "a-1", "--yes").out == "a-1  deleted\n"
    assert api.jobs == {}


def test_a_job_can_be_watched_to_its_end(api: FakeApi, cli: Cli) -> None:
    api.jobs["a-1"] = make_job("a-1", state="RUNNING")
    api.on_end["a-1"] = make_job("a-1", state="FAILED", error={"message": "boom", "fix": "", "traceback": ""})
    api.streams["a-1"] = [[sse("end", {})]]
    outcome = cli("jobs", "get", "a-1", "--watch")
    assert (outcome.code, "job a-1 failed: boom" in outcome.err) == (1, True)


def test_every_verb_has_an_example_in_its_help(cli: Cli) -> None:
    for verb in [
        "list",
        "get",
        "events",
        "logs",
        "metrics",
        "cancel",
        "suspend",
        "resume",
        "scale",
        "label",
        "artifacts",
        "delete",
    ]:
        assert f"elasticdl jobs {verb}" in cli("jobs", verb, "--help").out

"""From the words of a command to what reaches the API, and back to an exit code."""

from __future__ import annotations

import io
import json
import zipfile
from pathlib import Path

import pytest

from tests.fakes.api import FakeApi, make_job, make_status, sse
from tests.unit.cli.conftest import Cli
from tests.unit.cli.test_scheduler_verbs import make_comparison

pytestmark = pytest.mark.unit

TRAIN = ("train", "--model_zoo=zoo", "--model_def=digits.forward", "--training_data=data", "--job_name=digits")


def test_a_minimum_above_the_cluster_is_told_at_once(api: FakeApi, cli: Cli, zoo: Path) -> None:
    outcome = cli(*TRAIN, "--min_workers=9", "--max_workers=9", "--detach")
    assert (outcome.code, outcome.out) == (0, "digits-1\n")
    assert "needs 9 workers at least, and the cluster has 4 slots" in outcome.err


def test_detached_training_uploads_once_and_prints_the_id_alone(api: FakeApi, cli: Cli, zoo: Path) -> None:
    outcome = cli(*TRAIN, "--num_workers=3", "--optimizer_params=lr=0.01", "--detach")
    assert (outcome.code, outcome.out, outcome.err) == (0, "digits-1\n", f"page: {api.url}/jobs/digits-1\n")
    (digest,) = api.bundles
    with zipfile.ZipFile(io.BytesIO(api.bundles[digest])) as bundle:
        assert bundle.namelist() == ["digits.py"]
    body = api.requests("POST", "/jobs")[0].json()
    assert body == {
        "name": "digits",
        "model_def": "digits.forward",
        "model_bundle": digest,
        "training_data": str(zoo.parent / "data"),
        "max_workers": 3,
        "optimizer_params": {"lr": 0.01},
    }
    assert cli(*TRAIN, "--detach").out == "digits-2\n"
    assert len(api.requests("PUT", "/bundles")) == 1


def test_a_dry_run_checks_and_asks_what_would_be_and_submits_nothing(api: FakeApi, cli: Cli, zoo: Path) -> None:
    api.comparison = make_comparison()
    outcome = cli(*TRAIN, "--num_workers=3", "--dry-run")
    assert (outcome.code, outcome.err) == (0, "")
    assert "the training job digits passes all checks; nothing was submitted" in outcome.out
    assert "4 slots -> 6" in outcome.out
    (asked,) = api.requests("POST")
    assert asked.path == "/scheduler/what-if"
    (job,) = asked.json()["add"]
    assert (job["name"], job["max_workers"], job["model_def"]) == ("digits", 3, "digits.forward")
    shown = json.loads(cli(*TRAIN, "--dry-run", "--json").out)
    assert shown["what_if"] == api.comparison and shown["spec"]["name"] == "digits"
    (zoo / "digits.py").write_text("def forward(: ...")
    assert cli(*TRAIN, "--dry-run").code == 2
    assert api.bundles == {}


def test_a_dry_run_asks_for_the_workers_that_can_compute(api: FakeApi, cli: Cli, zoo: Path) -> None:
    """And says so; the original's spelling of a larger update is told as well."""
    api.comparison = make_comparison()
    group = ("--distribution_strategy=AllReduceStrategy", "--microbatches=2", "--num_workers=3")
    outcome = cli(*TRAIN, *group, "--use_async=false", "--grads_to_wait=4", "--dry-run")
    assert "of at most 3 workers 2 can compute" in outcome.err
    assert "an update has 4 x 64 = 256 records, as with --minibatch_size 256" in outcome.err
    (asked,) = api.requests("POST")
    assert asked.json()["add"][0]["max_workers"] == 2


def test_a_dry_run_needs_no_cluster_for_a_local_job(cli: Cli, zoo: Path) -> None:
    outcome = cli(*TRAIN, "--dry-run", "--local")
    assert (outcome.code, "passes all checks" in outcome.out) == (0, True)
    outcome = cli(*TRAIN, "--dry-run", "--detach")
    assert (outcome.code, "--detach means nothing with --dry-run" in outcome.err) == (2, True)


def test_a_shared_zoo_is_not_uploaded(api: FakeApi, cli: Cli, zoo: Path) -> None:
    assert cli(*TRAIN, "--no-upload", "--detach", "--idempotency-key=k").code == 0
    assert api.bundles == {}
    (request,) = api.requests("POST", "/jobs")
    assert request.json()["model_zoo"] == str(zoo)
    assert request.headers["idempotency-key"] == "k"


def test_paths_are_made_absolute_and_other_origins_left_alone(api: FakeApi, cli: Cli, zoo: Path) -> None:
    here = zoo.parent
    (here / "data" / "part-1.rec").write_text("")
    places = ("--validation_data=data/*.rec,s3://bucket/x,/else/where", "--output=out", "--checkpoint_dir=./c/../d")
    assert cli(*TRAIN, *places, "--detach").code == 0
    body = api.requests("POST", "/jobs")[0].json()
    assert body["validation_data"] == f"{here}/data/*.rec,s3://bucket/x,/else/where"
    assert (body["output"], body["checkpoint_dir"]) == (f"{here}/out", f"{here}/d")


def test_data_that_is_not_there_is_told_before_any_upload(api: FakeApi, cli: Cli, zoo: Path) -> None:
    outcome = cli(*TRAIN, "--validation_data=dta", "--detach")
    assert outcome.code == 2
    assert "--validation_data: there is no dta in" in outcome.err
    assert "fix: check the path" in outcome.err
    assert api.seen == []


def test_a_name_for_a_custom_reader_is_left_alone(api: FakeApi, cli: Cli, zoo: Path) -> None:
    (zoo / "reader.py").write_text("def make(data_origin, records_per_task=None): ...")
    assert cli(*TRAIN, "--training_data=project.table", "--custom_data_reader=reader.make", "--detach").code == 0
    assert api.requests("POST", "/jobs")[0].json()["training_data"] == "project.table"


def test_a_module_that_cannot_work_is_told_before_any_upload(api: FakeApi, cli: Cli, zoo: Path) -> None:
    (zoo / "digits.py").write_text("def forward(: ...")
    outcome = cli(*TRAIN, "--detach")
    assert outcome.code == 2
    assert "digits.py:1" in outcome.err
    assert api.seen == []


def test_every_problem_of_the_flags_is_told_with_its_flag(api: FakeApi, cli: Cli, zoo: Path) -> None:
    outcome = cli(*TRAIN, "--num_epochs=0", "--lr_staleness_modulation", "--use_async=false", "--detach")
    assert outcome.code == 2
    assert "error: --num_epochs: 0 is too small" in outcome.err
    assert "error: --lr_staleness_modulation: " in outcome.err
    assert api.seen == []


@pytest.mark.parametrize(
    ("flags", "message"),
    [
        (("--delay_compensation=30", "--use_async=false"), "gradients of synchronous training are not late"),
        (("--delay_compensation=-1",), "-1.0 is out of range"),
        (("--delay_compensation=nan",), "nan is out of range"),
        (("--delay_compensation=much",), "'much' is not a number"),
    ],
)
def test_delays_are_compensated_in_asynchronous_training_only(
    api: FakeApi, cli: Cli, zoo: Path, flags: tuple[str, ...], message: str
) -> None:
    outcome = cli(*TRAIN, *flags, "--detach")
    assert outcome.code == 2
    assert "--delay_compensation" in outcome.err
    assert message in outcome.err
    assert api.seen == []


def test_a_zoo_that_is_no_directory_is_told(cli: Cli, zoo: Path) -> None:
    assert "is not there" in cli("train", "--model_zoo=nowhere", "--model_def=a.b", "--training_data=data").err
    outcome = cli("train", "--model_zoo=zoo/digits.py", "--model_def=a.b", "--training_data=data")
    assert outcome.code == 2
    assert f"give its directory, {zoo}" in outcome.err


def test_without_a_cluster_the_way_to_one_is_told(cli: Cli, zoo: Path) -> None:
    outcome = cli(*TRAIN, "--detach")
    assert outcome.code == 4
    assert "elasticdl up" in outcome.err and "--local" in outcome.err


def test_a_job_that_succeeds_is_followed_to_its_result(api: FakeApi, cli: Cli, zoo: Path) -> None:
    status = make_status(600, 600)
    ended = make_job(
        "digits-1",
        state="SUCCEEDED",
        status=status,
        started_at="2026-01-02T03:04:05Z",
        finished_at="2026-01-02T03:05:15Z",
        artifacts=[{"name": "model.keras", "size": 2048, "sha256": "ab" * 32}],
    )
    api.streams["digits-1"] = [
        [
            sse("status", make_job("digits-1", state="RUNNING", target_workers=2, status=make_status(300, 600))),
            sse("event", {"kind": "state", "message": "2 workers fit", "at": "2026-01-02T03:04:05Z"}, 1),
            sse("status", ended),
            sse("end", {}),
        ]
    ]
    api.on_end = {"digits-1": ended}
    outcome = cli(*TRAIN)
    assert outcome.code == 0, outcome.err
    assert "2 workers fit" in outcome.out
    assert (
        "digits-1  RUNNING  300/600 records 50%  epoch 1/2  1,234 samples/s  loss 0.25 (last 0.5)  "
        "lr 0.01  version 7  eta 0:00:12  "
        "workers 1/2  ps 1  training: accuracy 0.875  evaluation: accuracy 0.9\n" in outcome.out
    )
    assert "job digits-1 succeeded in 0:01:10" in outcome.out
    assert (
        "trained on 600 records, 7 updates, loss 0.25; training: accuracy 0.875; evaluation: accuracy 0.9"
        in outcome.out
    )
    assert "model.keras" in outcome.out and "2.0 KiB" in outcome.out


def test_updates_are_counted_from_where_the_job_began(api: FakeApi, cli: Cli, zoo: Path) -> None:
    status = {**make_status(600, 600), "model_version": 965, "start_version": 920}
    ended = make_job("digits-1", state="SUCCEEDED", status=status)
    api.streams["digits-1"] = [[sse("status", ended), sse("end", {})]]
    api.on_end = {"digits-1": ended}
    outcome = cli(*TRAIN)
    assert "trained on 600 records, 45 updates" in outcome.out


def test_a_job_that_fails_says_why_with_the_traceback_and_exits_with_one(api: FakeApi, cli: Cli, zoo: Path) -> None:
    error = {"message": "loss() raised", "fix": "mend digits.py", "traceback": 'File "digits.py", line 3\nKeyError'}
    api.on_end = {"digits-1": make_job("digits-1", state="FAILED", reason="user code", error=error)}
    api.streams["digits-1"] = [[sse("end", {})]]
    outcome = cli(*TRAIN)
    assert outcome.code == 1
    for part in ("job digits-1 failed: loss() raised", "fix: mend digits.py", 'File "digits.py", line 3'):
        assert part in outcome.err
    assert "elasticdl jobs logs digits-1" in outcome.err


def test_a_job_that_is_cancelled_exits_with_three(api: FakeApi, cli: Cli, zoo: Path) -> None:
    api.on_end = {"digits-1": make_job("digits-1", state="CANCELLED", reason="cancel was asked for")}
    api.streams["digits-1"] = [[sse("end", {})]]
    outcome = cli(*TRAIN)
    assert outcome.code == 3
    assert "cancel was asked for" in outcome.out


def test_json_is_alone_on_standard_output(api: FakeApi, cli: Cli, zoo: Path) -> None:
    ended = make_job("digits-1", state="SUCCEEDED", status=make_status(6, 6))
    api.on_end = {"digits-1": ended}
    api.streams["digits-1"] = [[sse("status", ended), sse("end", {})]]
    outcome = cli(*TRAIN, "--json")
    assert outcome.code == 0
    assert json.loads(outcome.out)["state"] == "SUCCEEDED"
    assert "SUCCEEDED" in outcome.err


def test_what_the_api_refuses_is_told_by_field(api: FakeApi, cli: Cli, zoo: Path) -> None:
    problems = [{"field": "num_ps", "message": "more than the cluster has", "fix": "give at most 3"}]
    api.refusal = {"status": 422, "code": "invalid_spec", "detail": "x", "problems": problems}
    outcome = cli(*TRAIN, "--num_ps=9", "--detach")
    assert outcome.code == 2
    assert "error: --num_ps: more than the cluster has\n  fix: give at most 3" in outcome.err


def test_evaluate_and_predict_make_their_types_of_job(api: FakeApi, cli: Cli, zoo: Path) -> None:
    common = ("--model_zoo=zoo", "--model_def=digits.forward", "--checkpoint_dir_for_init=c", "--detach")
    assert cli("evaluate", *common, "--validation_data=data").code == 0
    assert cli("predict", *common, "--prediction_data=data", "--output=o").code == 0
    assert [seen.json()["type"] for seen in api.requests("POST", "/jobs")] == ["evaluation", "prediction"]


def test_flags_that_contradict_local_are_refused(cli: Cli, zoo: Path) -> None:
    outcome = cli(*TRAIN, "--local", "--detach")
    assert outcome.code == 2
    assert "--detach means nothing with --local" in outcome.err


def test_help_names_every_flag_and_shows_an_example(cli: Cli) -> None:
    from elasticdl.cli.flags import VERBS, flags_of

    for verb, kind in VERBS.items():
        text = cli(verb, "--help").out
        assert f"elasticdl {verb} --model_zoo" in text
        for name in flags_of(kind):
            assert f"--{name}"[:22] in text

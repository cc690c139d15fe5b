"""``evaluate`` and ``predict`` with what a job trained: its code, its settings and its checkpoint."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elasticdl_core.job.fields import default_of
from elasticdl_runtime.bundles import pack_bundle
from tests.fakes.api import FakeApi, make_job
from tests.unit.cli.conftest import Cli

pytestmark = pytest.mark.unit
DIGEST = "sha256:" + "0f" * 32
SPEC = {
    "model_def": "digits.forward",
    "model_bundle": DIGEST,
    "model_zoo": "",
    "model_params": {"units": 8},
    "training_data": "/data/train",
    "num_epochs": 9,
    "optimizer_params": {"lr": 0.1},
    "keras": "legacy",
    "name": "digits",
    "min_workers": 3,
    "envs": {"A": "1"},
}


def checkpoint(version: int) -> dict[str, Any]:
    return {
        "version": version,
        "manifest": {"directory": f"/jobs/digits-1/checkpoints/{version}", "version": version},
    }


@pytest.fixture
def trained(api: FakeApi, zoo: Path) -> FakeApi:
    """A job that trains and has saved two checkpoints, the older one listed last; and data to predict."""
    job = make_job("digits-1", state="RUNNING", spec=SPEC, checkpoints=[checkpoint(1000), checkpoint(200)])
    api.jobs["digits-1"] = job
    return api


def submitted(api: FakeApi) -> dict[str, Any]:
    return dict(api.requests("POST", "/jobs")[-1].json())


@pytest.mark.parametrize("given", ["digits-1", "digits", "last", "dig"])
def test_the_newest_checkpoint_of_a_job_that_runs_is_taken_with_its_code(
    trained: FakeApi, cli: Cli, given: str
) -> None:
    outcome = cli("predict", f"--from={given}", "--prediction_data=data", "--detach")
    assert outcome.code == 0, outcome.err
    body = submitted(trained)
    assert body == {
        "type": "prediction",
        "model_def": "digits.forward",
        "model_bundle": DIGEST,
        "model_params": {"units": 8},
        "keras": "legacy",
        "envs": {"A": "1"},
        "checkpoint_dir_for_init": "/jobs/digits-1/checkpoints/1000",
        "prediction_data": body["prediction_data"],
    }


@pytest.mark.parametrize("given", ["last", "digits", "dig"])
def test_jobs_that_use_a_model_are_not_meant_though_they_are_newer(trained: FakeApi, cli: Cli, given: str) -> None:
    later = make_job("digits-2", spec={**SPEC, "type": "prediction"}, created_at="2099-01-01T00:00:00Z")
    trained.jobs = {"digits-2": later, **trained.jobs}
    outcome = cli("predict", f"--from={given}", "--prediction_data=data", "--detach")
    assert outcome.code == 0, outcome.err
    assert submitted(trained)["checkpoint_dir_for_init"].startswith("/jobs/digits-1/")


def test_the_newest_is_the_one_that_was_saved_last(trained: FakeApi, cli: Cli) -> None:
    """Not that of the highest version: the job could not read that one, and went on from an older one."""
    for one, saved in zip(trained.jobs["digits-1"]["checkpoints"], (1.0, 2.0), strict=True):
        one["manifest"]["created_at"] = saved
    assert cli("predict", "--from=digits", "--prediction_data=data", "--detach").code == 0
    assert submitted(trained)["checkpoint_dir_for_init"].endswith("/200")


def test_a_version_can_be_named_and_what_is_given_besides_counts(trained: FakeApi, cli: Cli) -> None:
    more = ("--from", "digits@200", "--model_params=units=4", "--validation_data=data", "--num_workers=2")
    assert cli("evaluate", *more, "--detach").code == 0
    body = submitted(trained)
    assert body["checkpoint_dir_for_init"].endswith("/200")
    assert (body["model_params"], body["max_workers"], body["type"]) == ({"units": 4}, 2, "evaluation")


def test_settings_of_parameter_servers_are_taken_where_there_are_some(trained: FakeApi, cli: Cli) -> None:
    spec = dict(trained.jobs["digits-1"]["spec"])
    given = ("evaluate", "--from=digits", "--validation_data=data", "--detach")
    trained.jobs["digits-1"]["spec"] = {**spec, "embedding_threshold_bytes": default_of("embedding_threshold_bytes")}
    assert cli(*given).code == 0
    assert "embedding_threshold_bytes" not in submitted(trained), "it would mean parameter servers"
    trained.jobs["digits-1"]["spec"] = {**spec, "embedding_threshold_bytes": 7}
    assert cli(*given).code == 0
    assert submitted(trained)["embedding_threshold_bytes"] == 7
    outcome = cli(*given, "--distribution_strategy=AllReduceStrategy")
    assert outcome.code == 0, outcome.err
    assert "embedding_threshold_bytes" not in submitted(trained)


def test_newer_code_can_be_given(trained: FakeApi, cli: Cli) -> None:
    assert cli("evaluate", "--from=digits", "--model_zoo=zoo", "--validation_data=data", "--detach").code == 0
    body = submitted(trained)
    assert body["model_bundle"] in trained.bundles
    assert "model_zoo" not in body


def test_a_local_run_unpacks_the_code_of_the_job(trained: FakeApi, cli: Cli, zoo: Path) -> None:
    content, digest = pack_bundle(zoo)
    trained.bundles[digest] = content
    trained.jobs["digits-1"]["spec"] = {**SPEC, "model_bundle": digest}
    (zoo / "digits.py").write_text("")  # the checks of the module are made on the job's
    outcome = cli("predict", "--from=digits", "--prediction_data=data", "--local", "--dry-run", "--json")
    assert outcome.code == 0, outcome.err
    spec = json.loads(outcome.out)["spec"]
    assert "model_bundle" not in spec and Path(spec["model_zoo"]).name == "zoo"
    assert not Path(spec["model_zoo"]).exists(), "it is there as long as the run is"
    trained.bundles[digest] += b"x"
    assert "what came is not the bundle" in cli("predict", "--from=digits", "--prediction_data=data", "--local").err


def test_a_shared_directory_of_the_job_is_named_as_it_was(trained: FakeApi, cli: Cli) -> None:
    trained.jobs["digits-1"]["spec"] = {**SPEC, "model_bundle": "", "model_zoo": "/shared/zoo-of-the-cluster"}
    assert cli("predict", "--from=digits", "--prediction_data=data", "--detach").code == 0
    assert submitted(trained)["model_zoo"] == "/shared/zoo-of-the-cluster"
    assert trained.bundles == {}


@pytest.mark.parametrize(
    ("words", "said"),
    [
        (("--from=digits@7",), "has no checkpoint of version 7\n  fix: it has checkpoints of 200, 1000"),
        (("--from=digits@x",), "'x' is no model version"),
        (("--from=digits@",), "'' is no model version"),
        (("--from=nobody",), "there is no job 'nobody'"),
        (("--from=digits", "--checkpoint_dir_for_init=c"), "both name a checkpoint"),
        (("--from=digits", "--local"), f"there is no bundle {DIGEST}"),
        (("--from",), "--from lacks its value"),
    ],
)
def test_what_cannot_be_taken_is_refused(trained: FakeApi, cli: Cli, words: tuple[str, ...], said: str) -> None:
    outcome = cli("predict", "--prediction_data=data", *words)
    assert outcome.code in {1, 2}
    assert said in outcome.err
    assert trained.requests("POST") == []


def test_a_job_without_a_checkpoint_is_refused_with_what_to_do(trained: FakeApi, cli: Cli) -> None:
    trained.jobs["digits-1"]["checkpoints"] = []
    outcome = cli("predict", "--from=digits", "--prediction_data=data", "--detach")
    assert (outcome.code, "job digits-1 (RUNNING) has no checkpoint" in outcome.err) == (2, True)
    assert "wait until it has saved one" in outcome.err
    trained.jobs["digits-1"]["spec"] = {**SPEC, "type": "evaluation"}
    assert "name the job that trained the model" in cli("predict", "--from=digits", "--prediction_data=data").err


def test_training_has_no_such_option(cli: Cli) -> None:
    outcome = cli("train", "--from=digits")
    assert (outcome.code, "there is no flag --from" in outcome.err) == (2, True)

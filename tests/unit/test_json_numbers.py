"""NaN and the infinities in JSON: one rule, read back where numbers are."""

from __future__ import annotations

import json
import math

import pytest

from elasticdl.cli.local import evaluation_words, progress_words
from elasticdl.cli.output import print_json
from elasticdl.client import Job
from elasticdl_core.early_stopping import EarlyStoppingCounter
from elasticdl_core.json_numbers import from_json, to_json
from elasticdl_master.state.evaluations import metrics_of, states_of

pytestmark = pytest.mark.unit


def test_what_json_cannot_write_comes_back_as_it_was() -> None:
    value = {"a": [math.nan, -math.inf, 1.5, 2, "text", None, True], "b": {"c": math.inf}}
    text = json.dumps(to_json(value), allow_nan=False)
    read = from_json(json.loads(text))
    assert math.isnan(read["a"][0])
    assert read["a"][1:] == value["a"][1:]
    assert read["b"] == {"c": math.inf}


def test_a_job_shows_a_loss_and_metrics_that_are_no_numbers() -> None:
    status = {"loss": "NaN", "metrics": {"auc": "NaN", "mse": "Infinity", "accuracy": 0.5}}
    job = Job.from_json({"id": "a-1", "state": "RUNNING", "status": status})
    assert job.status.loss is not None
    assert math.isnan(job.status.loss)
    assert math.isnan(job.status.metrics["auc"])
    assert job.status.metrics["mse"] == math.inf
    assert job.status.metrics["accuracy"] == 0.5


def test_a_local_run_shows_them_as_well() -> None:
    assert "loss nan" in progress_words({"event": "progress", "records": 5, "total": 10, "loss": "NaN"})
    assert evaluation_words({"metrics": {"auc": "NaN", "mse": "-Infinity"}}).endswith("auc nan  mse -inf")
    assert evaluation_words({"metrics": {}, "records": 0}).endswith("no records")


def test_json_of_the_command_line_is_json(capsys: pytest.CaptureFixture[str]) -> None:
    print_json({"loss": math.nan})

    def refuse(name: str) -> None:
        raise AssertionError(name)

    assert json.loads(capsys.readouterr().out, parse_constant=refuse) == {"loss": "NaN"}


def test_results_of_workers_are_read_back() -> None:
    assert math.isnan(metrics_of(b'{"metrics": {"auc": "NaN"}}')["auc"])
    assert states_of(b'{"states": {"mse": {"kind": "mean", "sum": ["Infinity", 4]}}}') == {
        "mse": {"kind": "mean", "sum": [math.inf, 4]}
    }


@pytest.mark.parametrize("mode", ["min", "max"])
def test_nan_is_no_improvement_and_no_best_value(mode: str) -> None:
    stopping = EarlyStoppingCounter("loss", patience=2, mode=mode)
    assert stopping.observe({"loss": math.nan}) == ""
    assert stopping.observe({"loss": 0.5}) == ""
    assert (stopping.best, stopping.waited) == (0.5, 0)
    assert stopping.observe({"loss": math.nan}) == ""
    assert stopping.observe({"loss": math.nan}) == "loss did not improve on 0.5 in 2 evaluations"


def test_a_metric_that_is_never_a_number_ends_training_with_words() -> None:
    stopping = EarlyStoppingCounter("auc", patience=1)
    assert stopping.observe({"auc": math.nan}) == "auc was never a number in 1 evaluations"

"""``jobs list`` by evaluations, parameters, labels and fields of the specification."""

from __future__ import annotations

import json

import pytest

from tests.fakes.api import FakeApi, make_job
from tests.unit.cli.conftest import Cli

pytestmark = pytest.mark.unit
AUC = {"a": 0.7, "b": 0.9, "c": None, "d": float("nan"), "e": 0.8}


@pytest.fixture
def runs(api: FakeApi) -> FakeApi:
    for number, (name, auc) in enumerate(AUC.items()):
        spec = {
            "model_params": {"units": 8 * number},
            "optimizer_params": {"lr": 10.0**-number},
            "labels": {"team": "ads" if number % 2 else "maps"},
            "minibatch_size": 64,
        }
        metrics = {} if auc is None else {"auc": auc}
        api.jobs[f"{name}-111111"] = make_job(f"{name}-111111", spec=spec, status={"metrics": metrics})
    return api


@pytest.mark.parametrize(
    ("flags", "found"),
    [
        (("--sort", "-metric:auc"), "beacd"),
        (("--sort", "metric:auc"), "aebcd"),
        (("--sort", "-metric:auc", "--limit", "2"), "be"),
        (("--where", "metric:auc>=0.8", "--sort", "param:lr"), "eb"),
        (("--where", "param:lr<=0.01", "--where", "label:team=maps"), "ce"),
        (("--where", "label:team!=maps", "--sort", "-param:units"), "db"),
        (("--where", "spec:minibatch_size=64.0", "--sort", "label:team"), "bdace"),
        (
            (
                "--where",
                "metric:loss<1",
            ),
            "",
        ),
    ],
)
def test_jobs_are_picked_and_sorted_by_their_values(
    runs: FakeApi, cli: Cli, flags: tuple[str, ...], found: str
) -> None:
    outcome = cli("jobs", "list", *flags, "--json")
    listed = "".join(job["id"][0] for job in json.loads(outcome.out))
    assert (listed if "--sort" in flags else "".join(sorted(listed))) == found, outcome.err


def test_the_values_are_columns(runs: FakeApi, cli: Cli) -> None:
    lines = cli("jobs", "list", "--sort", "-metric:auc", "--where", "param:lr<=1").out.splitlines()
    assert "AUC" in lines[0] and "LR" in lines[0]
    assert "0.9" in lines[1] and "0.1" in lines[1]


@pytest.mark.parametrize("flags", [("--where", "auc>0.8"), ("--where", "metric:auc"), ("--sort", "spec:minibatches")])
def test_what_is_no_condition_is_refused_with_the_form(runs: FakeApi, cli: Cli, flags: tuple[str, ...]) -> None:
    outcome = cli("jobs", "list", *flags)
    assert outcome.code != 0
    assert "metric:NAME" in outcome.err

"""Jobs that evaluate or predict without parameter servers, whose workers die: nothing is lost, nothing twice."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_runtime.failpoints import arm
from tests.e2e.local_cluster import Cluster
from tests.e2e.predicted_rows import read_predictions
from tests.e2e.test_training import both, data_flags, digits_of, example_of

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]
SMALL_TASKS = ("--minibatch_size", "8", "--num_minibatches_per_task", "2", "--num_workers", "2")
ALONE = ("--distribution_strategy", "AllReduceStrategy")


@pytest.fixture(scope="module")
def digits(cluster: Cluster) -> Path:
    directory = cluster.directory / "digits-without-servers"
    cluster.cli("data", "generate", "digits", str(directory))
    return directory


def run(cluster: Cluster, verb: str, *flags: str) -> dict[str, Any]:
    """A job that ends well; by its events how many workers were lost on the way."""
    job = cluster.wait(cluster.cli(verb, "--detach", *flags).stdout.split()[-1])
    assert job["state"] == "SUCCEEDED", json.dumps(job.get("error"), indent=1)
    progress = job["status"]["progress"]
    assert progress["records_done"] == progress["records_total"] > 0
    with cluster.client() as client:
        job["lost"] = sum(event.kind == "worker_lost" for event in client.events(job["id"]))
    return job


def check_alone(cluster: Cluster, job: dict[str, Any]) -> None:
    """It had no parameter servers, and says so."""
    assert job["status"]["strategy"]["chosen"] == "AllReduceStrategy", job["status"]["strategy"]
    assert job["status"]["ps"] == []
    assert not [one for one in cluster.launches(job["id"]) if one["role"] == "ps"]


@both
@pytest.mark.rotates(turns=4)
def test_workers_that_hold_a_checkpoint_are_replaced_and_each_record_counts_once(
    cluster: Cluster, digits: Path, armory: Path, framework: str
) -> None:
    model, validation = digits_of(framework), str(digits / "validation")
    trained = cluster.wait(
        cluster.submit(
            *(*model, *data_flags(digits), "--job_name", f"alone-{framework}", "--num_epochs", "4"),
            *("--checkpoint_steps", "30", "--num_ps_pods", "2"),
        )
    )
    assert trained["state"] == "SUCCEEDED", json.dumps(trained.get("error"), indent=1)
    checkpoints = ("--checkpoint_dir_for_init", str(cluster.job_dir(trained["id"]) / "checkpoints"))

    fired = arm(armory, "worker.before_other_task", "kill@3")
    evaluation = ("--validation_data", validation, *checkpoints, *SMALL_TASKS)
    alone = run(cluster, "evaluate", *model, *evaluation, *ALONE)
    assert fired.exists(), "void: no worker died"
    assert alone["lost"] == 1
    check_alone(cluster, alone)
    assert alone["status"]["model_version"] == trained["status"]["model_version"]
    served = run(cluster, "evaluate", *model, *evaluation, "--distribution_strategy", "ParameterServerStrategy")
    for name, value in served["status"]["metrics"].items():
        assert alone["status"]["metrics"][name] == pytest.approx(value, abs=1e-6), name
        assert alone["status"]["metrics"][name] == pytest.approx(trained["status"]["metrics"][name], abs=1e-6), name

    fired = arm(armory, "worker.after_other_task", "kill@4")
    output, here = cluster.directory / f"alone-{framework}", cluster.directory / f"alone-here-{framework}"
    data = ("--prediction_data", validation, "--output_format", "csv")
    # The checkpoint has no tables, so that nobody needs to say how.
    trainer = ("--from", f"alone-{framework}")
    predicted = run(cluster, "predict", *trainer, *data, *SMALL_TASKS, "--output", str(output))
    assert fired.exists(), "void: no worker died"
    assert predicted["lost"] == 1
    check_alone(cluster, predicted)
    zoo = ("--model_zoo", str(example_of(framework) / "zoo"), "--model_def", "digits.forward")
    cluster.cli(
        "predict", "--local", *zoo, *checkpoints, *data, "--minibatch_size", "8", "--output", str(here), timeout=300
    )
    there, local = read_predictions(output), read_predictions(here)
    assert there.keys() == local.keys(), "both have each record once"
    np.testing.assert_allclose(np.array([there[key] for key in local]), np.array(list(local.values())), atol=1e-5)

"""Processes die at the instants that matter, under a running job: it succeeds and no record is lost."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import pytest

from elasticdl_runtime.failpoints import FAILPOINTS, arm
from tests.chaos.counting import CountingJob, counting_job, until
from tests.chaos.faults import kill, nothing_left, replaced
from tests.e2e.local_cluster import EXAMPLES, Cluster

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]
SAMPLE = (
    "master.after_report",
    "ps.after_apply",
    "worker.after_trace",
    "api.after_done_commit",
    "master.after_manifest_written",
)

OF_GROUPS = ("master.after_meeting", "worker.after_compute", "worker.after_group_step")
OF_NO_JOB = (  # tests/integration/api/test_deaths.py
    "api.after_reservation",
    "api.after_job_removed",
    "api.before_bundle_placed",
    "api.after_bundle_placed",
)


def test_one_job_outlives_deaths_at_bad_instants(cluster: Cluster, armory: Path) -> None:
    with counting_job(cluster, "instants", epochs=20) as job:
        for name in SAMPLE:
            job.trains()
            fired = arm(armory, name, "kill")
            until(fired.exists, f"a process dies at {name}")
            assert job.running(), f"void: the job was nearly over when {name} was reached"
        job.trains()
        job.finish()
        job.nothing_lost(most_again=job.in_flight(2 * len(SAMPLE)))
        nothing_left(job)


def shake(job: CountingJob, fired: Path) -> None:
    """Takes a job through what leads to the rarer failpoints, until the armed one was reached."""
    job.trains_on_after_a_checkpoint()
    for victim in ("ps", "worker"):
        if not fired.exists():
            replaced(job, kill(job, victim))
            job.trains()
    if not fired.exists():
        with job.cluster.client() as client:
            client.scale(job.id, min_workers=1, max_workers=1)
            until(lambda: len(client.get(job.id)["status"]["workers"]) == 1, "a worker leaves")
            client.scale(job.id, min_workers=job.workers, max_workers=job.workers)
        job.trains()


@pytest.mark.slow
@pytest.mark.parametrize("name", sorted(FAILPOINTS.keys() - {*OF_GROUPS, *OF_NO_JOB}))
def test_a_job_outlives_a_death_at_each_failpoint(cluster: Cluster, armory: Path, name: str) -> None:
    fired = arm(armory, name, "kill")
    with counting_job(cluster, name.replace(".", "-").replace("_", "-"), epochs=10) as job:
        shake(job, fired)
        job.finish()
        assert fired.exists(), f"void: nothing came by {name}"
        job.nothing_lost(most_again=job.in_flight(4))
        nothing_left(job)


@pytest.mark.slow
@pytest.mark.parametrize("name", ["master.after_parts_saved", "master.after_manifest_written"])
def test_the_best_model_outlives_masters_that_die_before_it_is_kept_and_before_it_is_exported(
    cluster: Cluster, armory: Path, name: str
) -> None:
    best = ("--keep_best", "times:min", "--keep_checkpoint_max", "1", "--checkpoint_steps", "100000")
    validation = ("--validation_data", cluster.seen(cluster.directory / "counting-200.csv"))
    fired = arm(armory, name, "kill")
    with counting_job(cluster, name.replace(".", "-").replace("_", "-"), *best, *validation, records=200) as job:
        until(fired.exists, "a master dies after the evaluation that is the best, before its model is kept")
        until(lambda: job.events("best_model"), "the next one keeps it")
        replaced(job, kill(job, "master"))
        job.finish()
        # The first pass had seen no fault: each record was in its model exactly once.
        (mark,) = [one["best"] for one in job.checkpoints() if one.get("best")]
        assert (mark["evaluation"], mark["value"]) == (1, 2.0)
        assert len(job.events("best_model")) == 1
        with np.load(cluster.job_dir(job.id) / "artifacts" / "best" / "table-0.npz") as table:
            assert table["vectors"].ravel().tolist() == [1.0] * job.records
        job.nothing_lost(most_again=job.in_flight(2))
        nothing_left(job)


@pytest.mark.slow
@pytest.mark.parametrize("name", OF_GROUPS)
def test_a_group_outlives_a_death_at_each_of_its_failpoints(cluster: Cluster, armory: Path, name: str) -> None:
    digits = cluster.directory / "digits"
    if not digits.exists():
        cluster.cli("data", "generate", "digits", str(digits))
    model = ("--model_zoo", str(EXAMPLES / "digits" / "zoo"), "--model_def", "digits.forward")
    strategy = (
        "--distribution_strategy",
        "AllReduceStrategy",
        "--microbatches",
        "4",
        "--num_epochs",
        "10",
        "--minibatch_size",
        "256",
    )
    fired = arm(armory, name, "kill@20")
    job = cluster.wait(
        cluster.submit(*model, *strategy, "--training_data", str(digits / "train"), "--num_workers", "2")
    )
    assert fired.exists(), f"void: nothing came by {name}"
    assert job["state"] == "SUCCEEDED", job.get("error")
    audit = job["status"]["audit"]
    assert (audit["state"], audit["duplicates"]) == ("passed", 0)
    assert audit["planned"] == audit["committed"] == job["status"]["progress"]["records_total"] > 0

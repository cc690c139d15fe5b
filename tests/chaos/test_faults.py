"""Every process is killed or stopped under a running job: it succeeds, no record is lost, nothing is left behind."""

from __future__ import annotations

import json
from pathlib import Path

import psutil
import pytest

from tests.chaos.counting import counting_job
from tests.chaos.faults import VICTIMS, kill, nothing_left, processes_of, replaced, stop_for
from tests.e2e.local_cluster import Cluster, user_environment
from tests.fakes.frameworks import NEEDS_TORCH

pytestmark = [pytest.mark.chaos, pytest.mark.timeout(900)]
STOPPED_S = 2.0
UP = ("up", "--port", "0", "--slots", "3", "--policy", "fair", "--detach")


@pytest.mark.rotates(turns=3, place=1)
def test_without_faults_every_record_counts_once_a_pass(cluster: Cluster) -> None:
    with counting_job(cluster, "calm", epochs=2) as job:
        job.trains()
        job.finish()
        job.nothing_lost(most_again=0)
        nothing_left(job)


@pytest.mark.parametrize(
    ("name", "victims"),
    [
        ("own", ("worker", "ps", "master", "zygote")),
        ("house", ("redis", "api", "postgres", "scheduler", "agent")),
    ],
)
@pytest.mark.rotates(turns=4)
def test_one_job_outlives_one_fault_after_the_other(cluster: Cluster, name: str, victims: tuple[str, ...]) -> None:
    with counting_job(cluster, name, epochs=20) as job:
        for victim in victims:
            job.trains_on_after_a_checkpoint() if victim in ("ps", "agent") else job.trains()
            replaced(job, kill(job, victim))
        job.trains()
        job.finish()
        job.nothing_lost(most_again=job.in_flight(len(victims)))
        nothing_left(job)


@NEEDS_TORCH
@pytest.mark.slow
def test_a_torch_job_outlives_its_processes(cluster: Cluster) -> None:
    with counting_job(cluster, "own-torch", epochs=20, framework="torch") as job:
        for victim in ("worker", "ps", "master", "zygote"):
            job.trains_on_after_a_checkpoint() if victim == "ps" else job.trains()
            replaced(job, kill(job, victim))
        job.trains()
        job.finish()
        job.nothing_lost(most_again=job.in_flight(4))
        nothing_left(job)


@pytest.mark.slow
def test_servers_of_a_job_that_began_with_another_ones_checkpoint_train_on_as_theirs_says(cluster: Cluster) -> None:
    """They go back to that, or to one that was taken before any worker had said at what rate this job trains."""
    with counting_job(cluster, "begun-with", epochs=1, rate=100) as first:
        first.finish()
    begins = (
        *("--checkpoint_dir_for_init", str(cluster.job_dir(first.id) / "checkpoints")),
        *("--checkpoint_steps", "100000"),
    )
    with counting_job(cluster, "begins", *begins, epochs=3) as job:
        job.trains()
        replaced(job, kill(job, "ps"))
        job.trains()
        job.finish()
        for name, counts in job.counts().items():
            own = counts - 100
            assert own.min() >= job.epochs, name
            assert own.sum() <= job.records * job.epochs + job.in_flight(), name


@pytest.mark.rotates(turns=3, place=2)
def test_one_job_outlives_processes_that_stop_for_a_while(cluster: Cluster) -> None:
    with counting_job(cluster, "frozen", epochs=20) as job:
        for victim in ("worker", "ps", "master"):
            job.trains()
            stop_for(job, victim, STOPPED_S)
        job.trains()
        job.finish()
        job.nothing_lost(most_again=job.in_flight(3))
        nothing_left(job)


@pytest.mark.slow
@pytest.mark.parametrize("victim", VICTIMS)
def test_a_job_outlives_each_process(cluster: Cluster, victim: str) -> None:
    with counting_job(cluster, f"without-{victim}", epochs=12) as job:
        job.trains_on_after_a_checkpoint()
        replaced(job, kill(job, victim))
        job.trains()
        job.finish()
        job.nothing_lost(most_again=job.in_flight(2))
        nothing_left(job)


@pytest.mark.slow
@pytest.mark.parametrize("seconds", [5.0, 45.0])
@pytest.mark.parametrize("victim", ["worker", "ps", "master"])
def test_a_job_outlives_a_process_that_stops(cluster: Cluster, victim: str, seconds: float) -> None:
    with counting_job(cluster, f"frozen-{victim}-{seconds:.0f}", epochs=30) as job:
        job.trains_on_after_a_checkpoint()
        stop_for(job, victim, seconds)
        job.trains()
        job.finish()
        job.nothing_lost(most_again=job.in_flight(2))
        nothing_left(job)


@pytest.mark.slow
def test_a_job_outlives_the_whole_cluster(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, user_environment(tmp_path))
    cluster.cli(*UP, timeout=240)
    try:
        with counting_job(cluster, "all", epochs=12) as job:
            job.trains_on_after_a_checkpoint()
            supervisor = psutil.Process(json.loads((cluster.data_dir / "cluster.json").read_text())["pid"])
            before = processes_of(job)
            assert before and job.running(), "void: the job did not run"
            supervisor.kill()
            _, alive = psutil.wait_procs(before, timeout=60)
            assert alive == [], "the processes of a dead supervisor end with it"
            cluster.cli(*UP, timeout=240)
            job.trains()
            job.finish()
            job.nothing_lost(most_again=job.in_flight(2))
            nothing_left(job)
    finally:
        cluster.cli("down", timeout=120)

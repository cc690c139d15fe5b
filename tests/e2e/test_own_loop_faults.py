"""Scripts with training loops of their own under faults: the model has each record once for each pass, as without."""

from __future__ import annotations

import contextlib
import json
import signal
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.local_cluster import Cluster
from tests.fakes.frameworks import HAS_TORCH

if not HAS_TORCH:
    pytest.skip("PyTorch is not installed", allow_module_level=True)
import torch

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.rotates(turns=3, place=1)]
SCRIPT = str(Path(__file__).parent / "scripts" / "counting_loop.py")
RECORDS, EPOCHS, UPDATE, MICROBATCHES = 1024, 8, 64, 4
SETTINGS = (
    *("--minibatch_size", str(UPDATE), "--microbatches", str(MICROBATCHES), "--num_minibatches_per_task", "2"),
    *("--num_epochs", str(EPOCHS)),
)
SLOW, FAST = 0.1, 0.0
"""Seconds a minibatch. A job is slow until its faults have hit it."""


@dataclass(frozen=True)
class ScriptJob:
    """A counting script on a cluster.

    Attributes:
        cluster: where it runs.
        id: of the job.
        pace: the file that holds its pace.
    """

    cluster: Cluster
    id: str
    pace: Path

    def done(self) -> int:
        """Records that count as done."""
        progress = (self.cluster.job(self.id).get("status") or {}).get("progress") or {}
        return int(progress.get("records_done") or 0)

    def trains(self, records: int = 256) -> None:
        """Waits until so many more records are done."""
        goal = self.done() + records
        _until(lambda: self.done() >= goal, f"{goal} records are done")
        assert goal < RECORDS * EPOCHS * 3 // 4, "void: the job is nearly over"

    def pid(self, role: str, index: int) -> int:
        """The process that has that place now; 0 for none."""
        launches = [one for one in self.cluster.launches(self.id) if (one["role"], one["index"]) == (role, index)]
        running = [(one["incarnation"], one["pid"]) for one in launches if one["state"] == "running"]
        return int(max(running, default=(0, 0))[1])

    def kill(self, role: str, *indexes: int) -> None:
        """Kills processes without a word, all before any can do anything for the others."""
        pids = [self.pid(role, index) for index in indexes]
        for signal_ in (signal.SIGSTOP, signal.SIGKILL):
            for pid in pids:
                psutil.Process(pid).send_signal(signal_)
        _until(lambda: not {self.pid(role, index) for index in indexes} & set(pids), "they are gone")

    def kill_and_wait(self, role: str, *indexes: int) -> None:
        """Kills processes, and waits until others took their places."""
        self.kill(role, *indexes)
        _until(lambda: all(self.pid(role, index) for index in indexes), f"others for {role} {indexes}")

    def finish(self, passed_over: int = 0) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
        """Lets it end; returns the job, which is exactly counted, and what its script saved."""
        self.pace.write_text(str(FAST))
        job = self.cluster.wait(self.id)
        state = "SUCCEEDED_WITH_SKIPS" if passed_over else "SUCCEEDED"
        assert job["state"] == state, json.dumps(job.get("error"), indent=1)
        progress, audit = job["status"]["progress"], job["status"]["audit"]
        assert progress["records_done"] == progress["records_total"] == RECORDS * EPOCHS
        assert audit["state"] == "passed", audit
        assert (audit["planned"], audit["skipped"]) == (RECORDS * EPOCHS, passed_over)
        assert audit["committed"] == RECORDS * EPOCHS - passed_over
        target = self.cluster.directory / f"{self.id}-artifacts"
        self.cluster.cli("jobs", "artifacts", self.id, "--download", str(target))
        return job, torch.load(next(target.rglob("found.pt")), weights_only=True)

    def events(self) -> list[str]:
        """Kinds of what was said of it."""
        with self.cluster.client() as client:
            return [event.kind for event in client.events(self.id)]


@contextlib.contextmanager
def script_job(cluster: Cluster, name: str, workers: int, *own: str) -> Iterator[ScriptJob]:
    """A counting script that was submitted and trains slowly; cancelled if the test leaves it before it ends."""
    pace = cluster.directory / f"{name}.pace"
    pace.write_text(str(SLOW))
    places = ("--min_workers", str(workers), "--max_workers", str(workers), "--job_name", name)
    started = cluster.cli(
        "run", "--detach", SCRIPT, *SETTINGS, "--checkpoint_steps", "8", *places, "--", *_arguments(pace), *own
    )
    job = ScriptJob(cluster, started.stdout.split()[-1], pace)
    try:
        yield job
    finally:
        with cluster.client() as client:
            if client.get(job.id)["state"] not in {"SUCCEEDED", "SUCCEEDED_WITH_SKIPS", "FAILED", "CANCELLED"}:
                client.cancel(job.id)


@pytest.fixture(scope="module")
def undisturbed(cluster: Cluster) -> dict[str, torch.Tensor]:
    """What the script saves that nothing happens to."""
    _, found = _alone(cluster, "alone")
    assert found["counts"].tolist() == [EPOCHS] * RECORDS
    assert sorted(found["seen"].tolist()) == sorted([*range(RECORDS)] * EPOCHS)
    return found


def test_a_script_outlives_its_master_and_a_drained_worker(cluster: Cluster) -> None:
    with script_job(cluster, "loop-headless", 2) as job:
        job.trains(64)
        job.kill_and_wait("master", 0)
        job.trains(64)
        with cluster.client() as client:
            client.scale(job.id, min_workers=1, max_workers=1)
        _until(lambda: not job.pid("worker", 1), "a worker is drained")
        _, found = job.finish()
        assert found["counts"].tolist() == [EPOCHS] * RECORDS
        assert "worker_lost" not in job.events()
        assert sum(one["role"] == "worker" for one in cluster.launches(job.id)) == 2, "the workers went on"


@pytest.mark.parametrize("workers", [pytest.param(1, marks=pytest.mark.slow), 2])
def test_batches_without_a_step_are_counted_as_in_one_process(cluster: Cluster, workers: int) -> None:
    """Some that the loop goes on from, some whose step a scaler leaves out, and a minibatch that has nothing else."""
    own = ("--bad", *map(str, range(9, 1024, 19)), "--overflow", *map(str, range(50, 1024, 160)))
    alone, expected = _alone(cluster, "without-a-step", *own)
    passed_over = sum(one["records"] for one in alone["skipped"])
    assert passed_over > RECORDS * EPOCHS // 4
    with script_job(cluster, f"loop-skips-{workers}", workers, *own) as job:
        job.pace.write_text(str(FAST))
        state, found = job.finish(passed_over=passed_over)
    for name in expected.keys() - {"seen"}:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=0, msg=name)
    assert state["status"]["skipped"] == alone["skipped"]


@pytest.mark.slow
def test_a_script_is_suspended_and_goes_on_where_it_was(
    cluster: Cluster, undisturbed: dict[str, torch.Tensor]
) -> None:
    with script_job(cluster, "loop-pause", 2) as job:
        job.trains()
        job.kill_and_wait("master", 0)
        job.trains(512)
        cluster.cli("jobs", "suspend", job.id)
        _until(lambda: cluster.job(job.id)["state"] == "SUSPENDED", "it is suspended")
        done = job.done()
        assert done >= 512
        cluster.cli("jobs", "resume", job.id)
        job.trains()
        _, found = job.finish()
        _check_same(undisturbed, found)


@pytest.mark.slow
def test_a_script_all_of_whose_workers_died_goes_on_from_the_checkpoint(
    cluster: Cluster, undisturbed: dict[str, torch.Tensor]
) -> None:
    with script_job(cluster, "loop-wiped", 2) as job:
        _until(lambda: any(cluster.job_dir(job.id).glob("checkpoints/*/manifest.json")), "there is a checkpoint")
        job.trains(128)
        job.kill_and_wait("worker", 0, 1)
        job.trains(128)
        _, found = job.finish()
        _check_same(undisturbed, found)
        assert "restored" in job.events()


@pytest.mark.slow
def test_workers_of_a_script_that_come_later_have_the_state_of_the_others(
    cluster: Cluster, undisturbed: dict[str, torch.Tensor]
) -> None:
    with script_job(cluster, "loop-grows", 1) as job:
        job.trains()
        cluster.cli("jobs", "scale", job.id, "--max-workers", "3", "--min-workers", "3")
        _until(lambda: job.pid("worker", 2) != 0, "two came")
        job.trains()
        job.kill("worker", 0)  # of those who came first nobody is left
        _, found = job.finish()
        _check_same(undisturbed, found)


@pytest.mark.slow
def test_what_a_script_only_commits_is_counted_once_too(cluster: Cluster) -> None:
    with script_job(cluster, "loop-commits", 2, "--commit_only") as job:
        job.trains()
        job.kill_and_wait("master", 0)
        job.trains()
        job.kill_and_wait("worker", 0, 1)
        job.trains()
        _, found = job.finish()
        assert 0 < len(found["seen"]) <= RECORDS * EPOCHS


def _alone(cluster: Cluster, name: str, *own: str) -> tuple[dict[str, Any], dict[str, torch.Tensor]]:
    """The last report of the script in one process, and what it saved."""
    pace, output = cluster.directory / f"{name}.pace", cluster.directory / name
    pace.write_text(str(FAST))
    one_thread = replace(cluster, environment={**cluster.environment, "OMP_NUM_THREADS": "1"})
    arguments = ("--output", str(output), "-o", "json", "--", *_arguments(pace), *own)
    done = json.loads(one_thread.cli("run", "--local", SCRIPT, *SETTINGS, *arguments).stdout)
    return done, torch.load(output / "found.pt", weights_only=True)


def _arguments(pace: Path) -> tuple[str, ...]:
    return ("--records", str(RECORDS), "--batch", str(UPDATE), "--pace", str(pace))


def _check_same(expected: dict[str, torch.Tensor], found: dict[str, torch.Tensor]) -> None:
    assert found["counts"].tolist() == [EPOCHS] * RECORDS
    for name in expected.keys() - {"seen"}:
        torch.testing.assert_close(found[name], expected[name], rtol=0, atol=0, msg=name)


def _until(condition: Callable[[], bool], what: str, seconds: float = 300.0) -> None:
    end = time.monotonic() + seconds
    while not condition():
        assert time.monotonic() < end, what
        time.sleep(0.1)  # a poll of another process

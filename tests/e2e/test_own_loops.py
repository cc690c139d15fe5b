"""Scripts with training loops of their own, the way a user runs them: counted exactly, whoever comes and goes."""

from __future__ import annotations

import signal
import time
from dataclasses import replace
from pathlib import Path
from typing import Any

import psutil
import pytest

from tests.e2e.local_cluster import EXAMPLES, Cluster
from tests.fakes.frameworks import HAS_TORCH

if not HAS_TORCH:
    pytest.skip("PyTorch is not installed", allow_module_level=True)
import torch
from safetensors.torch import load_file

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(900), pytest.mark.rotates(turns=3, place=0)]
SCRIPT = str(EXAMPLES / "own_loop_torch" / "train.py")
SETTINGS = ("--minibatch_size", "64", "--microbatches", "4", "--num_epochs", "8")


def test_a_killed_worker_changes_neither_the_counts_nor_the_model(cluster: Cluster, digits: Path) -> None:
    data = ("--training_data", str(digits / "train"))
    own = ("--", "--lr", "0.002", "--validation_data", str(digits / "validation"))
    local = cluster.directory / "own-local"
    # As many threads as each worker has here: the last bits of sums depend on them.
    one_thread = replace(cluster, environment={**cluster.environment, "OMP_NUM_THREADS": "1"})
    alone = one_thread.cli("run", "--local", SCRIPT, *SETTINGS, *data, "--output", str(local), *own)
    assert float(alone.stderr.rpartition("accuracy ")[2].split()[0]) >= 0.9, alone.stderr

    workers = ("--num_workers", "3", "--min_workers", "3")
    started = cluster.cli("run", "--detach", SCRIPT, *SETTINGS, *data, *workers, "--job_name", "own-loop", *own)
    job_id = started.stdout.split()[-1]
    _until_trained(cluster, job_id, 3000)
    victim = next(one["pid"] for one in cluster.launches(job_id) if (one["role"], one["index"]) == ("worker", 1))
    psutil.Process(victim).send_signal(signal.SIGKILL)
    job = cluster.wait(job_id)

    assert job["state"] == "SUCCEEDED", job
    progress, audit = job["status"]["progress"], job["status"]["audit"]
    assert progress["records_done"] == progress["records_total"] > 0
    assert audit["state"] == "passed", audit
    assert audit["planned"] == audit["committed"] == progress["records_total"]
    assert audit["duplicates"] == 0
    with cluster.client() as client:
        assert [event.kind for event in client.events(job_id)].count("worker_lost") == 1
    target = cluster.directory / "own-artifacts"
    cluster.cli("jobs", "artifacts", job_id, "--download", str(target))
    found = load_file(next(target.rglob("model.safetensors")))
    expected = load_file(local / "model.safetensors")
    for name, values in expected.items():
        torch.testing.assert_close(found[name], values, rtol=0, atol=0, msg=name)


def _until_trained(cluster: Cluster, job_id: str, records: int) -> None:
    end = time.monotonic() + 300
    while _done(cluster.job(job_id)) < records:
        assert time.monotonic() < end, "it does not train"
        time.sleep(0.1)  # a poll of another process


def _done(job: dict[str, Any]) -> int:
    return int(((job.get("status") or {}).get("progress") or {}).get("records_done") or 0)

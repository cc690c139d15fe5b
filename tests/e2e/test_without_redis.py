"""A cluster on a machine that has no Redis program: the one in memory carries whole jobs."""

from __future__ import annotations

import json
from pathlib import Path

import pytest

from tests.e2e.local_cluster import EXAMPLES, Cluster, user_environment
from tests.e2e.traces import applied_records, read_traces

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


def test_a_job_trains_on_the_redis_in_memory(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, user_environment(tmp_path))
    data = tmp_path / "digits"
    cluster.cli("data", "generate", "digits", str(data))
    flags = ("--port", "0", "--slots", "2", "--policy", "fair", "--redis-url", "memory://")
    try:
        up = cluster.cli("up", *flags, "--detach", timeout=240)
        assert "warning: redis: Redis is the one in memory (fakeredis): not durable" in up.stderr
        job = cluster.wait(
            cluster.submit(
                *("--model_zoo", str(EXAMPLES / "digits" / "zoo"), "--model_def", "digits.forward"),
                *("--training_data", str(data / "train"), "--validation_data", str(data / "validation")),
                *("--minibatch_size", "32", "--num_epochs", "3", "--max_workers", "2"),
            )
        )
    finally:
        cluster.cli("down", timeout=120)
    assert job["state"] == "SUCCEEDED", json.dumps(job.get("error"), indent=1)
    progress = job["status"]["progress"]
    assert applied_records(read_traces(cluster.job_dir(job["id"]))) == progress["records_total"] > 0

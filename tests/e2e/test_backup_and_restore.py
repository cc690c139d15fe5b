"""What the user is promised of a backup: after the loss of everything, jobs go on from where they were saved."""

from __future__ import annotations

import json
import shutil
from pathlib import Path

import pytest

from tests.chaos.counting import counting_job, until
from tests.e2e.local_cluster import Cluster, user_environment

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(600)]


def test_a_suspended_job_goes_on_after_everything_was_lost(tmp_path: Path) -> None:
    of_another_server = {"PGPORT": "1", "PGSSLMODE": "verify-full"}
    cluster = Cluster(tmp_path, user_environment(tmp_path) | of_another_server)
    up = ("up", "--port", "0", "--slots", "2", "--policy", "fair", "--detach")
    file = str(tmp_path / "saved.backup")
    cluster.cli(*up, timeout=240)
    try:
        with counting_job(cluster, "precious", epochs=2) as job:
            job.trains()
            cluster.cli("jobs", "suspend", job.id)
            until(lambda: cluster.job(job.id)["state"] == "SUSPENDED", "the job is suspended")
            before = json.loads(cluster.cli("jobs", "list", "--json").stdout)
            cluster.cli("backup", file, "--files", timeout=120)
            refused = cluster.cli("restore", file, "--force", timeout=120, expect=None)
            assert refused.returncode != 0
            assert "elasticdl down" in refused.stderr
            cluster.cli("down", timeout=180)
            shutil.rmtree(cluster.data_dir)
            cluster.environment["ELASTICDL_DATA_DIR"] = str(tmp_path / "another")
            cluster.cli("restore", file, timeout=240)
            cluster.cli(*up, timeout=240)
            assert json.loads(cluster.cli("jobs", "list", "--json").stdout) == before
            cluster.cli("jobs", "resume", job.id)
            job.finish()
            job.nothing_lost(most_again=0)
        cluster.cli("down", timeout=180)
        again = cluster.cli("restore", file, timeout=240, expect=None)
        assert again.returncode != 0
        assert "--force" in again.stderr
    finally:
        cluster.cli("down", timeout=180)

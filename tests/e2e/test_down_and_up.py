"""What the user is promised of `elasticdl down`: jobs that ran go on after the next `up`, from where they were.

Also where the data directory was moved meanwhile.
"""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.chaos.counting import counting_job
from tests.e2e.local_cluster import Cluster, user_environment

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(400)]


def test_a_job_goes_on_after_down_and_up_and_repeats_nothing(tmp_path: Path) -> None:
    cluster = Cluster(tmp_path, user_environment(tmp_path))
    up = ("up", "--port", "0", "--slots", "2", "--policy", "fair", "--detach")
    cluster.cli(*up, timeout=240)
    try:
        with counting_job(cluster, "overnight", epochs=3) as job:
            job.trains()
            cluster.cli("down", timeout=180)
            saved = job.checkpoints()[-1]
            assert saved["kind"] == "suspend"
            assert saved["records_done"] > 0
            cluster.move_to("cluster elsewhere")
            assert "paths follow" in cluster.cli(*up, timeout=240).stdout
            job.trains()
            job.finish()
            job.nothing_lost(most_again=0)
            assert job.events("rolled_back") == []
            assert job.events("restored") == [
                f"the parameter servers hold the checkpoint of version {saved['version']}"
            ]
    finally:
        cluster.cli("down", timeout=180)

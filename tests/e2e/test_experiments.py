"""The experiments run to their end at the smallest size, and no job fails or loses a record."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.e2e.local_cluster import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

TARGETS = {
    "two_jobs": {"two_jobs_makespan_s", "second_job_wait_s"},
    "colocation": {"colocation_mean", "colocation_p5", "service_wait_s", "failed_jobs", "lost_records"},
    "elastic_accuracy": {"elastic_auc_wide_deep", "elastic_auc_xdeepfm", "elastic_lost_records"},
}
EXACT = {"failed_jobs", "lost_records", "elastic_lost_records"}
"""Those that hold at any size and on any machine."""


@pytest.mark.parametrize("name", sorted(TARGETS))
def test_an_experiment_at_its_smallest(name: str) -> None:
    done = subprocess.run(
        [sys.executable, "-m", f"experiments.{name}", "--quick"],
        cwd=ROOT,
        capture_output=True,
        text=True,
        timeout=1700,
        check=False,
    )
    assert done.returncode == 0, done.stderr[-4000:]
    targets = {line.split()[1]: line.split()[-1] for line in done.stdout.splitlines() if line.startswith("TARGET ")}
    assert set(targets) == TARGETS[name]
    assert {targets[target] for target in TARGETS[name] & EXACT} <= {"met"}, done.stdout[-4000:]

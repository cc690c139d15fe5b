"""The experiments run to their end at the smallest size, and no job fails or loses a record."""

from __future__ import annotations

import subprocess
import sys

import pytest

from tests.e2e.local_cluster import ROOT

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]

KEPT = {
    "two_jobs": {"second_job_wait_s"},
    "colocation": {"failed_jobs", "lost_records", "service_wait_s"},
    "elastic_accuracy": {"elastic_lost_records"},
}
"""Targets that hold at any size; the others need the experiments' full length."""


@pytest.mark.parametrize("name", sorted(KEPT))
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
    assert {targets.get(target) for target in KEPT[name]} == {"met"}, done.stdout[-4000:]

"""The same worker with Keras 2 (``TF_USE_LEGACY_KERAS=1``)."""

from __future__ import annotations

import asyncio
import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from elasticdl_core.job import JobSpec
from tests.unit.worker.conftest import ZOO, write_clicks

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
ROOT = Path(__file__).parents[3]


async def test_keras_2_trains_locally_and_on_servers_alike(tmp_path: Path) -> None:
    spec = JobSpec.from_mapping(
        {
            "model_zoo": str(ZOO),
            "model_def": "deepfm.custom_model",
            "training_data": str(write_clicks(tmp_path / "train.csv", 320)),
            "minibatch_size": 32,
            "num_minibatches_per_task": 4,
            "shuffle": False,
            "use_async": False,
        }
    )
    run = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-m", "tests.integration.worker.legacy_run", json.dumps(spec.to_mapping())],
        capture_output=True,
        text=True,
        timeout=170,
        check=False,
        cwd=ROOT,
        env={**os.environ, "TF_USE_LEGACY_KERAS": "1"},
    )
    assert run.returncode == 0, run.stderr[-4000:]
    result = json.loads(run.stdout.splitlines()[-1])
    assert result["keras"].startswith("2.")
    assert result["difference"] < 1e-5
    assert result["served"] < 1e-5
    assert result["tables"].keys() == {"weights", "vectors"}
    assert all(result["tables"].values())
    assert result["later"] == {"servers": 0, "alone": 0}
    ids = result["tables"]["vectors"]
    assert result["original"] == {"custom_model": [ids, ids], "closed": [ids, ids]}

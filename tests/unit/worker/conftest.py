"""Data and job specifications for the worker's tests; TensorFlow is imported once, in this process."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.job import JobSpec

ZOO = Path(__file__).parent / "zoo"
FIELDS, IDS = 3, 1000


def write_clicks(path: Path, records: int, seed: int = 0) -> Path:
    """Clicks whose odds are a sum of a weight for each id."""
    weights = np.random.default_rng(7).normal(0, 1.5, IDS)
    rng = np.random.default_rng(seed)
    ids = rng.integers(0, IDS, (records, FIELDS)) ** 2 // IDS
    clicks = rng.random(records) < 1 / (1 + np.exp(-weights[ids].sum(1)))
    lines = [",".join(map(str, [int(click), *row])) for click, row in zip(clicks, ids.tolist(), strict=True)]
    path.write_text("\n".join(lines) + "\n")
    return path


@pytest.fixture(scope="session")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clicks(tmp_path_factory.mktemp("clicks") / "train.csv", 600)


@pytest.fixture(scope="session")
def more_clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clicks(tmp_path_factory.mktemp("clicks") / "validation.csv", 200, seed=1)


@pytest.fixture
def make_spec(clicks: Path) -> Any:
    def make(**fields: Any) -> JobSpec:
        base: dict[str, Any] = {
            "model_zoo": str(ZOO),
            "model_def": "deepfm.custom_model",
            "training_data": str(clicks),
            "minibatch_size": 32,
            "num_minibatches_per_task": 4,
            "shuffle": False,
            "export_formats": "keras",  # a SavedModel takes a second, more than most of these jobs
        }
        return JobSpec.from_mapping(base | fields)

    return make

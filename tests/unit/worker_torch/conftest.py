"""Data and job specifications for the tests of the PyTorch trainer; all of them need PyTorch."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.job import JobSpec
from tests.fakes.frameworks import HAS_TORCH
from tests.fakes.group_steps import RECORDS
from tests.unit.worker.conftest import write_clicks

collect_ignore_glob = [] if HAS_TORCH else ["test_*.py"]
ZOO = Path(__file__).parent / "zoo"


@pytest.fixture(scope="session")
def clicks(tmp_path_factory: pytest.TempPathFactory) -> Path:
    return write_clicks(tmp_path_factory.mktemp("clicks") / "train.csv", 600)


@pytest.fixture(scope="session")
def values(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """Rows of four numbers, for the models of ``zoo/grouped.py`` and ``zoo/odd.py``."""
    numbers = np.random.default_rng(5).normal(size=(RECORDS, 4)).round(4)
    path = tmp_path_factory.mktemp("values") / "values.csv"
    path.write_text("\n".join(",".join(map(str, row)) for row in numbers.tolist()) + "\n")
    return path


@pytest.fixture
def make_spec(clicks: Path) -> Any:
    def make(**fields: Any) -> JobSpec:
        base: dict[str, Any] = {
            "model_zoo": str(ZOO),
            "model_def": "clicks.deepfm",
            "training_data": str(clicks),
            "data_reader_params": {"with_header": False},
            "minibatch_size": 32,
            "num_minibatches_per_task": 4,
            "shuffle": False,
            "embedding_threshold_bytes": 0,
            "export_formats": "safetensors",  # a program takes a second, more than most of these jobs
        }
        return JobSpec.from_mapping(base | fields)

    return make

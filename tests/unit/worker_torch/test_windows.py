"""Windows of rows as both frameworks get them, and the example that forecasts from them."""

from __future__ import annotations

import runpy
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.data import Shard, create_data_reader
from elasticdl_core.job import JobSpec
from elasticdl_worker.local import run_local
from elasticdl_worker.own_loop.records import ScriptRecords
from elasticdl_worker.trainers.torch.input.pipeline import TorchInputPipeline
from elasticdl_worker.user_code import ModelModule
from tests.e2e.local_cluster import EXAMPLES

pytestmark = pytest.mark.unit
PARAMS = {"window": 3, "stride": 2}


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    path = tmp_path / "rows.csv"
    path.write_text("day,sold\n" + "".join(f"{day},{day * day}\n" for day in range(8)))
    return path


def test_a_window_is_a_list_of_each_column(rows: Path) -> None:
    def feed(dataset: Any, mode: str, metadata: Any) -> Any:
        return ((np.array(list(map(float, w["sold"]))), float(w["day"][-1])) for w in dataset)

    reader = create_data_reader(str(rows), None, PARAMS)
    pipeline = TorchInputPipeline(reader, ModelModule(rows, (), lambda: None, feed=feed), "training", 2)
    batches = list(pipeline.minibatches(Shard(str(rows), 0, 3)))
    found = [value.tolist() for batch in batches for value in batch.features]
    assert found == [[0, 1, 4], [4, 9, 16], [16, 25, 36]]
    assert [float(value) for batch in batches for value in batch.labels] == [2, 4, 6]


def test_scripts_get_windows_too(rows: Path) -> None:
    spec = JobSpec.from_mapping(
        {"model_zoo": "z", "model_def": "m.forward", "training_data": str(rows), "data_reader_params": PARAMS}
    )
    found, _ = ScriptRecords(spec, rows.parent, None).read(Shard(str(rows), 1, 2), None)
    assert found == [{"day": ["2", "3", "4"], "sold": ["4", "9", "16"]}]


def test_the_example_forecasts_better_than_the_week_before(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(sys, "argv", ["make_series.py", str(tmp_path), "4", "240"])
    runpy.run_path(str(EXAMPLES / "forecast_torch" / "make_series.py"), run_name="__main__")
    events: list[dict[str, Any]] = []
    fields = {
        "model_zoo": str(EXAMPLES / "forecast_torch" / "zoo"), "model_def": "forecast.forward",
        "training_data": str(tmp_path / "train"), "validation_data": str(tmp_path / "validation"), "num_epochs": 6,
        "minibatch_size": 16, "data_reader_params": {"window": 29, "stride": 1, "group_by": "shop"},
    }  # fmt: skip
    run_local(JobSpec.from_mapping(fields), tmp_path / "out", events.append)
    table = np.loadtxt(tmp_path / "validation" / "sales.csv", delimiter=",", skiprows=1, usecols=2).reshape(60, 4)
    naive = float(np.abs(table[28:] - table[21:-7]).mean())
    (found,) = (event["metrics"]["mae"] for event in events[-1:] if "metrics" in event)
    assert found < naive, f"the week before: {naive:.2f}"

"""``predict --output predictions.csv``: one file, in the order of the records."""

from __future__ import annotations

import hashlib
from pathlib import Path

import pytest

from elasticdl.cli.one_prediction_file import join_predictions
from elasticdl_core.errors import DataError
from tests.fakes.api import FakeApi, make_job, sse
from tests.unit.cli.conftest import Cli

pytestmark = pytest.mark.unit
HEAD = "file,row,predictions\n"
PARTS = {
    "b.csv-00000000-000000000000-000000000002.csv": f"{HEAD}/data/b.csv,0,0.5\n/data/b.csv,1,0.25\n",
    "a.csv-ffffffff-000000000010-000000000011.csv": f'{HEAD}"/data/a.csv",10,"x\ny"\n',
    "a.csv-ffffffff-000000000000-000000000010.csv": f"{HEAD}/data/a.csv,0,1\n",
}
JOINED = f'{HEAD}/data/a.csv,0,1\n"/data/a.csv",10,"x\ny"\n/data/b.csv,0,0.5\n/data/b.csv,1,0.25\n'


def test_parts_are_joined_in_the_order_of_files_and_records(tmp_path: Path) -> None:
    for name, text in PARTS.items():
        (tmp_path / name).write_text(text)
    target = tmp_path / "new" / "predictions.csv"
    assert join_predictions(tmp_path.iterdir(), target) == 3
    assert target.read_text() == JOINED
    (tmp_path / "c.csv-00000000-000000000000-000000000001.csv").write_text("file,row,a,b\n/data/c.csv,0,1,2\n")
    with pytest.raises(DataError, match="has the columns file,row,a,b"):
        join_predictions(tmp_path.iterdir(), target)
    assert target.read_text() == JOINED


def test_predictions_of_a_job_become_the_file(api: FakeApi, cli: Cli, zoo: Path, tmp_path: Path) -> None:
    files = [
        {"name": name, "size": len(text), "sha256": hashlib.sha256(text.encode()).hexdigest()}
        for name, text in PARTS.items()
    ]
    api.on_end = {"digits-1": make_job("digits-1", state="SUCCEEDED", artifacts=files)}
    for name, text in PARTS.items():
        api.files["digits-1", name] = (text.encode(), "application/octet-stream")
    api.streams["digits-1"] = [[sse("end", {})]]
    predict = (
        "predict",
        "--model_zoo=zoo",
        "--model_def=digits.forward",
        "--prediction_data=data",
        "--job_name=digits",
    )
    predict += ("--checkpoint_dir_for_init=/c", "--output=out/predictions.csv")
    outcome = cli(*predict)
    assert outcome.code == 0, outcome.err
    asked = api.requests("POST", "/jobs")[-1].json()
    assert ("output" in asked, asked["output_format"]) == (False, "csv")
    assert (tmp_path / "out" / "predictions.csv").read_text() == JOINED
    assert f"predictions: {tmp_path / 'out' / 'predictions.csv'}" in outcome.err
    assert "leave --detach out" in cli(*predict, "--detach").err
    (tmp_path / "folder.csv").mkdir()
    assert "is a folder" in cli(*predict[:-1], "--output=folder.csv").err
    assert len(api.requests("POST", "/jobs")) == 1

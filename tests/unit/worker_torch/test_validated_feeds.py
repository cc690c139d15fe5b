"""All records of some data given to a module's own ``feed`` by ``elasticdl data validate``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from elasticdl.cli.data import app
from elasticdl.data.validation import Validation
from elasticdl_core.job import JobSpec
from elasticdl_worker.validating import run_feed

pytestmark = pytest.mark.unit
MODULE = """
import torch


def forward():
    return torch.nn.Linear(1, 1)


def loss(labels, predictions):
    return torch.nn.functional.mse_loss(predictions, labels)


def optimizer():
    return torch.optim.SGD


def feed(dataset, mode, metadata):
    for row in dataset:
        x = float(row["x"])
        if x < 0:
            raise ValueError("x is negative")
        yield torch.tensor([x]), torch.tensor([float(row["y"])])
"""


@pytest.fixture
def rows(tmp_path: Path) -> Path:
    """A table of which the feed cannot take two records; a third is damaged."""
    (tmp_path / "zoo").mkdir()
    (tmp_path / "zoo" / "line.py").write_text(MODULE)
    lines = [f"{number},{number}" for number in range(1500)]
    lines[700], lines[1200], lines[1300] = "oops,1", "-5,1", "1,2,3"
    path = tmp_path / "rows.csv"
    path.write_text("x,y\n" + "\n".join(lines) + "\n")
    return path


def test_each_record_that_feed_cannot_take_is_named(rows: Path) -> None:
    given = {"model_zoo": str(rows.parent / "zoo"), "model_def": "line.forward", "training_data": str(rows)}
    spec = JobSpec.from_mapping({**given, "data_reader_params": {"on_corrupt": "skip"}})
    events: list[dict[str, object]] = []
    for most in (20, 1):
        run_feed(spec, most, lambda event: events.append(dict(event)))
    problems = [str(event["message"]) for event in events if event["event"] == "problem"]
    assert len(problems) == 3
    assert "record 700" in problems[0] and "could not convert string to float: 'oops'" in problems[0]
    assert "record 1200" in problems[1] and "x is negative" in problems[1]
    done = [event for event in events if event["event"] == "done"]
    assert done[0] == {
        "event": "done", "kind": "csv", "records": 1500, "checked": 1497, "skipped": 1, "complete": True
    }  # fmt: skip
    assert done[1]["complete"] is False


def test_the_command_runs_the_feed_in_a_process_of_its_own(rows: Path) -> None:
    model = ["--model_zoo", str(rows.parent / "zoo"), "--model_def", "line.forward"]
    result = CliRunner().invoke(app, ["validate", str(rows), *model, "--most", "2", "--json"])
    assert result.exit_code == 1, result.output
    found = Validation(**json.loads(result.stdout))
    assert (len(found.problems), found.complete) == (2, False)
    result = CliRunner().invoke(app, ["validate", str(rows), *model[:3], "line.other"])
    assert result.exit_code == 1
    assert "line.py does not define 'other'" in result.output

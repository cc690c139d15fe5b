"""An export gives those who have no ElasticDL a model that works."""

from __future__ import annotations

import contextlib
import json
import os
import re
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch

from elasticdl_core.model import InitializerSpec, TableSpec
from elasticdl_runtime.initializers import first_rows
from elasticdl_worker.local import run_local
from elasticdl_worker.trainers.torch.export.initial_rows import TorchInitialRows

pytestmark = pytest.mark.unit


LOADER = """
import sys
import torch
import safetensors.torch

folder = sys.argv[1]
program = torch.export.load(f"{folder}/model.pt2").module()
ids = torch.tensor([[1, 2, 3], [4, 5, 6], [999, 0, 17], [1, 1, 1], [700, 2, 3]])
print(program(ids).tolist())
print(sorted(safetensors.torch.load_file(f"{folder}/model.safetensors")))
assert not any(name.startswith("elasticdl") for name in sys.modules)
"""


@pytest.mark.timeout(400)  # another process imports PyTorch, on a loaded machine
def test_the_loader_of_the_document_works_without_elasticdl(make_spec: Any, tmp_path: Path) -> None:
    """The lines of docs/pytorch.md as they stand; what they leave to the reader is defined before them."""
    document = (Path(__file__).parents[3] / "docs" / "pytorch.md").read_text()
    (lines,) = re.findall(r"Without ElasticDL:\n\n```python\n(.*?)```", document, re.DOTALL)
    data = tmp_path / "values.csv"
    data.write_text("0.5,1.0,-2.0,0.25\n" * 64)
    fields = {"training_data": str(data), "model_def": "grouped.net", "max_steps": 1, "export_formats": "auto"}
    run_local(make_spec(**fields), tmp_path / "export", lambda event: None)
    before = "import torch\nfrom grouped import Net\nfeatures = torch.randn(5, 3)\n"
    after = (
        "import sys\nassert torch.allclose(predictions, model.eval()(features), atol=1e-5)\n"
        "assert not any(name.startswith('elasticdl') for name in sys.modules)\n"
    )
    done = subprocess.run(
        [sys.executable, "-c", before + lines + after],
        cwd=tmp_path / "export",
        env={**os.environ, "PYTHONPATH": str(Path(__file__).parent / "zoo")},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert done.returncode == 0, done.stderr


CALLED = """
import functools
import torch
from torch import nn

class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.layer = nn.Linear(1, 1)

    def forward(self, ARGUMENTS):
        return self.layer(SUM)

def forward():
    return Net()

def loss(labels, predictions):
    return (predictions - labels).square().mean()

def optimizer():
    return functools.partial(torch.optim.SGD, lr=0.1)

def feed(dataset, mode, metadata):
    for record in dataset:
        a, b = (torch.tensor([float(one)]) for one in record.values())
        yield GIVEN, a - b
"""


@pytest.mark.parametrize(
    ("arguments", "summed", "given"),
    [
        ("values", "values", "a + b"),
        ("first, second", "first + second", "(a, b)"),
        ("first, second", "first + second", "{'second': b, 'first': a}"),
        ("pair", "pair['a'] + pair['b']", "{'a': a, 'b': b}"),
        ("pair", "pair[0] + pair[1]", "[a, b]"),
    ],
)
def test_the_note_of_an_export_says_how_its_program_is_called(
    make_spec: Any, tmp_path: Path, arguments: str, summed: str, given: str
) -> None:
    (tmp_path / "zoo").mkdir()
    source = CALLED.replace("ARGUMENTS", arguments).replace("SUM", summed).replace("GIVEN", given)
    (tmp_path / "zoo" / "called.py").write_text(source)
    (tmp_path / "values.csv").write_text("a,b\n" + "1.0,2.0\n" * 64)
    fields = {"model_zoo": str(tmp_path / "zoo"), "model_def": "called.forward", "max_steps": 1}
    data = {"training_data": str(tmp_path / "values.csv"), "validation_data": "", "prediction_data": ""}
    spec = make_spec(**fields, **data, data_reader_params={}, export_formats="pt2")
    run_local(spec, tmp_path / "export", lambda event: None)
    note = json.loads((tmp_path / "export" / "README.json").read_text())["formats"]["pt2"]
    file, _, call = note.partition(": ")
    a, b = torch.ones(5, 1), torch.zeros(5, 1)
    names = {"torch": torch, "features": eval(given, {"a": a, "b": b})}  # noqa: S307 - of this test
    with contextlib.chdir(tmp_path / "export"):
        assert file == "model.pt2"
        predictions = eval(call, names)  # noqa: S307 - what the note says
    assert predictions.shape == (5, 1)


@pytest.mark.rotates(turns=2)
@pytest.mark.timeout(400)  # another process imports PyTorch, on a loaded machine
@pytest.mark.parametrize("model", ["deepfm", "open_tables"])
def test_an_export_is_used_without_elasticdl(model: str, make_spec: Any, tmp_path: Path) -> None:
    spec = make_spec(model_def=f"clicks.{model}", prediction_data="", export_formats="auto")
    events: list[dict[str, Any]] = []
    run_local(spec, tmp_path, events.append)
    names = [Path(one["path"]).name for one in events[-1]["artifacts"]]
    assert {"README.json", "model.pt2", "model.safetensors"} <= set(names)
    done = subprocess.run(
        [sys.executable, "-c", LOADER, str(tmp_path)], capture_output=True, text=True, timeout=300, check=False
    )
    assert done.returncode == 0, done.stderr
    predictions = np.array(eval(done.stdout.splitlines()[0]))  # noqa: S307 - a list of numbers of this test
    assert predictions.shape == (5,)
    assert np.isfinite(predictions).all()


@pytest.mark.parametrize(
    ("kind", "params"),
    [("uniform", {}), ("normal", {"stddev": 2.0}), ("truncated_normal", {}), ("constant", {"value": 3.0})],
)
def test_a_program_begins_rows_as_the_parameter_servers_do(kind: str, params: dict[str, float]) -> None:
    table = TableSpec("t", 5, InitializerSpec(kind, params, seed=77))
    ids = np.array([0, 1, -5, 2**62, 123456789012], np.int64)
    rows = TorchInitialRows(table)(torch.from_numpy(ids)).numpy()
    np.testing.assert_allclose(rows, first_rows(table, ids), rtol=1e-6)

"""A model that is built for an export does not take the place of the one in use, wherever a module keeps that."""

from __future__ import annotations

import json
import sys
from pathlib import Path
from typing import Any

import pytest
import torch

from elasticdl_core.errors import ElasticDLError
from elasticdl_core.job import JobSpec
from elasticdl_core.shard import Shard
from elasticdl_core.task import Task, TaskId, TaskType
from elasticdl_core.training_rules import DeclaredRules
from elasticdl_worker.master.client import LeasedTask
from elasticdl_worker.trainers.framework import Framework, Preparation
from elasticdl_worker.trainers.job_sources import JobSources
from elasticdl_worker.trainers.other_tasks import OtherTasks
from elasticdl_worker.trainers.torch.implementation import TorchFramework
from elasticdl_worker.user_code import importing_apart

pytestmark = pytest.mark.unit
HOLDS = """
import torch
from torch import nn
from held import HELD

NET = None

class Net(nn.Module):
    instances = []

    def __init__(self):
        super().__init__()
        self.out = nn.Linear(1, 1)
        self.instances.append(self)

    def forward(self, x):
        self.aux = x.mean()
        return self.out(x)

def model():
    global NET
    NET = HELD["net"] = Net()
    return NET

def loss(labels, predictions):
    from held import HELD  # when it is called

    assert HELD["net"] is NET and Net.instances == [NET]
    return predictions.mean() * 0 + NET.aux

def optimizer(params):
    return torch.optim.SGD(params, lr=0.0)

def feed(dataset, mode, metadata):
    for record in dataset:
        yield torch.tensor([float(record["x"])]), 0.0
"""
ONCE = """
import builtins
assert not hasattr(builtins, "elasticdl_test_once")
builtins.elasticdl_test_once = True
"""


@pytest.mark.parametrize("once", [False, True])
def test_an_export_leaves_the_model_in_use_where_it_is(
    once: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    (zoo / "held.py").write_text("HELD = {}\n")
    (zoo / "holds.py").write_text(HOLDS + ONCE * once)
    (tmp_path / "x.csv").write_text("x\n" + "".join(f"{number}\n" for number in range(8)))
    monkeypatch.setattr("builtins.elasticdl_test_once", None, raising=False)
    monkeypatch.delattr("builtins.elasticdl_test_once")
    spec = JobSpec.from_mapping(
        {"model_zoo": str(zoo), "model_def": "holds.model", "training_data": str(tmp_path / "x.csv")}
    )
    framework: Framework = TorchFramework()
    module = framework.load_module(spec, zoo)
    sources = JobSources(framework, spec, module)
    trainer = framework.prepare_local(Preparation(spec, module, sources.source(sources.main), []))
    session: Any = None  # an export tells it nothing
    tasks = OtherTasks(framework, spec, module, session, sources, 0, tmp_path, DeclaredRules())
    payload = json.dumps({"checkpoint_directory": str(tmp_path), "manifest": {"files": []}})  # where there is none
    task = Task(TaskId(TaskType.EXPORT, 0, 0, 0, 0), Shard("", 0, 0), payload=payload)
    before = dict(sys.modules)
    with pytest.raises(ElasticDLError):
        tasks._export(LeasedTask(task, "token"))
    assert {name: one for name, one in sys.modules.items() if name in ("holds", "held")} == {
        name: before[name] for name in ("holds", "held")
    }
    if once:  # it is built of the module as it is
        return
    predictions = trainer.predict(torch.tensor([[1.0], [2.0]]))
    assert float(trainer.evaluation_loss(None, predictions)) == 1.5


def test_modules_come_back_also_when_an_import_fails(tmp_path: Path) -> None:
    (tmp_path / "held.py").write_text("HELD = {}\n")
    (tmp_path / "holds.py").write_text(HOLDS)
    spec = JobSpec.from_mapping({"model_zoo": str(tmp_path), "model_def": "holds.model", "training_data": "x.csv"})
    framework = TorchFramework()
    framework.load_module(spec, tmp_path)
    first = sys.modules["holds"]
    with pytest.raises(ZeroDivisionError), importing_apart(tmp_path.resolve()):
        framework.load_module(spec, tmp_path)
        assert sys.modules["holds"] is not first
        raise ZeroDivisionError
    assert sys.modules["holds"] is first

"""What a local run says of modules in PyTorch that cannot work: what is wrong, of which record, and what to do."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import torch
from safetensors.torch import load_file
from torch import nn

from elasticdl_core.errors import UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_worker.local import run_local
from elasticdl_worker.trainers.torch.model.repeated_memory import own_memory, saved_buffers
from tests.differential.data import columns, table
from tests.differential.rows.torch_models import module_of

pytestmark = pytest.mark.unit
Run = Callable[..., list[dict[str, Any]]]


@pytest.fixture
def run(tmp_path: Path) -> Run:
    """Trains a module in this process; the export goes to ``out``."""

    def go(*parts: str, **fields: Any) -> list[dict[str, Any]]:
        zoo = tmp_path / "zoo"
        zoo.mkdir(exist_ok=True)
        (zoo / f"{tmp_path.name}.py").write_text(module_of(*parts))
        base = {
            "model_zoo": str(zoo),
            "model_def": f"{tmp_path.name}.forward",
            "minibatch_size": 8,
            "shuffle": False,
            "export_formats": "",
            **columns(tmp_path, False),
        }
        events: list[dict[str, Any]] = []
        run_local(JobSpec.from_mapping(base | fields), tmp_path / "out", events.append)
        return events

    return go


FIFTH = table()[5][2]
LABELLED = f"""
def feed(dataset, mode, metadata):
    for record in dataset:
        x = float(record[metadata.column_names[2]])
        yield torch.ones(4), None if x == {FIFTH} else torch.tensor(x)
"""
UNEVEN = """
def feed(dataset, mode, metadata):
    for record in dataset:
        x = float(record[metadata.column_names[2]])
        yield torch.ones(4 if x > 0 else 3), torch.tensor(x)
"""
DIFFERENTIATES = """
class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.out = nn.Linear(4, 1)

    def forward(self, x):
        x = x.requires_grad_()
        energy = self.out(x).squeeze(-1)
        (force,) = torch.autograd.grad(energy.sum(), x, create_graph=True)
        return energy + force.sum(1)


forward = Net
"""
WITH_WEIGHTS = """
def feed(dataset, mode, metadata):
    return [(torch.ones(4), torch.tensor(1.0), torch.tensor(2.0)) for record in dataset]
"""
OF_UNEVEN_LISTS = """
def eval_metrics_fn():
    return {"odd": lambda labels, predictions: [labels, labels[1:]]}
"""
FAILING_STATE = """
def forward():
    net = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))

    def broken(module, state, prefix, metadata):
        raise ValueError("the hook")

    net.register_state_dict_post_hook(broken)
    return net
"""


@pytest.mark.parametrize(
    ("part", "said", "fix"),
    [
        pytest.param(
            LABELLED,
            "feed, on records 5 to 6 of",
            "give each record a label",
            id="a-record-without-a-label",
        ),
        pytest.param(
            UNEVEN,
            "feed, on records 0 to 4 of",
            "pad_sequence",
            id="records-of-different-lengths",
        ),
        pytest.param(WITH_WEIGHTS, "gives a list of 3", 'as in (features, {"y": labels', id="weights-beside-labels"),
        pytest.param(OF_UNEVEN_LISTS, "arrays of different shapes, [8], [7]", "one value", id="an-uneven-metric"),
        pytest.param(
            "forward = nn.Sequential(nn.Linear(4, 1), nn.Flatten(0))",
            "is a model, made when the file is imported, not its maker",
            "def forward(): return ...",
            id="a-model-in-place-of-a-function",
        ),
        pytest.param(
            DIFFERENTIATES, "does not require grad", "torch.enable_grad()", id="a-forward-that-differentiates"
        ),
        pytest.param(
            "def loss(labels, predictions):\n    return predictions.sum() - {}['age']",
            "a training step raised KeyError: 'age'",
            "correct a training step",
            id="a-wrong-key",
        ),
        pytest.param(
            "def loss(labels, predictions):\n"
            "    return nn.functional.binary_cross_entropy(predictions, labels.long())",
            "a training step raised RuntimeError",
            "use `labels.float()` in loss",
            id="whole-labels",
        ),
        pytest.param(
            "def loss(labels, predictions):\n    return nn.functional.nll_loss(torch.ones(len(labels), 2), labels)",
            "a training step raised RuntimeError",
            "use `labels.long()` in loss",
            id="labels-of-classes-as-fractions",
        ),
        pytest.param(
            "def optimizer(lr=0.1):\n    return torch.optim.Adam(lr=lr)",
            "optimizer raised TypeError",
            "functools.partial(torch.optim.Adam",
            id="an-optimizer-without-parameters",
        ),
        pytest.param(
            "def loss(labels, predictions):\n    return (predictions @ torch.ones(3)).sum()",
            "a training step raised RuntimeError",
            "check the shapes of",
            id="shapes-that-do-not-fit",
        ),
    ],
)
def test_a_module_that_cannot_work_is_told_what_to_do(run: Run, part: str, said: str, fix: str) -> None:
    with pytest.raises(UserCodeError) as caught:
        run(part)
    assert said in caught.value.message
    assert fix in caught.value.fix


def test_a_state_that_cannot_be_written_is_refused_before_the_first_record(run: Run) -> None:
    with pytest.raises(UserCodeError, match=r"state_dict cannot be written \(safetensors\): ValueError: the hook"):
        run(FAILING_STATE, export_formats="safetensors")
    assert run(FAILING_STATE)[-1]["records"] == 48


RENAMES = """
def forward():
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Linear(6, 1), nn.Flatten(0))

    def rename(module, state, prefix, metadata):
        for name in list(state):
            state["net." + name] = state.pop(name)
        del state["net.2.bias"]

    net.register_state_dict_post_hook(rename)
    return net
"""


def test_a_hook_on_the_state_changes_the_export_alone(run: Run, tmp_path: Path) -> None:
    """Buffers that it renamed were no state: nobody merged, kept or restored them."""
    assert run(RENAMES, export_formats="safetensors")[-1]["records"] == 48
    found = load_file(tmp_path / "out" / "model.safetensors")
    assert {"net.0.weight", "net.1.running_mean"} <= found.keys()
    assert "net.2.bias" not in found
    net = nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6))
    net.register_state_dict_post_hook(lambda module, state, prefix, metadata: state.clear())
    assert saved_buffers(net).keys() == {"1.running_mean", "1.running_var", "1.num_batches_tracked"}


def test_sparse_tensors_are_refused_by_name_unless_they_are_not_kept() -> None:
    """It was an error of PyTorch's memory."""
    net = nn.Sequential(nn.Linear(4, 1))
    net.register_buffer("near", torch.eye(4).to_sparse(), persistent=False)
    own_memory(net)
    net.register_buffer("far", torch.eye(4).to_sparse())
    with pytest.raises(UserCodeError, match="the buffer far is sparse"):
        own_memory(net)
    net = nn.Sequential(nn.Linear(4, 1))
    net.register_parameter("wide", nn.Parameter(torch.eye(4).to_sparse()))
    with pytest.raises(UserCodeError, match="the parameter wide is sparse"):
        own_memory(net)

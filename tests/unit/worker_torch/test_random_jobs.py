"""Jobs drawn at random end where plain PyTorch does, alone, in rounds and in parts, and over a hand-over."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
from safetensors.torch import load_file

from tests.fakes.drawn_jobs import UPDATE, DrawnJob, numbers
from tests.unit.ps.test_random_optimizers import TORCH

pytestmark = pytest.mark.unit
SOURCE = """
import torch
from torch import nn


class Net(nn.Module):
    def __init__(self, frozen):
        super().__init__()
        self.always, self.shared, self.frozen = nn.Linear(2, 3), nn.Linear(2, 1), nn.Linear(2, 1)
        self.heads = nn.ModuleList(nn.Linear(2, 1) for _ in range(3))
        self.rows = nn.Embedding(6, 1)
        self.scale = nn.Parameter(torch.ones(()))
        self.frozen.requires_grad_(not frozen)

    def forward(self, x):
        given = x[:, :2]
        found = torch.tanh(self.always(given)).sum(-1) * self.scale + self.frozen(given).squeeze(-1)
        found = found + (self.shared(given) - 0.5 * self.shared(given.tanh())).squeeze(-1)
        found = found + self.rows(x[:, 2].long()).squeeze(-1)
        for head, used in zip(self.heads, x[:, 3:].unbind(-1)):
            if used.any():
                found = found + used * head(given).squeeze(-1)
        return found


def forward(frozen=True):
    return Net(frozen)


def loss(labels, predictions):
    return ((labels - predictions) ** 2).mean()


def optimizer(model):
    trained = [one for one in model.parameters() if one.requires_grad]
    return torch.optim.KIND(trained, **OPTIONS)


def feed(dataset, mode, metadata):
    for record in dataset:
        values = torch.tensor([float(one) for one in record.values()])
        yield values[1:], values[0]
"""


def plain(draw: DrawnJob, source: str) -> dict[str, Any]:
    """The state that a loop over the same records ends with."""
    names: dict[str, Any] = {"__name__": "plain"}
    exec(compile(source, "plain", "exec"), names)
    torch.manual_seed(3)
    net = names["forward"](frozen=True)
    optimizer = names["optimizer"](net)
    for job, rows in enumerate(torch.tensor(draw.records, dtype=torch.float32)):
        if job:
            net.frozen.requires_grad_(True)
            optimizer.add_param_group({"params": list(net.frozen.parameters())})
        for batch in rows.split(UPDATE):
            optimizer.zero_grad()
            names["loss"](batch[:, 0], net(batch[:, 1:])).backward()
            optimizer.step()
    return {name: value.numpy() for name, value in net.state_dict().items()}


@pytest.mark.parametrize("number", numbers())
def test_jobs_end_where_pytorch_does(number: int, tmp_path: Path) -> None:
    """Parameters that are used always, sometimes, late, early and twice, and what the second job unfreezes."""
    draw = DrawnJob.of(TORCH, number, "lr")
    source = SOURCE.replace("KIND", draw.kind).replace("OPTIONS", repr(draw.options))
    out = draw.train(tmp_path, source, framework="torch", export_formats="safetensors")
    wanted = plain(draw, source)
    for name, value in load_file(out / "model.safetensors").items():
        np.testing.assert_allclose(value.numpy(), wanted[name], rtol=0, atol=1e-5, err_msg=f"{name} {draw}")

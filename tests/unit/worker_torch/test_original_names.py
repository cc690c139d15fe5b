"""A script that is built like the original project's PyTorch example runs, by the original's names."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import pytest
import torch

from elasticdl_core.errors import ElasticDLError
from elasticdl_core.job import JobSpec
from elasticdl_worker.own_loop.local import run_local_script

pytestmark = pytest.mark.timeout(120)
SCRIPT = """
import argparse

import torch
from torch import nn, optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader

import elasticdl.torch
from elasticai_api.common.data_shard_service import DataShardService, RecordIndexService
from elasticai_api.pytorch.controller import PyTorchAllReduceController, create_elastic_controller
from elasticai_api.pytorch.dataset import ElasticDataset
from elasticai_api.pytorch.optimizer import DistributedOptimizer


def train_one_batch(model, optimizer, data, target):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(data), target)
    loss.backward()
    optimizer.step()
    return loss


def train(args):
    torch.manual_seed(0)
    x = torch.randn(100, 6)
    samples = [(row, int(row.sum() > 0)) for row in x]
    controller = create_elastic_controller(
        batch_size=args.batch_size, num_epochs=args.num_epochs, dataset_size=len(samples), shuffle=True
    )
    assert isinstance(controller, PyTorchAllReduceController)
    assert isinstance(controller.data_shard_service, (RecordIndexService, DataShardService))
    loader = DataLoader(ElasticDataset(samples, controller.data_shard_service), batch_size=args.batch_size,
                        num_workers=args.num_workers)
    model = nn.Sequential(nn.Linear(6, 16), nn.ReLU(), nn.Linear(16, 2))
    optimizer = DistributedOptimizer(optim.SGD(model.parameters(), lr=0.5), fixed_global_batch_size=args.fixed)
    scheduler = StepLR(optimizer, step_size=1, gamma=0.9)
    controller.set_broadcast_model(model)
    controller.set_broadcast_optimizer(optimizer)
    elastic_train_one_batch = controller.elastic_run(train_one_batch)
    epoch = 0
    with controller.scope():
        for data, target in loader:
            elastic_train_one_batch(model, optimizer, data, target)
            new_epoch = controller.global_completed_batch_num // (len(samples) // args.batch_size)
            if new_epoch > epoch:
                epoch = new_epoch
                scheduler.step()
    labels = torch.tensor([label for _, label in samples])
    right = (model(x).argmax(1) == labels).float().mean()
    torch.save({"accuracy": right, "epochs": torch.tensor(epoch)}, elasticdl.torch.output_dir() / "found.pt")


if __name__ == "__main__":
    parser = argparse.ArgumentParser()
    parser.add_argument("--batch_size", type=int, default=8)
    parser.add_argument("--num_epochs", type=int, default=10)
    parser.add_argument("--num_workers", type=int, default=0)
    parser.add_argument("--fixed", type=int, default=1)
    train(parser.parse_args())
"""


def run(folder: Path, arguments: str = "", **fields: Any) -> dict[str, Any]:
    (folder / "mnist.py").write_text(SCRIPT)
    base = {"model_zoo": str(folder), "model_def": "mnist.__main__", "minibatch_size": 8, "num_epochs": 10}
    events: list[Any] = []
    spec = JobSpec.from_mapping({**base, "script_args": arguments, **fields})
    run_local_script(spec, folder / "out", events.append)
    return events[-1]


def test_the_structure_of_the_original_s_example_runs(tmp_path: Path) -> None:
    done = run(tmp_path, microbatches=2)
    assert done["records"] == 1000
    found = torch.load(tmp_path / "out" / "found.pt", weights_only=True)
    assert found["accuracy"] >= 0.9
    assert found["epochs"] >= 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--batch_size 16", "batches of 16 records"),
        ("--num_epochs 3", "wants 3 epochs"),
        ("--num_workers 1", "the process that trains"),
        ("--fixed 0", "whatever the number of workers"),
    ],
)
def test_what_does_not_go_with_the_job_is_refused(tmp_path: Path, arguments: str, message: str) -> None:
    with pytest.raises(ElasticDLError) as caught:
        run(tmp_path, arguments)
    assert message in caught.value.message
    assert "Traceback" not in caught.value.message

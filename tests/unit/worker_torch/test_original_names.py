"""A script that is built like the original project's PyTorch example runs, by the original's names."""

from __future__ import annotations

import inspect
import subprocess
import sys
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
    done = run(tmp_path, minibatch_size=16, microbatches=2)
    assert done["records"] == 1000
    found = torch.load(tmp_path / "out" / "found.pt", weights_only=True)
    assert found["accuracy"] >= 0.9
    assert found["epochs"] >= 10


@pytest.mark.parametrize(
    ("arguments", "message"),
    [
        ("--batch_size 16", "batches of 16 records"),
        ("--num_epochs 3", "wants 3 epochs"),
        ("--fixed 0", "whatever the number of workers"),
    ],
)
def test_what_does_not_go_with_the_job_is_refused(tmp_path: Path, arguments: str, message: str) -> None:
    with pytest.raises(ElasticDLError) as caught:
        run(tmp_path, arguments)
    assert message in caught.value.message
    assert "Traceback" not in caught.value.message


TUTORIAL = """
import sys

import torch
import torch.nn as nn
import torch.optim as optim
from torch.optim.lr_scheduler import StepLR
from torch.utils.data import DataLoader, Dataset, Subset

import elasticdl.torch
from elasticai_api.common.data_shard_service import RecordIndexService
from elasticai_api.pytorch.controller import PyTorchAllReduceController
from elasticai_api.pytorch.optimizer import DistributedOptimizer


class OwnDataset(Dataset):
    def __init__(self, samples, data_shard_service=None):
        self.data_shard_service = data_shard_service
        self._samples = samples

    def __len__(self):
        return sys.maxsize if self.data_shard_service else len(self._samples)

    def __getitem__(self, index):
        if self.data_shard_service:
            index = self.data_shard_service.fetch_record_index()
        return self._samples[index]


torch.manual_seed(0)
x = torch.randn(96, 6)
samples = [(row, int(row.sum() > 0)) for row in x]
service = RecordIndexService(
    batch_size=8, dataset_size=len(samples), num_epochs=3, shuffle=True, dataset_name="training_data"
)
loader = DataLoader(dataset=NAMED, batch_size=8, num_workers=2, prefetch_factor=4, persistent_workers=True)
validation = DataLoader(dataset=OwnDataset(samples), batch_size=8, num_workers=1)
model = nn.Linear(6, 2)
optimizer = DistributedOptimizer(optim.SGD(model.parameters(), lr=0.5), fixed_global_batch_size=True)
scheduler = StepLR(optimizer, step_size=1, gamma=0.5)
controller = PyTorchAllReduceController(service)
controller.set_broadcast_model(model)
controller.set_broadcast_optimizer(optimizer)


def train_one_batch(data, target):
    optimizer.zero_grad()
    loss = nn.functional.cross_entropy(model(data), target)
    loss.backward()
    optimizer.step()
    return loss


epoch, tested = 0, []
train_one_batch = controller.elastic_run(train_one_batch)
with controller.scope():
    for data, target in loader:
        train_one_batch(data, target)
        if controller.get_current_epoch() > epoch:
            epoch = controller.get_current_epoch()
            scheduler.last_epoch = epoch - 1
            scheduler.step()
            tested.append(sum(len(labels) for _, labels in validation))
torch.save({"tested": torch.tensor(tested), "rate": torch.tensor(scheduler.get_last_lr())},
           elasticdl.torch.output_dir() / "found.pt")
"""


@pytest.mark.parametrize(
    "named", ["OwnDataset(samples, service)", "Subset(OwnDataset(samples, service), range(10**6))"]
)
def test_the_tutorial_s_script_runs_though_its_loader_asks_for_processes(
    tmp_path: Path, caplog: pytest.LogCaptureFixture, named: str
) -> None:
    (tmp_path / "tutorial.py").write_text(TUTORIAL.replace("NAMED", named))
    events: list[Any] = []
    spec = JobSpec(model_zoo=str(tmp_path), model_def="tutorial.__main__", minibatch_size=8, num_epochs=3)
    run_local_script(spec, tmp_path / "out", events.append)
    assert events[-1]["records"] == 3 * 96
    found = torch.load(tmp_path / "out" / "found.pt", weights_only=True)
    assert found["tested"].tolist() == [96, 96, 96], "the end of each epoch is seen, the last one's too"
    assert found["rate"].item() == pytest.approx(0.5**4)
    assert "num_workers=2 is 0" in caplog.text
    assert "num_workers=1" not in caplog.text, "a loader of other samples keeps its processes"


SHARDS = """
import torch
import elasticdl.torch
from elasticai_api.common.data_shard_service import build_data_shard_service

service = build_data_shard_service(batch_size=BATCH, num_epochs=2, dataset_size=50, dataset_name="numbers")
seen = []
while shard := service.fetch_shard():
    assert shard.name == "numbers"
    seen.extend(range(shard.start, shard.end))
    service.report_batch_done(REPORTED)
torch.save({"seen": torch.tensor(seen)}, elasticdl.torch.output_dir() / "found.pt")
"""


def fetch(folder: Path, batch: int = 8, reported: str = "", **fields: Any) -> list[int]:
    (folder / "shards.py").write_text(SHARDS.replace("BATCH", str(batch)).replace("REPORTED", reported))
    base = {"model_zoo": str(folder), "model_def": "shards.__main__", "minibatch_size": 8, "num_epochs": 2}
    run_local_script(JobSpec.from_mapping({**base, "shuffle": False, **fields}), folder / "out", lambda _: None)
    return list(torch.load(folder / "out" / "found.pt", weights_only=True)["seen"].tolist())


@pytest.mark.parametrize("batch", [4, 8])
def test_shards_are_the_ranges_of_batches_and_are_all_fetched(tmp_path: Path, batch: int) -> None:
    assert fetch(tmp_path, batch) == [*range(50), *range(50)]


def test_a_shard_of_records_in_random_order_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ElasticDLError, match="random order") as caught:
        fetch(tmp_path, shuffle=True)
    assert "RecordIndexService" in caught.value.fix


def test_a_report_of_fewer_records_than_were_fetched_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ElasticDLError, match="a batch of 4 records is reported, and 8 were fetched"):
        fetch(tmp_path, reported="4")


def test_a_shard_that_is_fetched_before_the_last_one_was_reported_is_refused(tmp_path: Path) -> None:
    """At the end of the data it would have been records of the last one again."""
    with pytest.raises(ElasticDLError, match="before the one before it was reported"):
        fetch(tmp_path, reported=") if len(seen) < 48 else (None")


FOLDER = """
import elasticdl.torch
from elasticai_api.common.data_shard_service import RecordIndexService
from elasticai_api.pytorch.dataset import ElasticImageFolder


class Mine(ElasticImageFolder):
    pass


folder = Mine("images", transform=lambda sample: sample + "!")
assert len(folder) == 20 and folder[3] == ("images/3!", 3) and folder.samples[3] == ("images/3", 3)
service = RecordIndexService(batch_size=8, num_epochs=1, dataset_size=len(folder))
folder.set_data_shard_service(service)
seen = []
while True:
    try:
        seen.append([folder[0] for _ in range(8)])
    except StopIteration:
        break
    service.report_batch_done()
(elasticdl.torch.output_dir() / "found.txt").write_text(str(sorted({label for batch in seen for _, label in batch})))
"""
TORCHVISION = """
class ImageFolder:
    def __init__(self, root, transform=None):
        self.samples = [(f"{root}/{n}", n) for n in range(20)]
        self.transform = transform

    def __getitem__(self, index):
        path, label = self.samples[index]
        return self.transform(path), label
"""


@pytest.mark.rotates(turns=2)
@pytest.mark.parametrize("installed", [True, False])
def test_a_folder_of_images_is_a_class_that_derives_from_torchvision_s(tmp_path: Path, installed: bool) -> None:
    (tmp_path / "script.py").write_text(FOLDER)
    if installed:
        (tmp_path / "torchvision").mkdir()
        (tmp_path / "torchvision" / "__init__.py").write_text("")
        (tmp_path / "torchvision" / "datasets.py").write_text(TORCHVISION)
    flags = ("--minibatch_size", "8", "--num_epochs", "1", "--output", "out")
    done = subprocess.run(
        [sys.executable, "-m", "elasticdl", "run", "--local", "script.py", *flags],
        cwd=tmp_path, capture_output=True, text=True, timeout=100, check=False,
    )  # fmt: skip
    if installed:
        assert done.returncode == 0, done.stderr
        assert (tmp_path / "out" / "found.txt").read_text() == str([*range(20)])
    else:
        assert done.returncode == 1
        assert "pip install torchvision" in done.stderr


SIGNATURES = {
    "common.data_shard_service.DataShardService": "batch_size num_epochs dataset_size shuffle shuffle_shards "
    "task_type num_minibatches_per_shard dataset_name master_client remainder",
    "common.data_shard_service.RecordIndexService": "batch_size num_epochs dataset_size task_type shuffle "
    "num_minibatches_per_shard dataset_name master_client num_workers",
    "common.data_shard_service.build_data_shard_service": "batch_size num_epochs dataset_size shuffle shuffle_shards "
    "task_type num_minibatches_per_shard dataset_name remainder",
    "common.data_shard_service.DataShardService.report_batch_done": "self batch_size err_msg task_ids",
    "common.master_client.build_master_client": "master_addr",
    "pytorch.controller.create_elastic_controller": "batch_size num_epochs dataset_size shuffle",
    "pytorch.controller.PyTorchAllReduceController": "data_shard_service",
    "pytorch.controller.PyTorchAllReduceController.elastic_run": "self func",
    "pytorch.optimizer.DistributedOptimizer": "optimizer named_parameters compression backward_passes_per_step op "
    "gradient_predivide_factor global_batch_num_per_step fixed_global_batch_size",
}


@pytest.mark.parametrize("name", SIGNATURES)
def test_arguments_are_those_of_the_original_s_version_1_4(name: str) -> None:
    module, found = __import__(f"elasticai_api.{'.'.join(name.split('.')[:2])}", fromlist=["_"]), None
    for part in name.split(".")[2:]:
        found = getattr(found or module, part)
    assert found is not None
    assert " ".join(inspect.signature(found).parameters) == SIGNATURES[name]

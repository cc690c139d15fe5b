"""Workers that evaluate by themselves what parameter servers have saved: the numbers are those of the servers."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from elasticdl_core.job import JobSpec
from elasticdl_core.job.fields import ALL_REDUCE, PARAMETER_SERVERS
from elasticdl_core.ports.launcher import Role
from elasticdl_core.shard import Shard
from elasticdl_core.task import TaskType
from elasticdl_proto.v1 import ps_pb2
from tests.fakes.frameworks import NEEDS_TORCH
from tests.integration.worker.conftest import Cluster
from tests.unit.worker.conftest import ZOO, write_clicks

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
RECORDS = 256
TORCH_ZOO = ZOO.parents[1] / "worker_torch" / "zoo"
OPEN = pytest.mark.parametrize(
    ("zoo", "model_def"),
    [(ZOO, "words.CustomModel"), pytest.param(TORCH_ZOO, "clicks.open_tables", marks=NEEDS_TORCH)],
    ids=["tensorflow", "torch"],
)


def evaluation(data: Path, saved: Path, strategy: str, **fields: Any) -> JobSpec:
    given = {
        "type": "evaluation",
        "validation_data": str(data),
        "data_reader_params": {"with_header": False},
        "minibatch_size": 32,
        "checkpoint_dir_for_init": str(saved),
        "distribution_strategy": strategy,
    }
    return JobSpec.from_mapping(given | fields)


async def save(cluster: Cluster, servers: int) -> Path:
    """A checkpoint of what the parameter servers hold."""
    saved, files, version = cluster.directory / "checkpoint", [], 0
    for index in range(servers):
        answer = await cluster.ps(index).call("Save", ps_pb2.SaveRequest(directory=str(saved)), deadline_s=20)
        files += [{"name": f.name, "size": f.size, "sha256": f.sha256} for f in answer.files]
        version = version or answer.version
    (saved / "manifest.json").write_text(json.dumps({"version": version, "files": files}))
    return saved


async def train(cluster: Cluster, data: Path, **fields: Any) -> None:
    """Trains on the first half of the data, by parameter servers that run."""
    given = {
        "training_data": str(data),
        "data_reader_params": {"with_header": False},
        "minibatch_size": 32,
        "distribution_strategy": PARAMETER_SERVERS,
    }
    master = await cluster.start_master(JobSpec.from_mapping(given | fields))
    master.add(TaskType.TRAINING, Shard(str(data), 0, RECORDS // 2))
    worker = await cluster.start_worker(master)
    assert await worker.wait() == 0, cluster.log(Role.WORKER)
    await master.stop()


async def evaluate(cluster: Cluster, spec: JobSpec, data: Path) -> list[Any]:
    """What a worker tells of all data, in two tasks."""
    master = await cluster.start_master(spec)
    for index, start in enumerate(range(0, RECORDS, RECORDS // 2)):
        shard = Shard(str(data), start, start + RECORDS // 2)
        master.add(TaskType.EVALUATION, shard, epoch=1, index=index, payload={"pin": 1})
    worker = await cluster.start_worker(master)
    assert await worker.wait() == 0, cluster.log(Role.WORKER)
    await master.stop()
    assert not master.failures
    return [json.loads(report.result) for report in master.reports]


def numbers(state: Any) -> list[float]:
    """All numbers of a nested list."""
    return [one for part in state for one in numbers(part)] if isinstance(state, list) else [float(state)]


@OPEN
async def test_open_tables_are_read_from_the_checkpoint_as_servers_have_them(
    cluster: Cluster, tmp_path: Path, zoo: Path, model_def: str
) -> None:
    """Half of the data has ids that were never seen in training."""
    data = write_clicks(tmp_path / "data.csv", RECORDS)
    model = {"model_zoo": str(zoo), "model_def": model_def}
    await cluster.start_ps(2)
    await train(cluster, data, **model)
    for index in range(2):
        await cluster.ps(index).call("Pin", ps_pb2.PinRequest(pin=1), deadline_s=20)
    saved = await save(cluster, 2)
    served = await evaluate(cluster, evaluation(data, saved, PARAMETER_SERVERS, **model), data)
    cluster.ps_addresses = []
    alone = await evaluate(cluster, evaluation(data, saved, ALL_REDUCE, **model), data)
    assert len(alone) == len(served) == 2
    for own, theirs in zip(alone, served, strict=True):
        assert own["records"] == theirs["records"] == RECORDS // 2
        assert own["states"].keys() == theirs["states"].keys() >= {"accuracy", "loss"}
        for name, state in theirs["states"].items():
            # A prediction at a threshold may be at either side of it by its last bits.
            expected = pytest.approx(numbers(state["sum"]), rel=1e-5, abs=1e-4 if name == "loss" else 1.0)
            assert numbers(own["states"][name]["sum"]) == expected, name


async def test_a_checkpoint_that_no_worker_can_use_is_told_as_such(cluster: Cluster, tmp_path: Path) -> None:
    data = write_clicks(tmp_path / "data.csv", RECORDS)
    model = {"model_zoo": str(ZOO), "model_def": "words.CustomModel"}
    await cluster.start_ps(1)
    await train(cluster, data, **model)
    saved = await save(cluster, 1)
    cluster.ps_addresses = []
    for what, words in (("deepfm.custom_model", "the checkpoint has no parameter"), ("", "ps-")):
        if not what:
            part = next(saved.glob("ps-*"))
            part.write_bytes(part.read_bytes()[:-10])
        spec = evaluation(data, saved, ALL_REDUCE, **{**model, "model_def": what or model["model_def"]})
        master = await cluster.start_master(spec)
        worker = await cluster.start_worker(master)
        assert await worker.wait() == 1
        await master.stop()
        (failure,) = master.failures
        assert (failure.kind, failure.task_id) == ("data", ""), "the job fails at once"
        assert words in failure.message
        assert failure.fix

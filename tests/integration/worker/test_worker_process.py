"""Workers as processes with real parameter servers."""

from __future__ import annotations

import asyncio
import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.job import JobSpec
from elasticdl_core.ports.launcher import Role
from elasticdl_core.shard import Shard
from elasticdl_core.task import TaskType
from elasticdl_proto.v1 import ps_pb2
from tests.fakes.master import FakeMaster
from tests.integration.worker.conftest import Cluster
from tests.unit.worker.conftest import ZOO, write_clicks

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300)]
RECORDS = 640


@pytest.fixture
def data(tmp_path: Path) -> Path:
    return write_clicks(tmp_path / "train.csv", RECORDS)


def make_spec(data: Path, **fields: Any) -> JobSpec:
    base: dict[str, Any] = {
        "model_zoo": str(ZOO),
        "model_def": "deepfm.custom_model",
        "training_data": str(data),
        "minibatch_size": 32,
        "num_minibatches_per_task": 4,
        "embedding_threshold_bytes": 0,
        "log_loss_steps": 1,
    }
    return JobSpec.from_mapping(base | fields)


def add_epoch(master: FakeMaster, data: Path, epoch: int) -> None:
    for index, start in enumerate(range(0, RECORDS, 128)):
        master.add(TaskType.TRAINING, Shard(str(data), start, start + 128), epoch=epoch, index=index)


def traces(cluster: Cluster) -> list[dict[str, Any]]:
    files = (cluster.directory / "job" / "traces").glob("*.jsonl")
    return [json.loads(line) for file in files for line in file.read_text().splitlines()]


async def test_a_module_may_run_tensorflow_when_it_is_imported(cluster: Cluster, data: Path, tmp_path: Path) -> None:
    """Its parent's name leads to the zoo as well, as it does in one process."""
    zoo = tmp_path / "code" / "my_zoo"
    zoo.mkdir(parents=True)
    (zoo / "deepfm.py").write_text((ZOO / "deepfm.py").read_text())
    (zoo / "net.py").write_text(
        "import tensorflow as tf\nfrom my_zoo.deepfm import custom_model, loss, feed, optimizer\n"
        "TABLE = tf.constant([1.0])\nWORDS = tf.keras.layers.StringLookup(vocabulary=['a'])\n"
    )
    await cluster.start_ps(1)
    master = await cluster.start_master(make_spec(data, model_zoo=str(zoo), model_def="net.custom_model"))
    worker = await cluster.start_worker(master)
    add_epoch(master, data, 0)
    await master.until(lambda: len(master.reports) == 5 or master.failures)
    assert not master.failures, master.failures[0].message
    assert await worker.wait() == 0


async def test_a_job_from_training_to_an_export_that_plain_keras_loads(cluster: Cluster, data: Path) -> None:
    await cluster.start_ps(2)
    spec = make_spec(data, validation_data=str(data), optimizer_params={"kind": "Adam", "lr": 0.01})
    master = await cluster.start_master(spec, finish=False)
    workers = [await cluster.start_worker(master, index) for index in range(2)]
    for epoch in range(6):
        add_epoch(master, data, epoch)
    await master.until(lambda: len(master.reports) == 30 or master.failures)
    assert not master.failures, cluster.log(Role.WORKER)
    assert sum(line["end"] - line["start"] for line in traces(cluster)) == 6 * RECORDS

    for index in range(2):
        await cluster.ps(index).call("Pin", ps_pb2.PinRequest(pin=1), deadline_s=20)
    for index, start in enumerate(range(0, RECORDS, 320)):
        master.add(TaskType.EVALUATION, Shard(str(data), start, start + 320), epoch=1, index=index)
    await master.until(lambda: len(master.reports) == 32 or master.failures)
    states = [json.loads(report.result)["states"] for report in master.reports[30:]]
    correct, count = (sum(state["accuracy"]["sum"][place] for state in states) for place in (0, 1))
    assert count == RECORDS
    assert correct / count > 0.7

    saved = cluster.directory / "checkpoint"
    files = []
    for index in range(2):
        answer = await cluster.ps(index).call("Save", ps_pb2.SaveRequest(directory=str(saved)), deadline_s=20)
        files += [{"name": f.name, "size": f.size, "sha256": f.sha256} for f in answer.files]
    output = cluster.directory / "export"
    payload = {"checkpoint_directory": str(saved), "manifest": {"files": files}, "output": str(output)}
    master.add(TaskType.EXPORT, Shard("", 0, 0), payload=payload)
    await master.until(lambda: len(master.reports) == 33 or master.failures)
    assert not master.failures, master.failures[0].message
    exported = {entry["path"] for entry in json.loads(master.reports[-1].result)["files"]}
    assert str(output / "model.keras") in exported
    master.finish = True
    assert [await worker.wait() for worker in workers] == [0, 0]

    script = (
        "import sys, json, numpy as np, tensorflow as tf\n"
        "data = np.loadtxt(sys.argv[1], delimiter=',', dtype=np.int64)\n"
        "model = tf.keras.models.load_model(sys.argv[2] + '/model.keras', compile=False)\n"
        "loaded = tf.saved_model.load(sys.argv[2] + '/saved_model')\n"
        "served = loaded.serve(data[:, 1:]).numpy()\n"
        "logits = model(data[:, 1:]).numpy()\n"
        "assert not [name for name in sys.modules if name.startswith('elasticdl')]\n"
        "print(json.dumps([float(abs(logits - served).max()), int(((logits[:, 0] > 0) == data[:, 0]).sum())]))\n"
    )
    run = await asyncio.to_thread(
        subprocess.run,
        [sys.executable, "-c", script, str(data), str(output)],
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
        cwd=cluster.directory,
        env={**os.environ, "TF_CPP_MIN_LOG_LEVEL": "3"},
    )
    assert run.returncode == 0, run.stderr
    difference, right = json.loads(run.stdout)
    assert difference < 1e-5
    assert right == pytest.approx(correct, abs=2)


async def test_a_worker_that_is_told_to_stop_returns_its_task(cluster: Cluster, data: Path) -> None:
    await cluster.start_ps(1)
    spec = make_spec(data)
    master = await cluster.start_master(spec, finish=False)
    master.add(TaskType.TRAINING, Shard(str(data), 0, RECORDS))
    for epoch in range(1, 200):
        master.add(TaskType.TRAINING, Shard(str(data), 0, RECORDS), epoch=epoch)
    worker = await cluster.start_worker(master)
    await master.until(lambda: any(beat.records > 0 for beat in master.heartbeats))
    worker.send_signal(signal.SIGTERM)
    assert await worker.wait() == 0, cluster.log(Role.WORKER)
    assert not master.doing
    assert not master.failures
    reported = sum(report.records for report in master.reports)
    returned = sum(r.position - int(r.task_id.split(":")[3]) for r in master.returns)
    assert master.returns
    assert sum(line["end"] - line["start"] for line in traces(cluster)) == reported + returned
    status = await cluster.ps(0).call("Status", ps_pb2.StatusRequest(), deadline_s=20)
    assert status.version * 32 == reported + returned


async def test_what_the_user_did_wrong_reaches_the_master(cluster: Cluster, data: Path) -> None:
    await cluster.start_ps(1)
    spec = make_spec(data, model_def="broken.custom_model", loss="loss_that_exits")
    master = await cluster.start_master(spec, finish=False)
    add_epoch(master, data, 0)
    worker = await cluster.start_worker(master)
    assert await worker.wait() == 1
    task, last = master.failures[0], master.failures[-1]
    assert task.kind == last.kind == "user_code"
    assert task.task_id
    assert not last.task_id
    assert "sys.exit(0)" in task.message
    assert "loss_that_exits" in task.traceback
    assert "broken.py" in task.traceback
    assert "elasticdl_worker" not in task.traceback
    assert np.all([failure.fix for failure in master.failures])

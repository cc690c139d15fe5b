"""A limit of updates is exact: on real parameter servers with the worker's real trainer, and in ``--local``."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.data import create_data_reader
from elasticdl_core.task import TaskType
from elasticdl_proto.v1 import ps_pb2
from elasticdl_worker.loop import ExitReason
from tests.fakes.master import FakeMaster
from tests.integration.ps.conftest import Servers, StartServers
from tests.integration.worker.small_jobs import _work, assert_close, locally, make_job, on_cluster

pytestmark = pytest.mark.integration

LINEAR = """
def forward():
    inputs = tf.keras.Input([3])
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1, name="out")(inputs))

def optimizer():
    return tf.keras.optimizers.SGD(0.05)
"""
RECORDS = np.random.default_rng(5).normal(size=(200, 4)).round(3)


async def versions(servers: Servers) -> list[int]:
    pulled = [await client.call("Status", ps_pb2.StatusRequest(), deadline_s=20.0) for client in servers.raw()]
    return [int(answer.version) for answer in pulled]


def trained_records(master: FakeMaster) -> int:
    """Records of tasks that were reported, and of the fronts of those that came back."""
    reported = sum(request.records for request in master.reports)
    starts = [int(request.task_id.split(":")[3]) for request in master.returns]
    return reported + sum(r.position - start for r, start in zip(master.returns, starts, strict=True))


async def test_one_worker_makes_the_updates_of_a_local_run(start_servers: StartServers, tmp_path: Path) -> None:
    spec = make_job(tmp_path, LINEAR, RECORDS, max_steps=10)
    local = await locally(spec, tmp_path / "local")
    servers = await start_servers(2)
    trained = await on_cluster(spec, servers, tmp_path / "cluster")
    assert await versions(servers) == [10, 10]
    assert trained_records(trained.master) == 80
    assert_close(trained.dense, local)
    assert {request.model_version for request in trained.master.returns} == {10}


@pytest.mark.parametrize(
    "how",
    [
        {"max_staleness": 0},
        {"max_staleness": 3},
        {"max_staleness": 1, "get_model_steps": 2},
        {"use_async": False},
    ],
    ids=["in order", "ahead", "groups", "synchronous"],
)
async def test_two_workers_make_exactly_so_many_updates(
    start_servers: StartServers, tmp_path: Path, how: dict[str, Any]
) -> None:
    spec = make_job(tmp_path, LINEAR, RECORDS, max_steps=7, num_epochs=2, num_ps=2, **how)
    servers = await start_servers(2)
    master = FakeMaster(spec, tmp_path, servers.addresses)
    await master.start()
    try:
        shards = list(create_data_reader(spec.training_data, spec.records_per_task).create_shards())
        for epoch in range(spec.num_epochs):
            for index, shard in enumerate(shards):
                master.add(TaskType.TRAINING, shard, epoch=epoch, index=index)
        endings = await asyncio.gather(*(_work(master, servers.client(index), index) for index in range(2)))
    finally:
        await master.stop()
    assert endings == [ExitReason.FINISHED] * 2
    assert not master.failures
    assert await versions(servers) == [7, 7]
    assert trained_records(master) == 7 * 8 * spec.get_model_steps


async def test_the_limit_counts_from_where_the_job_began(start_servers: StartServers, tmp_path: Path) -> None:
    servers = await start_servers(2)
    first = make_job(tmp_path, LINEAR, RECORDS, max_steps=4)
    await on_cluster(first, servers, tmp_path / "first")
    saved = servers.master()
    files = await saved.save(str(tmp_path / "checkpoint"))
    others = await start_servers(2)
    restored = others.master()
    assert await restored.restore(str(tmp_path / "checkpoint"), files) == 4
    again = make_job(tmp_path, LINEAR, RECORDS, max_steps=6)
    trained = await on_cluster(again, others, tmp_path / "second", start_version=4)
    assert await versions(others) == [10, 10]
    assert trained_records(trained.master) == 48

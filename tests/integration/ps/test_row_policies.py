"""Rows that come and go, over real servers, checkpoints and another number of servers."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.model import InitializerSpec, OptimizerSpec, RowPolicy, TableSpec, UpdateMode
from elasticdl_proto.v1 import ps_pb2
from elasticdl_runtime.checkpoint_files import read_checkpoint
from elasticdl_worker.parameters import Gradients
from elasticdl_worker.parameters.codec import push_frame

pytestmark = pytest.mark.integration

TABLE = TableSpec("t", 4, InitializerSpec("normal", seed=3))
SGD = OptimizerSpec("sgd", {"learning_rate": 1.0})


async def ensure(client: Any, policy: RowPolicy) -> bool:
    return bool(await client.ensure_model({}, [], [TABLE], SGD, UpdateMode(rows=policy)))


async def push(client: Any, ids: Any) -> None:
    array = np.asarray(ids, np.int64)
    pulled = await client.pull({"t": array})
    gradients = Gradients(rows={"t": (array, np.ones((len(array), 4), np.float32))})
    assert (await client.push(gradients, version=pulled.version)).accepted


async def rows(client: Any, ids: Any, pin: int = 0) -> Any:
    return (await client.pull({"t": np.asarray(ids, np.int64)}, pin=pin)).rows["t"]


async def tables(servers: Any) -> list[Any]:
    return [
        (await client.call("Status", ps_pb2.StatusRequest(), deadline_s=20)).tables[0] for client in servers.raw()
    ]


async def test_admission_over_several_servers(servers: Any) -> None:
    client = servers.client()
    await ensure(client, RowPolicy(admission=2))
    ids = np.arange(100)
    first = await rows(client, ids)
    await push(client, ids)
    np.testing.assert_array_equal(await rows(client, ids), first)
    await push(client, ids[:40])
    np.testing.assert_array_equal(await rows(client, ids), first - (ids < 40)[:, None])
    status = await tables(servers)
    assert [sum(getattr(t, name) for t in status) for name in ("rows", "admitted", "refused", "evicted")] == [
        40,
        40,
        100,
        0,
    ]


async def test_a_repeated_push_is_one_sighting(start_servers: Any) -> None:
    servers = await start_servers(1)
    client = servers.client()
    await ensure(client, RowPolicy(admission=2))
    gradients = Gradients(rows={"t": (np.array([1]), np.ones((1, 4), np.float32))})
    (request,) = client._group.build_pushes(gradients, 0, None)
    for _ in range(3):
        await servers.raw()[0].call("PushGradients", push_frame(request), deadline_s=20)
    assert (await tables(servers))[0].refused == 1


async def test_the_limit_is_on_all_servers_together(servers: Any) -> None:
    client = servers.client()
    await ensure(client, RowPolicy(max_rows=600))
    first = await rows(client, np.arange(3000))
    master = servers.master()
    await push(client, np.arange(500))
    await master.pin(1)
    for start in range(0, 3000, 200):
        await push(client, np.arange(start, start + 200))
    status = await tables(servers)
    assert sum(t.rows for t in status) <= 600 + len(status)
    assert sum(t.evicted for t in status) == sum(t.admitted for t in status) - sum(t.rows for t in status)
    np.testing.assert_array_equal(await rows(client, np.arange(500), pin=1), first[:500] - 1)
    np.testing.assert_array_equal(await rows(client, np.arange(600, 1000)), first[600:1000])
    np.testing.assert_array_equal(await rows(client, np.arange(2900, 3000)), first[2900:] - 1)


async def test_two_to_three_servers_with_a_policy(start_servers: Any, tmp_path: Path) -> None:
    policy = RowPolicy(admission=2, eviction_updates=8, max_rows=300)
    servers = await start_servers(2)
    client = servers.client()
    await ensure(client, policy)
    for _ in range(2):
        await push(client, np.arange(100))
    for _ in range(9):
        await push(client, np.arange(50))
    await push(client, np.arange(1000, 1010))
    files = await servers.master().save(str(tmp_path))
    assert read_checkpoint(tmp_path, files).tables["t"][0].tolist() == list(range(50))
    expected = await rows(client, np.arange(1100))
    target = await start_servers(3)
    await target.master().restore(str(tmp_path), files)
    worker = target.client(1)
    assert not await ensure(worker, policy)
    np.testing.assert_array_equal(await rows(worker, np.arange(1100)), expected)
    assert sum(t.rows for t in await tables(target)) == 50
    # Ages begin anew: nothing leaves before the eighth update without a gradient; sightings do too.
    for _ in range(7):
        await push(worker, np.arange(2000, 2001))
    assert sum(t.rows for t in await tables(target)) == 51
    for _ in range(3):
        await push(worker, np.arange(2000, 2400))
    assert sum(t.rows for t in await tables(target)) <= 300 + 3

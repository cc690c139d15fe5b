from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.ports.launcher import Role
from elasticdl_proto.v1 import ps_pb2
from elasticdl_runtime.lifecycle import within
from elasticdl_worker.parameters.pulls import PullMoment
from elasticdl_worker.parameters.rounds import follow
from tests.integration.ps.synchronous_model import IDS, ensure, step

pytestmark = pytest.mark.integration


async def assert_all_equal(client: Any, expected: float, version: int) -> None:
    pulled = await client.pull({"t": IDS})
    assert pulled.version == version
    for name, value in {**pulled.dense, **pulled.rows}.items():
        np.testing.assert_allclose(value, expected, rtol=1e-5, err_msg=name)


async def test_an_update_is_the_mean_of_the_gradients_waited_for(servers: Any) -> None:
    clients = [servers.client(index) for index in range(3)]
    for client in clients:
        await ensure(client, 3)
        await client.pull({})
    results = [await client.push(step(amount), version=0) for client, amount in zip(clients, (1, 2, 6), strict=True)]
    assert [(result.accepted, result.version) for result in results] == [(True, 0), (True, 0), (True, 1)]
    reader = servers.client(9)
    await ensure(reader, 3)
    await assert_all_equal(reader, -3, 1)


async def test_a_gradient_of_more_records_weighs_more(servers: Any) -> None:
    """Two workers with minibatches of 24 and 8 records make what one worker makes of all 32."""
    clients = [servers.client(index) for index in range(2)]
    for client in clients:
        await ensure(client, 2)
        await client.pull({})
    for client, amount, records in zip(clients, (1, 5), (24, 8), strict=True):
        assert (await client.push(step(amount, records), version=0)).accepted
    reader = servers.client(9)
    await ensure(reader, 2)
    await assert_all_equal(reader, -(24 * 1 + 8 * 5) / 32, 1)


async def test_a_gradient_of_no_records_is_refused(servers: Any) -> None:
    client = servers.client()
    await ensure(client, 1)
    await client.pull({})
    with pytest.raises(InvalidInputError, match="0 records"):
        await client.push(step(1, 0), version=0)


async def test_a_stale_gradient_is_refused_and_can_be_computed_anew(servers: Any) -> None:
    first, second = servers.client(0), servers.client(1)
    for client in (first, second):
        await ensure(client, 1)
        await client.pull({})
    assert (await first.push(step(1), version=0)).accepted
    refused = await second.push(step(1), version=0)
    assert (refused.accepted, refused.reason) == (False, "stale")
    version = (await second.pull({})).version
    assert (await second.push(step(1), version=version)).accepted
    pulled = await second.pull({"t": IDS})
    np.testing.assert_array_equal(pulled.rows["t"], -2)


async def test_one_worker_is_enough_whatever_is_waited_for(servers: Any) -> None:
    client = servers.client()
    await ensure(client, 4)
    for _ in range(8):
        version = (await client.pull({})).version
        assert (await client.push(step(1), version=version)).accepted
    reader = servers.client(1)
    await ensure(reader, 4)
    await assert_all_equal(reader, -2, 2)


async def test_workers_at_once_make_exact_means(servers: Any) -> None:
    clients = [servers.client(index) for index in range(3)]
    for client in clients:
        await ensure(client, 2)
    pushed = 0

    async def work(client: Any) -> None:
        nonlocal pushed
        done = 0
        while done < 8:
            pulled = await client.pull({"t": IDS})
            # All of a pull is of one version, from all PS.
            assert (pulled.rows["t"] == -pulled.version).all()
            if (await client.push(step(1), version=pulled.version)).accepted:
                done += 1
                pushed += 1

    await asyncio.gather(*(work(client) for client in clients))
    reader = servers.client(9)
    await ensure(reader, 2)
    await assert_all_equal(reader, -(pushed // 2), pushed // 2)


async def test_a_worker_that_dies_after_closing_a_round_is_helped_out(
    start_servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = await start_servers(3)
    doomed, survivor = servers.client(0), servers.client(1)
    for client in (doomed, survivor):
        await ensure(client, 1)
        await client.pull({})

    async def die(*_: Any) -> None:
        raise ConnectionAbortedError("killed before telling the other PS")

    with monkeypatch.context() as patched, pytest.raises(ConnectionAbortedError):
        patched.setattr("elasticdl_worker.parameters.rounds._apply_round", die)
        await doomed.push(step(5), version=0)
    pulled = await survivor.pull({"t": IDS})
    assert pulled.version == 1
    np.testing.assert_array_equal(pulled.rows["t"], -5)
    np.testing.assert_array_equal(pulled.dense["c"], -5)
    assert (await survivor.push(step(1), version=1)).accepted


async def test_several_rounds_missed_by_a_ps_are_caught_up(
    start_servers: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    servers = await start_servers(2)
    doomed, survivor = servers.client(0), servers.client(1)
    for client in (doomed, survivor):
        await ensure(client, 1, tolerance=3)
        await client.pull({})

    async def nothing(*_: Any) -> None:
        return

    with monkeypatch.context() as patched:
        patched.setattr("elasticdl_worker.parameters.rounds._apply_round", nothing)
        for _ in range(3):
            assert (await doomed.push(step(1), version=0)).accepted
    pulled = await survivor.pull({"t": IDS})
    assert pulled.version == 3
    np.testing.assert_array_equal(pulled.rows["t"], -3)


async def test_flushing_ends_an_epoch_with_what_there_is(start_servers: Any) -> None:
    servers = await start_servers(2)
    client = servers.client()
    await ensure(client, 4)
    await client.pull({})
    await client.push(step(3), version=0)
    master = servers.raw(Role.MASTER)
    for _ in range(2):
        closed = (await master[0].call("FlushRound", ps_pb2.FlushRoundRequest(), deadline_s=20)).closed
        assert len(closed.members) == 1
        request = ps_pb2.ApplyRoundRequest(round=closed)
        assert (await master[1].call("ApplyRound", request, deadline_s=20)).version == 1
    await assert_all_equal(client, -3, 1)


async def after_the_death_of_a_ps(servers: Any, tmp_path: Path) -> tuple[Any, Any, Any]:
    """A worker at version 4 and the PS with a checkpoint of version 2, one of them dead and begun anew, empty."""
    client, master = servers.client(), servers.master()
    await ensure(client, 1)
    files = []
    for version in range(4):
        if version == 2:
            files = await master.save(str(tmp_path))
        await client.pull({})
        assert (await client.push(step(1), version=version)).accepted
    await servers.stop(1)
    await servers.start(1)
    return client, master, files


async def test_a_pull_begun_before_the_death_of_a_ps_ends_at_the_checkpoint(
    start_servers: Any, tmp_path: Path
) -> None:
    """What the first PS answered before all went back is newer than anything that will be for a while."""
    servers = await start_servers(2)
    client, master, files = await after_the_death_of_a_ps(servers, tmp_path)
    pull = client._group.puller_of(client._group.cut({}), dense=True)
    first = await pull(0, PullMoment(one_version=True))
    assert first.version == 4
    assert await master.restore(str(tmp_path), files) == 2
    parts = await follow(client._group.servers, first, pull, patience_s=5)
    assert [part.version for part in parts] == [2, 2]


async def test_a_pull_waits_while_only_one_ps_is_back_at_the_checkpoint(start_servers: Any, tmp_path: Path) -> None:
    servers = await start_servers(2)
    client, master, files = await after_the_death_of_a_ps(servers, tmp_path)
    await servers.master(1).restore(str(tmp_path), files)
    pull = client._group.puller_of(client._group.cut({}), dense=True)
    pulls, seen = 0, asyncio.Event()

    async def counted(index: int, moment: PullMoment) -> Any:
        nonlocal pulls
        pulls += index == 0
        if pulls > 2:
            seen.set()
        return await pull(index, moment)

    waiting = asyncio.create_task(
        follow(client._group.servers, await counted(0, PullMoment(one_version=True)), counted, patience_s=30)
    )
    await within(seen.wait(), 60)
    assert not waiting.done()
    await master.restore(str(tmp_path), files)
    parts = await within(waiting, 60)
    assert [part.version for part in parts] == [2, 2]

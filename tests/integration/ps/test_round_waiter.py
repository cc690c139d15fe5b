"""Synchronous mode: who has contributed to a round waits for its end, but not for workers that are gone."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from elasticdl_core.ports.launcher import Role
from elasticdl_proto.v1 import ps_pb2
from elasticdl_runtime.rpc.framing import decode_frame, encode_frame
from tests.integration.ps.synchronous_model import IDS, ensure, step

pytestmark = pytest.mark.integration


async def trained_once(servers: Any, workers: int, grads_to_wait: int, tolerance: int = 0) -> list[Any]:
    """Workers that each have contributed to the first round, and are about to compute for the second."""
    clients = [servers.client(index) for index in range(workers)]
    for client in clients:
        await ensure(client, grads_to_wait, tolerance)
        await client.pull({"t": IDS})
    for client in clients:
        await client.push(step(1), version=0)
    for client in clients:
        await client.pull({"t": IDS})
    return clients


async def test_a_pull_waits_for_the_round_that_the_push_before_it_counts_for(servers: Any, patience: None) -> None:
    first, second, third = await trained_once(servers, 3, 3)
    assert (await first.push(step(1), version=1)).version == 1
    waiting = asyncio.ensure_future(first.pull({"t": IDS}))
    assert (await second.push(step(1), version=1)).version == 1
    assert (await third.push(step(4), version=1)).version == 2
    pulled = await waiting
    assert pulled.version == 2
    np.testing.assert_array_equal(pulled.rows["t"], -3)


async def test_a_push_and_a_pull_in_one_message_wait_as_well(servers: Any, patience: None) -> None:
    clients = await trained_once(servers, 3, 3)
    calls = [
        client.push_pull(step(amount), {"t": IDS}, version=1)
        for client, amount in zip(clients, (1, 1, 4), strict=True)
    ]
    for result, pulled in await asyncio.gather(*calls):
        assert result.accepted
        assert pulled.version == 2
        np.testing.assert_array_equal(pulled.rows["t"], -3)


async def test_nobody_waits_where_its_own_gradients_are_needed(servers: Any, patience: None) -> None:
    first, second = clients = [servers.client(index) for index in range(2)]
    for client in clients:
        await ensure(client, 3)
        await client.pull({})
    for client in (first, second, first):
        await client.push(step(1), version=0)
    for client in clients:
        assert (await client.pull({})).version == 1
    # Two more are missing, and only the second worker is on the way.
    result, pulled = await first.push_pull(step(1), {"t": IDS}, version=1)
    assert (result.accepted, pulled.version) == (True, 1)
    waiting = asyncio.ensure_future(second.push_pull(step(1), {"t": IDS}, version=1))
    assert (await first.push(step(1), version=1)).accepted
    result, pulled = await waiting
    assert (result.accepted, pulled.version) == (True, 2)


async def test_one_worker_of_four_never_waits(servers: Any, patience: None) -> None:
    (only,) = await trained_once(servers, 1, 4)
    for expected in (0, 0, 1, 1):
        result, pulled = await only.push_pull(step(1), {"t": IDS}, version=(await only.pull({})).version)
        assert result.accepted
        assert pulled.version == expected


async def test_workers_that_are_gone_are_waited_for_once(servers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    first, _ = await trained_once(servers, 2, 2)
    monkeypatch.setattr("elasticdl_ps.arrivals._SHORTEST_S", 0.0)
    # The second never comes again: after some time the first goes on by itself.
    result, pulled = await first.push_pull(step(1), {"t": IDS}, version=1)
    assert (result.accepted, pulled.version) == (True, 1)
    result, pulled = await first.push_pull(step(1), {"t": IDS}, version=1)
    assert (result.accepted, pulled.version) == (True, 2)


async def test_who_waits_for_long_asks_again(servers: Any, patience: None, monkeypatch: pytest.MonkeyPatch) -> None:
    first, second = await trained_once(servers, 2, 2)
    monkeypatch.setattr("elasticdl_ps.round_waiter.LONGEST_WAIT_S", 0.0)
    asked = 0
    once = first._group._puller._pull_once

    async def counting(*args: Any) -> Any:
        nonlocal asked
        asked += 1
        if asked == 3:
            assert (await second.push(step(1), version=1)).version == 2
        return await once(*args)

    monkeypatch.setattr(first._group._puller, "_pull_once", counting)
    result, pulled = await first.push_pull(step(1), {"t": IDS}, version=1)
    assert (result.version, pulled.version) == (1, 2)
    assert asked >= 3


async def test_a_flushed_round_has_ended(servers: Any, patience: None, somebody_waits: asyncio.Event) -> None:
    first, _ = await trained_once(servers, 2, 2)
    await first.push(step(3), version=1)
    waiting = asyncio.ensure_future(first.pull({"t": IDS}))
    master = servers.raw(Role.MASTER)[0]
    await somebody_waits.wait()
    await master.call("FlushRound", ps_pb2.FlushRoundRequest(), deadline_s=20)
    pulled = await waiting
    assert pulled.version == 2
    np.testing.assert_array_equal(pulled.rows["t"], -4)


async def test_old_gradients_that_are_welcome_are_not_waited_for(servers: Any, patience: None) -> None:
    first, second = await trained_once(servers, 2, 2, tolerance=1)
    result, pulled = await first.push_pull(step(1), {"t": IDS}, version=1)
    assert (result.accepted, pulled.version) == (True, 1)
    assert (await second.push(step(1), version=1)).version == 2


async def test_nothing_is_pulled_with_a_refused_push(servers: Any, patience: None) -> None:
    first, second = await trained_once(servers, 2, 1)
    assert (await first.push(step(1), version=1)).accepted
    result, pulled = await second.push_pull(step(1), {"t": IDS}, version=1)
    assert (result.accepted, result.reason, pulled) == (False, "stale", None)


async def test_a_ps_that_stops_answers_those_who_wait(
    start_servers: Any, patience: None, somebody_waits: asyncio.Event
) -> None:
    servers = await start_servers(1)
    first, _ = await trained_once(servers, 2, 2)
    await first.push(step(1), version=1)
    pull = encode_frame(ps_pb2.PullRequest(dense_version=-2, wait_for=2).SerializeToString())
    waiting = asyncio.ensure_future(servers.raw()[0].call("Pull", pull, deadline_s=60))
    await somebody_waits.wait()
    servers.let_go(0)
    answer = ps_pb2.PullResponse.FromString(decode_frame(await waiting)[0])
    assert (answer.pending, answer.version) == (True, 1)


async def test_other_ps_do_not_take_a_pull_along_with_a_push(start_servers: Any) -> None:
    servers = await start_servers(2)
    client = servers.client()
    await ensure(client, 1)
    request = ps_pb2.PushPullRequest(push=ps_pb2.PushGradientsRequest(worker="worker-0.0", sequence=1))
    with pytest.raises(Exception, match="PS 1 does not decide on rounds"):
        await servers.raw()[1].call("PushPull", encode_frame(request.SerializeToString()), deadline_s=20)

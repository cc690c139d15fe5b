"""Rows that a worker keeps: how old they may be, and when they are dropped; and messages that are cut."""

from __future__ import annotations

import asyncio
from typing import Any

import numpy as np
import pytest

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import DenseSpec, InitializerSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_proto.v1 import ps_pb2
from elasticdl_runtime.partition import ps_of_ids
from elasticdl_worker.parameters import Gradients
from elasticdl_worker.parameters.codec import push_frame
from elasticdl_worker.parameters.hot_rows import HotRows

pytestmark = pytest.mark.integration

TABLES = [TableSpec("t", 4, InitializerSpec("zeros")), TableSpec("u", 1, InitializerSpec("ones"))]
SGD = OptimizerSpec("sgd", {"learning_rate": 1.0})
BIAS = DenseSpec("bias", (3,))


async def ensure(client: Any, mode: UpdateMode | None = None) -> None:
    await client.ensure_model({"bias": np.zeros(3, np.float32)}, [BIAS], TABLES, SGD, mode or UpdateMode())


def one(ids: Any, amount: float = -1.0) -> Gradients:
    """Makes each row of ``t`` count the updates that it has seen."""
    dense = {"bias": np.ones(3, np.float32)}
    return Gradients(dense, {"t": (ids, np.full((len(ids), 4), amount, np.float32))})


@pytest.mark.parametrize("bound", [1, 3])
async def test_a_row_never_misses_more_updates_than_allowed(servers: Any, bound: int) -> None:
    client = servers.client(hot_rows_staleness=bound)
    await ensure(client)
    ids = np.arange(50)
    ages = []
    for done in range(20):
        pulled = await client.pull({"t": ids, "u": ids})
        seen = pulled.rows["t"]
        assert (seen == seen[:, :1]).all()
        ages.append(done - float(seen.min()))
        assert done - bound <= seen.min()
        assert seen.max() <= done
        np.testing.assert_array_equal(pulled.rows["u"], np.ones((50, 1)))
        if done:
            assert set(pulled.dense) == {"bias"}
        assert (await client.push(one(ids), version=pulled.version)).accepted
    assert max(ages) == bound
    assert client._hot.hits > 0.4 * client._hot.asked
    exact = servers.client(1)
    await ensure(exact)
    np.testing.assert_array_equal((await exact.pull({"t": ids})).rows["t"], np.full((50, 4), 20))


async def test_rows_are_as_without_a_cache_while_nothing_changes(servers: Any) -> None:
    kept, plain = servers.client(0, hot_rows_staleness=5, hot_rows=32), servers.client(1)
    await ensure(kept)
    await ensure(plain)
    random = np.random.default_rng(0)
    await plain.push(Gradients(rows={"t": (np.arange(300), random.normal(size=(300, 4)).astype("f"))}), version=0)
    for _ in range(12):
        ids = random.permutation(300)[:100]
        a, b = await kept.pull({"t": ids, "u": ids[:7]}), await plain.pull({"t": ids, "u": ids[:7]})
        for table in ("t", "u"):
            np.testing.assert_array_equal(a.rows[table], b.rows[table])
    assert kept._hot.hits > 0
    assert kept._hot.nbytes == 32 * (4 + 1) * 4 + 2 * 32 * 24


async def test_pins_are_read_from_the_servers(servers: Any) -> None:
    client, master = servers.client(hot_rows_staleness=9), servers.master()
    await ensure(client)
    ids = np.arange(9)
    await client.push(one(ids), version=0)
    await master.pin(1)
    await client.push(one(ids), version=1)
    for _ in range(3):
        assert (await client.pull({"t": ids})).rows["t"].tolist() == [[2.0] * 4] * 9
    assert (await client.pull({"t": ids}, pin=1)).rows["t"].tolist() == [[1.0] * 4] * 9


async def test_a_replaced_server_makes_the_client_forget(start_servers: Any) -> None:
    servers = await start_servers(2)
    client = servers.client(hot_rows_staleness=100, patience_s=20.0)
    await ensure(client)
    ids = np.arange(40)
    await client.push(one(ids, -5.0), version=0)
    for _ in range(4):
        await client.pull({"t": ids})
    assert client._hot.hits
    mine = ps_of_ids(ids, 2) == 1
    # With the same address, so that only the generation tells.
    await servers.stop(1)
    await servers.start(1)
    other = servers.client(1)
    await ensure(other)
    np.testing.assert_array_equal(
        (await client.pull({"t": ids})).rows["t"], np.where(mine, 0.0, 5.0)[:, None] + [0] * 4
    )
    for _ in range(4):
        await client.pull({"t": ids})
    hits = client._hot.hits
    await client.update_servers(servers.addresses)
    await client.pull({"t": ids})
    assert client._hot.hits == hits


async def test_rows_are_not_kept_in_synchronous_mode(start_servers: Any) -> None:
    client = (await start_servers(1)).client(hot_rows_staleness=1)
    with pytest.raises(InvalidInputError, match="hot_rows_staleness"):
        await ensure(client, UpdateMode(use_async=False))


async def test_the_busiest_server_sends_fewer_rows_of_skewed_ids(start_servers: Any) -> None:
    """Counted where the rows are asked for."""
    busiest = []
    for bound in (0, 8):
        servers = await start_servers(3)
        client = servers.client(hot_rows_staleness=bound)
        await ensure(client)
        sent = np.zeros(3, int)
        pull = client._group.pull_all

        async def counted(ids: Any, pull: Any = pull, sent: Any = sent, **options: Any) -> Any:
            sent += np.bincount(ps_of_ids(ids["t"], 3), minlength=3)
            return await pull(ids, **options)

        client._group.pull_all = counted
        random = np.random.default_rng(0)
        for _ in range(30):
            ids = np.unique(random.zipf(1.3, 400) % 10_000)
            pulled = await client.pull({"t": ids})
            await client.push(one(ids), version=pulled.version)
        busiest.append(int(sent.max()))
    assert busiest[1] < 0.75 * busiest[0]


def test_pulls_that_overtake_each_other_keep_the_younger_row() -> None:
    hot, ids = HotRows(3, 8), np.array([5])
    hot.keep("t", ids, np.array([[1.0]], np.float32), 0)
    assert len(hot.find("t", ids, 1, 0).missing) == 1
    hot.keep("t", ids, np.array([[7.0]], np.float32), 4)
    hot.keep("t", ids, np.array([[1.0]], np.float32), 2)
    found = hot.find("t", ids, 1, 7)
    assert (len(found.missing), found.rows.tolist()) == (0, [[7.0]])
    assert len(hot.find("t", ids, 1, 8).missing) == 1


def test_ids_of_one_place_take_it_from_each_other() -> None:
    hot, ids = HotRows(1, 1), np.arange(6)
    rows = np.arange(6, dtype=np.float32)[:, None]
    for _ in range(3):
        hot.keep("t", ids, rows, 0)
    found = hot.find("t", ids, 1, 0)
    known = np.setdiff1d(ids, found.missing)
    assert len(known) == 1
    np.testing.assert_array_equal(found.rows[known, 0], known)


@pytest.mark.parametrize("mode", [UpdateMode(), UpdateMode(use_async=False)], ids=["async", "sync"])
@pytest.mark.parametrize("dtype", ["float32", "bfloat16"])
async def test_what_is_too_large_for_a_message_is_cut(servers: Any, mode: UpdateMode, dtype: str) -> None:
    small, plain = servers.client(0, wire_dtype=dtype, message_bytes=500), servers.client(1)
    await ensure(small, mode)
    await ensure(plain, mode)
    ids = np.random.default_rng(1).permutation(1000)
    for step in range(1, 4):
        pulled = await small.pull({"t": ids, "u": ids[:99]})
        assert set(pulled.rows) == {"t", "u"}
        result = await small.push(one(ids), version=pulled.version)
        assert (result.accepted, result.version) == (True, step)
    for client in (small, plain):
        pulled = await client.pull({"t": ids, "u": ids[:99]})
        np.testing.assert_array_equal(pulled.rows["t"], np.full((1000, 4), 3))
        np.testing.assert_array_equal(pulled.rows["u"], np.ones((99, 1)))


async def test_a_push_in_pieces_counts_once(start_servers: Any) -> None:
    servers = await start_servers(1)
    client = servers.client()
    await ensure(client)
    (request,) = client._group.build_pushes(one(np.arange(100)), 0, None)
    frame = push_frame(request).encode()

    async def pieces(data: bytes) -> Any:
        for at in range(0, len(data), 300):
            yield data[at : at + 300]

    raw = servers.raw()[0]
    with pytest.raises(InvalidInputError):
        await raw.call("PushGradientsInPieces", pieces(frame[:-64]), deadline_s=20)
    replays = []
    for method, message in (
        ("PushGradientsInPieces", pieces(frame)),
        ("PushGradientsInPieces", pieces(frame)),
        ("PushGradients", frame),
    ):
        answer = ps_pb2.PushGradientsResponse()
        data = await raw.call(method, message, deadline_s=20)
        answer.ParseFromString(data[16 : 16 + int.from_bytes(data[4:8], "little")])
        replays.append((answer.accepted, answer.version, answer.replay))
    assert replays == [(True, 1, False), (True, 1, True), (True, 1, True)]
    np.testing.assert_array_equal((await client.pull({"t": np.arange(100)})).rows["t"], np.ones((100, 4)))


async def test_pulls_and_pushes_at_once_stay_within_the_bound(servers: Any) -> None:
    client = servers.client(hot_rows_staleness=2)
    await ensure(client)
    ids = np.arange(30)
    begun = answered = 0

    async def pull() -> None:
        before = answered
        seen = (await client.pull({"t": ids})).rows["t"]
        assert before - 2 <= seen.min()
        assert seen.max() <= begun

    for _ in range(15):
        begun += 1
        push = asyncio.ensure_future(client.push(one(ids), version=begun - 1))
        await asyncio.gather(pull(), pull())
        await push
        answered += 1
    assert client._hot.hits

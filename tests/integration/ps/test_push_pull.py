"""A push and a pull in one message mean what the two mean."""

from __future__ import annotations

import asyncio
import itertools
from typing import Any

import numpy as np
import pytest

from elasticdl_core.errors import ElasticDLError, InvalidInputError
from elasticdl_core.model import DenseSpec, InitializerSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_proto.v1 import ps_pb2
from elasticdl_runtime.rpc.framing import decode_frame, encode_frame
from elasticdl_worker.parameters import Gradients

pytestmark = pytest.mark.integration

SPECS = [DenseSpec("kernel", (700, 400)), DenseSpec("bias", (3,))]
TABLES = [TableSpec("t", 4, InitializerSpec("normal", seed=2)), TableSpec("u", 1)]
ADAM = OptimizerSpec("adam", {"learning_rate": 0.1})
RANDOM = np.random.default_rng(0)
BATCHES = [np.unique(RANDOM.integers(0, 400, 150)) for _ in range(6)]


async def ensure(client: Any, mode: UpdateMode | None = None) -> None:
    values = {spec.name: np.ones(spec.shape, np.float32) for spec in SPECS}
    await client.ensure_model(values, SPECS, TABLES, ADAM, mode or UpdateMode())


def gradients(ids: Any, seed: int) -> Gradients:
    random = np.random.default_rng(seed)
    rows = {name: (ids, random.normal(size=(len(ids), dim)).astype(np.float32)) for name, dim in (("t", 4), ("u", 1))}
    return Gradients({s.name: random.normal(size=s.shape).astype(np.float32) for s in SPECS}, rows)


def wanted(ids: Any) -> dict[str, Any]:
    return {"t": ids, "u": ids[:50]}


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        (UpdateMode(), {}),
        (UpdateMode(), {"message_bytes": 400}),
        (UpdateMode(), {"wire_dtype": "bfloat16"}),
        (UpdateMode(use_async=False), {}),
    ],
    ids=["one message", "too large", "bfloat16", "synchronous"],
)
@pytest.mark.parametrize("count", [1, 2])
async def test_both_ways_train_alike(start_servers: Any, count: int, mode: UpdateMode, options: Any) -> None:
    together = (await start_servers(count)).client(**options)
    apart = (await start_servers(count)).client(**options)
    await ensure(together, mode)
    await ensure(apart, mode)
    first, second = await together.pull(wanted(BATCHES[0])), await apart.pull(wanted(BATCHES[0]))
    for step, (ids, following) in enumerate(itertools.pairwise(BATCHES)):
        dense = step % 2 == 0
        result, first = await together.push_pull(
            gradients(ids, step), wanted(following), version=first.version, learning_rate=0.05, dense=dense
        )
        expected = await apart.push(gradients(ids, step), version=second.version, learning_rate=0.05)
        second = await apart.pull(wanted(following), dense=dense)
        assert result == expected
        assert first.version == second.version == step + 1
        assert first.dense.keys() == second.dense.keys() == ({"kernel", "bias"} if dense else set())
        for a, b in ((first.dense, second.dense), (first.rows, second.rows)):
            for name, value in a.items():
                np.testing.assert_array_equal(value, b[name])


async def test_pulls_and_pushes_run_beside_it(servers: Any) -> None:
    client = servers.client()
    await ensure(client)
    ids = np.arange(100)
    calls = [client.push_pull(gradients(ids, i), wanted(ids), version=0) for i in range(5)]
    calls += [client.push(gradients(ids, i), version=0) for i in range(5)]
    await asyncio.gather(*calls, *(client.pull(wanted(ids)) for _ in range(5)))
    assert (await client.pull({})).version == 10


async def test_kept_rows_stay_within_their_bound(servers: Any) -> None:
    client = servers.client(hot_rows_staleness=2)
    tables = [TableSpec("t", 4, InitializerSpec("zeros"))]
    await client.ensure_model({}, [], tables, OptimizerSpec("sgd", {"learning_rate": 1.0}), UpdateMode())
    ids, pulled = np.arange(30), await client.pull({})
    for done in range(1, 15):
        step = Gradients(rows={"t": (ids, np.full((30, 4), -1, np.float32))})
        result, pulled = await client.push_pull(step, {"t": ids}, version=pulled.version)
        assert result.accepted
        assert done - 3 <= pulled.rows["t"].min()
        assert pulled.rows["t"].max() <= done
    assert client._hot.hits


@pytest.mark.parametrize(
    ("mode", "options"),
    [
        (UpdateMode(), {}),
        (UpdateMode(), {"message_bytes": 400}),
        (UpdateMode(), {"hot_rows_staleness": 2}),
        (UpdateMode(use_async=False), {}),
        (UpdateMode(use_async=False), {"message_bytes": 400}),
    ],
    ids=["one message", "too large", "kept rows", "synchronous", "synchronous and too large"],
)
@pytest.mark.parametrize("count", [1, 2])
async def test_a_push_counts_though_the_pull_along_with_it_is_refused(
    start_servers: Any, count: int, mode: UpdateMode, options: Any
) -> None:
    """It was applied, at all servers or at some, and answered by the pull's error: its records were trained twice."""
    servers = await start_servers(count)
    client, other = servers.client(**options), servers.client(1)
    tables = [TableSpec("t", 4, InitializerSpec("zeros"), input_dim=10)]
    values = {"bias": np.zeros(3, np.float32)}
    for one in (client, other):
        await one.ensure_model(values, SPECS[1:], tables, OptimizerSpec("sgd", {"learning_rate": 1.0}), mode)
    ids = np.arange(10)
    step = Gradients({"bias": np.ones(3, np.float32)}, {"t": (ids, np.ones((10, 4), np.float32))}, records=32)
    pulled = await client.pull({"t": ids})
    for done, bad in enumerate(range(90, 98), start=1):
        # Which server refuses depends on the id.
        result, refused = await client.push_pull(step, {"t": np.array([3, bad])}, version=pulled.version)
        assert (result.accepted, result.version) == (True, done)
        assert isinstance(refused, InvalidInputError)
        assert f"the id {bad} is outside the table 't'" in refused.message
        pulled = await client.pull({"t": ids})
        there = await other.pull({"t": ids})
        np.testing.assert_array_equal(there.rows["t"], np.full((10, 4), -done, np.float32))
        np.testing.assert_array_equal(there.dense["bias"], np.full(3, -done, np.float32))
    result, missing = await client.push_pull(step, {"t": ids}, version=pulled.version)
    assert result.accepted and not isinstance(missing, ElasticDLError)


@pytest.mark.parametrize("mode", [UpdateMode(), UpdateMode(use_async=False)], ids=["asynchronous", "synchronous"])
@pytest.mark.parametrize("along", [True, False], ids=["with a pull", "alone"])
async def test_a_push_that_one_server_refuses_is_told_as_it_is_by_the_tallies(
    start_servers: Any, mode: UpdateMode, along: bool
) -> None:
    """The other may have applied its part, and the task is done again: what is there twice is counted as twice."""
    servers = await start_servers(2)
    client, master = servers.client(), servers.master()
    tables = [TableSpec("t", 4, InitializerSpec("zeros"), input_dim=10)]
    values = {spec.name: np.zeros(spec.shape, np.float32) for spec in SPECS}
    await client.ensure_model(values, SPECS, tables, OptimizerSpec("sgd", {"learning_rate": 1.0}), mode)
    owners = client._group.cut({"t": np.arange(100)}).parts
    bad = next(one for one in owners[1]["t"].tolist() if one >= 10)  # the second one refuses it, the first has none
    pulled = await client.pull({"t": np.arange(10)})

    def step(*ids: int) -> Gradients:
        rows = {"t": (np.array(ids), np.full((len(ids), 4), -1, np.float32))}
        dense = {spec.name: np.full(spec.shape, -1, np.float32) for spec in SPECS}
        return Gradients(dense, rows, records=8, task=(0, 3))

    async def push(step: Gradients) -> Any:
        if along:
            return (await client.push_pull(step, {"t": np.arange(10)}, version=pulled.version))[0]
        return await client.push(step, version=pulled.version)

    with pytest.raises(InvalidInputError, match=f"the id {bad} is outside the table 't'"):
        await push(step(*range(10), bad))
    pulled = await client.pull({"t": np.arange(10)})
    assert (await push(step(*range(10)))).accepted  # the task is done again
    rows = (await client.pull({"t": np.arange(10)})).rows["t"]
    tallies = [tallied.counts for tallied in await master.tallies()]
    assert tallies[1] == {(0, 3): 8}
    # A round needs all parts before it counts. Without rounds, a call without an answer is given up at the refusal.
    twice = {8} if not mode.use_async else {16} if along else {8, 16}
    assert tallies[0][0, 3] in twice
    for owned, tally in zip(owners, tallies, strict=True):
        mine = owned["t"][owned["t"] < 10]
        np.testing.assert_array_equal(rows[mine], np.full((len(mine), 4), tally[0, 3] // 8, np.float32))


async def test_short_steps_need_no_thread(start_servers: Any) -> None:
    servers = await start_servers(2)
    client = servers.client()
    await ensure(client)
    pulled = await client.pull(wanted(BATCHES[0]))
    for ids in BATCHES[1:3]:
        _, pulled = await client.push_pull(gradients(ids, 0), wanted(ids), version=pulled.version)
    for index in range(2):
        servers.end_threads(index)
    for ids in BATCHES[3:]:
        result, pulled = await client.push_pull(gradients(ids, 0), wanted(ids), version=pulled.version)
        assert result.accepted
    assert (await client.pull(wanted(BATCHES[0]))).version == 5
    ids = np.arange(30_000)
    with pytest.raises(ElasticDLError, match="after shutdown"):
        await client.pull({"t": ids, "u": ids})


async def test_a_replaced_server_refuses_its_part_and_answers_the_pull(start_servers: Any) -> None:
    servers = await start_servers(2)
    client, other = servers.client(patience_s=20.0), servers.client(1)
    await ensure(client)
    ids = np.arange(60)
    pulled = await client.pull(wanted(ids))
    await servers.stop(1)
    await servers.start(1)
    waiting = asyncio.ensure_future(client.push_pull(gradients(ids, 0), wanted(ids), version=pulled.version))
    await ensure(other)
    result, fresh = await waiting
    assert (result.accepted, result.version) == (True, 1)
    expected = await other.pull(wanted(ids))
    np.testing.assert_array_equal(fresh.rows["t"], expected.rows["t"])
    assert (fresh.rows["t"] == pulled.rows["t"]).all(axis=1).any()


async def test_a_repeated_message_counts_once_and_odd_ones_are_refused(start_servers: Any) -> None:
    servers = await start_servers(1)
    client = servers.client()
    await ensure(client)
    raw = servers.raw()[0]
    message = ps_pb2.PushPullRequest(pull_from=1)
    message.push.worker, message.push.sequence = "worker-0.0", 7
    message.push.dense.add(name="bias", stop=3, buffer=0)
    message.pull.rows.add(table="t", ids=0)
    frame = encode_frame(message.SerializeToString(), [np.ones(3, np.float32), np.arange(5)])
    for replay in (False, True):
        header, buffers = decode_frame(await raw.call("PushPull", frame, deadline_s=20))
        answer = ps_pb2.PushPullResponse.FromString(header)
        assert (answer.push.version, answer.push.replay, answer.pull.version) == (1, replay, 1)
        assert len(buffers[answer.pull.rows[0].values]) == 5 * 4 * 4
    for change in ({"pull_from": 9}, {"pull_from": -1}, {"pull": ps_pb2.PullRequest(pin=1)}):
        odd = ps_pb2.PushPullRequest(push=ps_pb2.PushGradientsRequest(worker="worker-0.0", sequence=9), **change)
        with pytest.raises(InvalidInputError):
            await raw.call("PushPull", encode_frame(odd.SerializeToString()), deadline_s=20)
    assert (await client.pull({})).version == 1

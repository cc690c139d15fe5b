"""Restarts, lost answers and pins, seen through the client."""

from __future__ import annotations

import asyncio
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.errors import FencedError, InvalidInputError, UnavailableError
from elasticdl_core.model import DenseSpec, InitializerSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_proto.v1 import ps_pb2
from elasticdl_worker.parameters import Gradients
from elasticdl_worker.parameters import connection as connection_module

pytestmark = pytest.mark.integration

SPECS = [DenseSpec("w", (4,)), DenseSpec("large", (600_000,)), DenseSpec("b", (2,))]
TABLES = [TableSpec("t", 2, InitializerSpec("zeros"))]
SGD = OptimizerSpec("sgd", {"learning_rate": 1.0})
IDS = np.arange(30)


async def ensure(client: Any) -> bool:
    zeros = {spec.name: np.zeros(spec.shape) for spec in SPECS}
    return bool(await client.ensure_model(zeros, SPECS, TABLES, SGD, UpdateMode()))


def step() -> Gradients:
    dense = {spec.name: -np.ones(spec.shape, np.float32) for spec in SPECS}
    return Gradients(dense, {"t": (IDS, -np.ones((len(IDS), 2), np.float32))})


async def test_a_replaced_ps_is_waited_for_and_pulled_anew(start_servers: Any, tmp_path: Path) -> None:
    servers = await start_servers(2)
    worker, master = servers.client(), servers.master()
    await ensure(worker)
    await worker.pull({})
    await worker.push(step(), version=0)
    files = await master.save(str(tmp_path))
    await worker.push(step(), version=1)
    pulled = await worker.pull({"t": IDS})
    assert pulled.version == 2

    await servers.stop(1)
    await servers.start(1)
    # The update of the restarted partition is refused, the other's is taken.
    assert (await worker.push(step(), version=2)).accepted
    waiting = asyncio.create_task(worker.pull({"t": IDS}))
    assert await servers.master(1).restore(str(tmp_path), files) == 1
    pulled = await waiting
    assert pulled.version == 3
    assert set(pulled.dense) == {"w", "large", "b"}
    # Elements of the restored PS are those of the checkpoint; the others have all three updates.
    assert sorted(set(pulled.dense["large"].tolist())) == [1, 3]
    assert sorted(set(pulled.rows["t"].reshape(-1).tolist())) == [1, 3]
    result = await worker.push(step(), version=pulled.version)
    assert (result.accepted, result.version) == (True, 4)
    assert sorted(set((await worker.pull({"t": IDS})).rows["t"].reshape(-1).tolist())) == [2, 4]


async def test_a_worker_that_joins_after_a_restore_disturbs_no_round(start_servers: Any, tmp_path: Path) -> None:
    servers = await start_servers(2)
    worker, joining = servers.client(0), servers.client(1)
    master = servers.master()
    mode = UpdateMode(use_async=False, grads_to_wait=2)
    zeros = {spec.name: np.zeros(spec.shape) for spec in SPECS}
    await worker.ensure_model(zeros, SPECS, TABLES, SGD, mode)
    await master.restore(str(tmp_path), await master.save(str(tmp_path)))
    assert (await worker.push(step(), version=(await worker.pull({})).version)).accepted
    await joining.ensure_model(zeros, SPECS, TABLES, SGD, mode)
    pulled = await joining.pull({})
    assert (await joining.push(step(), version=pulled.version)).version == 1
    for client in (worker, joining):
        assert ((await client.pull({"t": IDS})).rows["t"] == 1).all()


async def test_new_addresses_and_another_number_of_ps(start_servers: Any, tmp_path: Path) -> None:
    old, new = await start_servers(1), await start_servers(3)
    worker = old.client()
    await ensure(worker)
    await worker.pull({})
    await worker.push(step(), version=0)
    files = await old.master().save(str(tmp_path))
    await new.master().restore(str(tmp_path), files)
    await worker.update_servers(new.addresses, "second")
    pulled = await worker.pull({"t": IDS})
    assert set(pulled.dense) == {"w", "large", "b"}
    assert (pulled.dense["large"] == 1).all()
    assert (pulled.rows["t"] == 1).all()
    assert (await worker.push(step(), version=pulled.version)).accepted
    assert ((await worker.pull({})).dense["large"] == 2).all()


class Lost:
    """A call that reaches the PS, and whose answer does not come back."""

    def __init__(self, call: Any) -> None:
        self._call = call

    def __await__(self) -> Any:
        yield from self._call.__await__()
        raise UnavailableError("the answer was lost")

    def cancel(self) -> None:
        self._call.cancel()


async def test_a_push_whose_answer_is_lost_counts_once(start_servers: Any) -> None:
    servers = await start_servers(2)
    worker = servers.client()
    await ensure(worker)
    await worker.pull({})
    client = worker._group.servers[0]._client
    begin, lost = client.begin_in_stream, []

    def lossy(method: str, what: int, frame: bytes, *, deadline_s: float) -> Any:
        call = begin(method, what, frame, deadline_s=deadline_s)
        if what != ps_pb2.STEP_PUSH or len(lost) == 2:
            return call
        lost.append(what)
        return Lost(call)

    client.begin_in_stream = lossy
    assert (await worker.push(step(), version=0)).accepted
    assert len(lost) == 2
    assert ((await worker.pull({"t": IDS})).rows["t"] == 1).all()


async def test_a_push_with_a_pull_whose_answers_are_lost_counts_once(start_servers: Any) -> None:
    servers = await start_servers(2)
    worker = servers.client()
    await ensure(worker)
    pulled = await worker.pull({"t": IDS})
    lost = []

    def lose_one(client: Any) -> None:
        begin = client.begin_in_stream

        def lossy(method: str, what: int, frame: bytes, *, deadline_s: float) -> Any:
            call = begin(method, what, frame, deadline_s=deadline_s)
            if what != ps_pb2.STEP_PUSH_PULL or client in lost:
                return call
            lost.append(client)
            return Lost(call)

        client.begin_in_stream = lossy

    for server in worker._group.servers:
        lose_one(server._client)
    for done in (1, 2):
        result, pulled = await worker.push_pull(step(), {"t": IDS}, version=pulled.version)
        assert (result.accepted, result.version, pulled.version) == (True, done, done)
        assert (pulled.rows["t"] == done).all()
    assert len(lost) == 2


async def replaced_worker(servers: Any) -> Any:
    """A worker whose next incarnation has pushed already."""
    old, new = servers.client(3, incarnation=1), servers.client(3, incarnation=2)
    await ensure(old)
    await ensure(new)
    assert (await new.push(step(), version=0)).accepted
    return old


class Endless:
    """A call that is never answered."""

    def __init__(self) -> None:
        self.ended = asyncio.get_running_loop().create_future()

    def __await__(self) -> Any:
        return (yield from self.ended.__await__())

    def cancel(self) -> None:
        self.ended.cancel()


async def test_a_refusal_by_one_server_ends_the_calls_of_all(start_servers: Any) -> None:
    servers = await start_servers(2)
    worker = await replaced_worker(servers)
    endless = Endless()
    worker._group.servers[1]._client.begin_in_stream = lambda method, what, frame, *, deadline_s: endless
    with pytest.raises(FencedError):
        await worker.push_pull(step(), {"t": IDS}, version=0)
    assert endless.ended.cancelled()


async def test_a_server_that_is_away_is_tried_again_while_the_others_have_answered(start_servers: Any) -> None:
    servers = await start_servers(3)
    worker = servers.client(patience_s=0.3)
    await ensure(worker)
    pulled = await worker.pull({"t": IDS})
    await servers.stop(1)
    with pytest.raises(UnavailableError, match="PS 1"):
        await worker.push_pull(step(), {"t": IDS}, version=pulled.version)
    clients = servers.raw()
    status = [await clients[index].call("Status", ps_pb2.StatusRequest(), deadline_s=20) for index in (0, 2)]
    assert [one.updates for one in status] == [1, 1]


async def test_patience_ends_with_an_error_that_names_the_ps(start_servers: Any) -> None:
    servers = await start_servers(2)
    worker = servers.client(patience_s=0.3)
    await ensure(worker)
    await servers.stop(1)
    with pytest.raises(UnavailableError, match="PS 1"):
        await worker.pull({"t": IDS})
    await servers.start(1)
    async with asyncio.timeout(60):
        said = ""
        while "no model" not in said:  # until the channel's back-off is over and the new process is asked
            with pytest.raises(UnavailableError, match="PS 1") as caught:
                await worker.pull({"t": IDS})
            said = caught.value.message


async def test_a_replaced_worker_stops(start_servers: Any) -> None:
    old = await replaced_worker(await start_servers(1))
    with pytest.raises(FencedError):
        await old.push(step(), version=0)


async def test_evaluation_at_a_pin_while_training_goes_on(servers: Any) -> None:
    worker, evaluator = servers.client(0), servers.client(1)
    master = servers.master()
    await ensure(worker)
    await ensure(evaluator)
    await worker.push(step(), version=0)
    assert await master.pin(5) == 1
    await evaluator.pull({})
    for version in (1, 2):
        await worker.push(step(), version=version)
    for _ in range(2):
        past = await evaluator.pull({"t": np.array([0, 29, 1000])}, pin=5)
        assert past.version == 1
        assert set(past.dense) == {"w", "large", "b"}
        assert all((value == 1).all() for value in past.dense.values())
        assert past.rows["t"].tolist() == [[1, 1], [1, 1], [0, 0]]
    # A pinned pull does not count as having seen the present.
    present = await evaluator.pull({"t": IDS})
    assert all((value == 3).all() for value in present.dense.values())
    assert set(present.dense) == {"w", "large", "b"}
    await master.unpin(5)


async def test_large_dense_models_are_streamed_both_ways(servers: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    for module in ("elasticdl_ps.pulls", connection_module.__name__):
        monkeypatch.setattr(f"{module}.CHUNK_BYTES", 1 << 20)
    worker, other = servers.client(0), servers.client(1)
    random = np.random.default_rng(0)
    values = {spec.name: random.normal(size=spec.shape).astype(np.float32) for spec in SPECS}
    assert await worker.ensure_model(values, SPECS, TABLES, SGD, UpdateMode())
    await ensure(other)
    pulled = await other.pull({"t": IDS})
    for name, value in values.items():
        np.testing.assert_array_equal(pulled.dense[name], value)
    await worker.push(step(), version=0)
    pulled = await other.pull({"t": IDS})
    np.testing.assert_array_equal(pulled.dense["large"], values["large"] + 1)


@pytest.mark.parametrize(
    ("gradients", "word"),
    [
        (Gradients({"nobody": np.ones(3)}), "nobody"),
        (Gradients({"w": np.ones(5)}), "w"),
        (Gradients({"w": np.array([1, np.nan, 0, 0])}), "NaN"),
        (Gradients(rows={"t": (IDS, np.ones((30, 3), np.float32))}), "shape"),
        (Gradients(rows={"t": (np.array([1, 1]), np.ones((2, 2), np.float32))}), "twice"),
        (Gradients(rows={"none": (IDS, np.ones((30, 2), np.float32))}), "none"),
    ],
)
async def test_gradients_that_cannot_be_applied_name_the_cause(servers: Any, gradients: Gradients, word: str) -> None:
    worker = servers.client()
    await ensure(worker)
    with pytest.raises(InvalidInputError, match=word) as caught:
        await worker.push(gradients, version=0)
    assert caught.value.fix
    assert (await worker.push(step(), version=0)).accepted

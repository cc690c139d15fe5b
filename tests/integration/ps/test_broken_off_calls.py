"""Each call of a parameter server, broken off at each of its awaits: the next try gives what one call gives."""

from __future__ import annotations

import asyncio
import inspect
from collections.abc import AsyncIterator, Awaitable, Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.model import DenseSpec, InitializerSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_core.ports.launcher import Role
from elasticdl_proto.v1 import ps_pb2, pserver_pb2
from elasticdl_ps import gateway
from elasticdl_ps import servicer as servicer_module
from elasticdl_ps.gateway import tensor_of
from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.servicer import ParameterServer
from elasticdl_ps.store.partition import DenseInit, Partition
from elasticdl_runtime.lifecycle import within
from elasticdl_runtime.rpc.framing import encode_frame
from elasticdl_runtime.tokens import Claims
from elasticdl_worker.parameters import codec
from elasticdl_worker.parameters.codec import ModelSlice
from tests import rotation
from tests.fakes.cuts import Cut, Moment, places
from tests.integration.ps.test_steps import pull, push, push_pull

pytestmark = pytest.mark.integration
SPEC, TABLE, SGD = DenseSpec("w", (4,)), TableSpec("t", 2, InitializerSpec("zeros")), OptimizerSpec("sgd")
WORKER, MASTER = (Claims("job-1", role, 0, 0, 1e12) for role in (Role.WORKER, Role.MASTER))
IN_THE_GATE = 3
Called = Callable[[], Awaitable[object]]


class Server:
    """A parameter server without a network, whose threads do all its work; a checkpoint is in its folder."""

    def __init__(self, folder: Path, mode: UpdateMode) -> None:
        self.folder = folder
        self.partition = Partition(load_kernels())
        self.servicer = ParameterServer(self.partition, 0, 1)
        self.partition.push_model([DenseInit(SPEC, 0, 4, np.zeros(4, np.float32))], [TABLE], SGD, mode)

    async def read(self) -> dict[str, Any]:
        """All that a call may change."""
        await self.servicer._threads.write(lambda: None)  # what was begun is done
        await self.servicer._threads.save(lambda: None)
        await self.servicer._threads.write(lambda: None)
        status = await self.servicer.Status(ps_pb2.StatusRequest(), MASTER)
        cut = self.servicer._cut
        return {
            "version": status.version,
            "rows": status.rows,
            "records": status.records,
            "updates": status.updates,
            "dense": [part.values.tolist() for part in self.partition.dense.read(-1)],
            "pins": sorted(self.partition._pins),
            "cut": cut is not None,
            "let go": cut is None or self.servicer._cut_ends is not None,
            "hold": self.servicer._training._hold.active,
            "busy": self.servicer._threads._running,
            "files": sorted(path.name for path in self.folder.glob("*/*")),
        }


Prepare = Callable[[Server], Called]
PREPARED: dict[str, tuple[Prepare, bool]] = {}


def call(method: str, *, use_async: bool = True) -> Callable[[Prepare], Prepare]:
    def add(prepare: Prepare) -> Prepare:
        PREPARED[method] = (prepare, use_async)
        return prepare

    return add


def frame_of(made: tuple[Any, list[Any]]) -> bytes:
    message, buffers = made
    return encode_frame(message.SerializeToString(), buffers)


async def pieces(frame: bytes) -> AsyncIterator[bytes]:
    for at in range(0, len(frame), 100):
        await asyncio.sleep(0)
        yield frame[at : at + 100]


def unary(method: str, request: Any, caller: Claims = MASTER, *, use_async: bool = True) -> None:
    @call(method, use_async=use_async)
    def prepare(server: Server) -> Called:
        return lambda: getattr(server.servicer, method)(request, caller)


unary("Status", ps_pb2.StatusRequest(model=True))
unary("Pull", frame_of(pull()), WORKER)
unary("PushGradients", frame_of(push(1)), WORKER)
unary("PushPull", frame_of(push_pull(1)), WORKER)
unary("ClosedRounds", ps_pb2.ClosedRoundsRequest(since=0), WORKER, use_async=False)
unary("FlushRound", ps_pb2.FlushRoundRequest(), use_async=False)
unary("HoldRounds", ps_pb2.HoldRoundsRequest(seconds=600), use_async=False)
unary("ReleaseRounds", ps_pb2.ReleaseRoundsRequest(), use_async=False)
unary("Cut", ps_pb2.CutRequest(version=0))
unary("Pin", ps_pb2.PinRequest(pin=3))
unary("Unpin", ps_pb2.UnpinRequest(pin=3))
unary("Tally", ps_pb2.TallyRequest())


@call("ApplyRound", use_async=False)
def _apply_round(server: Server) -> Called:
    """What the first server has closed, at another one."""

    async def make() -> None:
        first = Server(server.folder, UpdateMode(False, 2))
        await first.servicer.PushGradients(frame_of(push(1)), WORKER)
        closed = (await first.servicer.FlushRound(ps_pb2.FlushRoundRequest(), MASTER)).closed
        first.servicer.close()
        server.servicer._index = 1
        await server.servicer.PushGradients(frame_of(push(1)), WORKER)
        await server.servicer.ApplyRound(ps_pb2.ApplyRoundRequest(round=closed), WORKER)

    return make


@call("PushModel")
def _push_model(server: Server) -> Called:
    frame = codec.model_frame([ModelSlice(SPEC, 0, 4, np.zeros(4, np.float32))], ["w"], [TABLE], SGD, UpdateMode())
    return lambda: server.servicer.PushModel(pieces(frame.encode()), WORKER)


@call("PushGradientsInPieces")
def _push_in_pieces(server: Server) -> Called:
    return lambda: server.servicer.PushGradientsInPieces(pieces(frame_of(push(1))), WORKER)


@call("PullDenseParameters")
def _pull_dense(server: Server) -> Called:
    async def read() -> None:
        async for _ in server.servicer.PullDenseParameters(frame_of(pull()), WORKER):
            pass

    return read


@call("Steps")
def _steps(server: Server) -> Called:
    async def make() -> None:
        answer = server.servicer.Steps(ps_pb2.STEP_PUSH_PULL, frame_of(push_pull(1)), WORKER)
        if inspect.isawaitable(answer):
            await answer

    return make


@call("Save")
def _save(server: Server) -> Called:
    (server.folder / "saved").mkdir()
    return lambda: server.servicer.Save(ps_pb2.SaveRequest(directory=str(server.folder / "saved")), MASTER)


@call("Restore")
def _restore(server: Server) -> Called:
    async def make() -> None:
        folder = server.folder / "old"
        folder.mkdir(exist_ok=True)
        saved = await saved_once(server, folder)
        await server.servicer.Restore(ps_pb2.RestoreRequest(directory=str(folder), files=saved), MASTER)

    return make


async def saved_once(server: Server, folder: Path) -> list[Any]:
    other = Partition(load_kernels())
    other.push_model([DenseInit(SPEC, 0, 4, np.ones(4, np.float32))], [TABLE], SGD, UpdateMode())
    writer = ParameterServer(other, 0, 1)
    try:
        return list((await writer.Save(ps_pb2.SaveRequest(directory=str(folder)), MASTER)).files)
    finally:
        writer.stop()
        writer.close()


def published(method: str, request: Any) -> None:
    @call(method)
    def prepare(server: Server) -> Called:
        metadata = {"optimizer": '{"name": "sgd", "params": {"learning_rate": 1.0}}'}

        async def make() -> None:
            # A push has no number there: whoever sends it again looks first whether it has come.
            await server.servicer._threads.write(lambda: None)
            if method != "push_gradients" or server.partition.version == 0:
                await getattr(server.servicer.published, method)(request, WORKER, metadata)

        return make


ROW = tensor_of(np.ones((1, 2), np.float32))
published("pull_dense_parameters", pserver_pb2.PullDenseParametersRequest())
published("pull_embedding_table", pserver_pb2.PullEmbeddingTableRequest(name="t", indices=[7]))
published("push_dense_paramters", pserver_pb2.Model(dense_parameters={"w": tensor_of(np.ones(4, np.float32))}))
published(
    "push_embedding_table_infos",
    pserver_pb2.EmbeddingTableInfos(embedding_table_infos=[pserver_pb2.EmbeddingTableInfo(name="u", dim=2)]),
)
published(
    "push_gradients",
    pserver_pb2.Model(
        dense_parameters={"w": tensor_of(np.ones(4, np.float32))},
        embedding_tables={"t": pserver_pb2.IndexedSlices(concat_tensors=ROW, ids=[7])},
    ),
)


def test_each_call_is_broken_off() -> None:
    services = ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"], gateway.SERVICE
    assert {method for service in services for method in service.methods_by_name} == set(PREPARED)


async def make(folder: Path, method: str, cut: Cut, at: int, moment: Moment) -> dict[str, Any]:
    """Makes a call, or breaks it off and makes it again; what there is then."""
    folder.mkdir()
    prepare, use_async = PREPARED[method]
    server = Server(folder, UpdateMode(use_async, 1))
    try:
        called = prepare(server)
        await cut.run(called(), at, moment)
        if cut.broken:
            await called()
        return await server.read()
    finally:
        server.servicer.stop()
        server.servicer.close()


async def sweep(tmp_path: Path, method: str, most: int | None) -> None:
    cut = Cut()
    wanted = await make(tmp_path / f"{method}-whole", method, cut, 0, Moment.WAITING)
    tried = places(cut.awaits) if most is None else rotation.share(method, places(cut.awaits), most)
    for at, moment in tried:
        found = await make(tmp_path / f"{method}-{at}-{moment}", method, cut, at, moment)
        assert found == wanted, (method, at, str(moment))


@pytest.fixture(autouse=True)
def in_threads(monkeypatch: pytest.MonkeyPatch) -> None:
    """Everything is left to threads, as what is large is."""
    monkeypatch.setattr("elasticdl_ps.training_calls._SHORT", -1)


async def test_wherever_a_call_is_broken_off_the_next_one_makes_it_whole(tmp_path: Path) -> None:
    for method in PREPARED:
        await sweep(tmp_path, method, IN_THE_GATE)


@pytest.mark.slow
@pytest.mark.parametrize("method", sorted(PREPARED))
async def test_a_call_may_be_broken_off_at_each_of_its_awaits(tmp_path: Path, method: str) -> None:
    await sweep(tmp_path, method, None)


async def test_a_cut_whose_order_is_broken_off_is_let_go(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(servicer_module, "_CUT_LIFE_S", 0.0)
    server, cut = Server(tmp_path, UpdateMode()), Cut()
    await cut.run(server.servicer.Cut(ps_pb2.CutRequest(version=0), MASTER), 1)
    assert cut.broken
    for _ in range(2):
        await asyncio.sleep(0)
        await server.servicer._threads.write(lambda: None)
    assert server.servicer._cut is None
    server.partition.release(server.partition.snapshot())
    server.servicer.close()


async def test_who_waits_for_a_round_looks_again_though_the_last_pusher_is_gone(tmp_path: Path) -> None:
    server, cut = Server(tmp_path, UpdateMode(False, 1)), Cut()
    waiting = asyncio.ensure_future(server.servicer._training._waiter._next_look(3600.0))
    await asyncio.sleep(0)
    await cut.run(server.servicer.PushGradients(frame_of(push(1)), WORKER), 1)
    assert cut.broken
    await within(waiting, 60)
    assert server.partition.version == 1
    server.servicer.stop()
    server.servicer.close()

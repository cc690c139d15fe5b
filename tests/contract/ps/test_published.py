"""The published protocol at the door of a parameter server: what it reads, applies and refuses."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable
from pathlib import Path
from typing import Any

import grpc
import numpy as np
import pytest
from google.protobuf.message_factory import GetMessageClass
from hypothesis import given
from hypothesis import strategies as st

from elasticdl_core.errors import ElasticDLError
from elasticdl_core.model import UpdateMode
from elasticdl_core.ports.launcher import Role
from elasticdl_proto.v1 import ps_pb2
from elasticdl_proto.v1 import pserver_pb2 as pb
from elasticdl_ps import gateway
from elasticdl_ps.gateway import array_of_tensor, tensor_of
from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.servicer import ParameterServer
from elasticdl_ps.store.partition import Partition
from elasticdl_runtime.lifecycle import within
from elasticdl_runtime.rpc.service import listen, make_server
from elasticdl_runtime.tokens import issue, verify
from tests.contract.ps.conftest import JOB, SECRET
from tests.fakes.odd_messages import DOCUMENTED, FEW, messages
from tests.fakes.odd_messages import Door as OddDoor

pytestmark = pytest.mark.contract
SGD = '{"name": "sgd", "params": {"learning_rate": 1.0}}'
METHODS = gateway.SERVICE.methods_by_name
Call = Callable[..., Any]


def floats(*numbers: float, shape: tuple[int, ...] | None = None) -> pb.Tensor:
    return tensor_of(np.array(numbers, np.float32).reshape(shape or len(numbers)))


class Server:
    """A server without a model, called as a program does that knows the published file only."""

    def __init__(self, folder: Path, num_ps: int) -> None:
        self.partition = Partition(load_kernels())
        self.servicer = ParameterServer(self.partition, 0, num_ps)
        service = ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"]
        self.server = make_server(service, self.servicer, lambda token: verify(SECRET, token, job_id=JOB))
        self.server.serve_too(gateway.SERVICE, self.servicer.published, gateway.NAME)
        self.channel = grpc.aio.insecure_channel(listen(self.server, f"unix:{folder}/ps.sock"))

    async def call(self, method: str, request: Any, *, role: Role = Role.WORKER, optimizer: str = SGD) -> Any:
        metadata = [("authorization", f"Bearer {issue(SECRET, JOB, role, 0, 0)}")]
        if optimizer:
            metadata.append(("optimizer", optimizer))
        data = request if isinstance(request, bytes) else request.SerializeToString()
        answer = await self.channel.unary_unary(f"/Pserver/{method}")(data, metadata=metadata, timeout=20)
        return GetMessageClass(METHODS[method].output_type).FromString(answer)

    async def close(self) -> None:
        await self.channel.close()
        await self.server.stop(None)
        self.servicer.close()


@pytest.fixture
async def start(tmp_path: Path) -> AsyncIterator[Call]:
    servers: list[Server] = []

    async def make(num_ps: int = 1) -> Server:
        servers.append(Server(tmp_path, num_ps))
        await servers[-1].server.start()
        return servers[-1]

    yield make
    for server in servers:
        await server.close()


@pytest.fixture
async def server(start: Call) -> Server:
    """A server with a model: a dense parameter and a table."""
    made = await start()
    info = pb.EmbeddingTableInfo(name="t", dim=2, initializer="ones")
    await made.call("push_embedding_table_infos", pb.EmbeddingTableInfos(embedding_table_infos=[info]))
    await made.call(
        "push_dense_paramters", pb.Model(dense_parameters={"w": floats(1, 2, 3, 4, shape=(2, 2)), "b": floats(5)})
    )
    return made


async def dense_of(server: Server, version: int = 0) -> dict[str, Any]:
    answer = await server.call("pull_dense_parameters", pb.PullDenseParametersRequest(version=version))
    return {name: array_of_tensor(one, name, ("float32",)).tolist() for name, one in answer.dense_parameters.items()}


async def test_a_server_without_a_model_says_so_and_keeps_the_first(start: Call) -> None:
    server = await start()
    answer = await server.call("pull_dense_parameters", pb.PullDenseParametersRequest(version=-1))
    assert (answer.initialized, list(answer.dense_parameters)) == (False, [])
    await server.call("push_dense_paramters", pb.Model(dense_parameters={"w": floats(1, 2)}))
    await server.call("push_dense_paramters", pb.Model(dense_parameters={"w": floats(3, 4)}), optimizer="")
    answer = await server.call("pull_dense_parameters", pb.PullDenseParametersRequest())
    assert answer.initialized
    assert await dense_of(server) == {"w": [1, 2]}


async def test_gradients_of_both_kinds_are_one_update(server: Server) -> None:
    gradients = pb.Model(
        dense_parameters={"w": floats(1, 0, 0, -1, shape=(2, 2))},
        embedding_tables={
            "t": pb.IndexedSlices(concat_tensors=floats(1, 1, 2, 2, 0.5, 0, shape=(3, 2)), ids=[7, -3, 7])
        },
    )
    answer = await server.call("push_gradients", gradients)
    assert (answer.accepted, answer.version) == (True, 1)
    assert await dense_of(server) == {"w": [[0, 2], [3, 5]], "b": [5]}
    assert await dense_of(server, 1) == {}
    rows = await server.call("pull_embedding_table", pb.PullEmbeddingTableRequest(name="t", indices=[7, -3, 9]))
    assert array_of_tensor(rows.concat_tensors, "rows", ("float32",)).tolist() == [[-0.5, 0], [-1, -1], [1, 1]]
    assert list(rows.ids) == [7, -3, 9]
    assert (await server.call("push_gradients", gradients)).version == 2


async def test_each_of_several_pushes_at_once_counts_whichever_was_read_first(server: Server) -> None:
    """Programs with one token are one to the server, which took the later number first and dropped the other push."""
    threads, is_read, may_go_on = server.servicer._threads, asyncio.Event(), asyncio.Event()
    read = threads.read

    async def slow(work: Any) -> Any:
        threads.read = read
        found = await read(work)
        is_read.set()
        await may_go_on.wait()
        return found

    threads.read = slow
    gradient = pb.Model(dense_parameters={"b": floats(1)})
    first = asyncio.ensure_future(server.call("push_gradients", gradient))
    await within(is_read.wait(), 60)
    second = await server.call("push_gradients", gradient)
    may_go_on.set()
    assert (second.accepted, (await within(first, 60)).accepted) == (True, True)
    assert (await dense_of(server))["b"] == [3]
    assert server.partition.version == 2


async def test_a_table_declared_late_is_there_and_one_declared_again_stays(server: Server) -> None:
    late = pb.EmbeddingTableInfo(name="late", dim=1, initializer="zeros")
    same = pb.EmbeddingTableInfo(name="t", dim=2, initializer="ones")
    await server.call("push_embedding_table_infos", pb.EmbeddingTableInfos(embedding_table_infos=[late, same]))
    rows = await server.call("pull_embedding_table", pb.PullEmbeddingTableRequest(name="late", indices=[1]))
    assert array_of_tensor(rows.concat_tensors, "rows", ("float32",)).tolist() == [[0]]
    other = pb.EmbeddingTableInfo(name="t", dim=3)
    with pytest.raises(grpc.aio.AioRpcError) as refused:
        await server.call("push_embedding_table_infos", pb.EmbeddingTableInfos(embedding_table_infos=[other]))
    assert refused.value.code() is grpc.StatusCode.FAILED_PRECONDITION


def gradients(**tensors: pb.Tensor) -> pb.Model:
    return pb.Model(dense_parameters=tensors)


def slices(tensor: pb.Tensor, *ids: int) -> pb.Model:
    return pb.Model(embedding_tables={"t": pb.IndexedSlices(concat_tensors=tensor, ids=ids)})


@pytest.mark.parametrize(
    ("method", "request_", "told"),
    [
        ("push_gradients", gradients(x=floats(1)), "no dense parameter 'x'"),
        ("push_gradients", gradients(w=floats(1, 2, 3, 4)), r"has the shape (2, 2), its gradient (4,)"),
        ("push_gradients", gradients(b=floats(float("nan"))), "NaN or infinite"),
        ("push_gradients", gradients(b=tensor_of(np.zeros(1))), "has the dtype float64"),
        ("push_gradients", gradients(b=pb.Tensor(dtype=99)), "has the dtype number 99"),
        ("push_gradients", gradients(b=pb.Tensor(dtype=1, tensor_content=b"abc")), "3 bytes for the shape ()"),
        ("push_gradients", slices(floats(1, 2), 1), "have the shape (2,) for 1 ids"),
        ("push_gradients", slices(floats(1, 2, 3, shape=(1, 3)), 1), "gradients of the table 't'"),
        ("pull_embedding_table", pb.PullEmbeddingTableRequest(name="x", indices=[1]), "no embedding table 'x'"),
        (
            "push_embedding_table_infos",
            pb.EmbeddingTableInfos(embedding_table_infos=[pb.EmbeddingTableInfo(name="n", dim=2, initializer="he")]),
            "the initialiser 'he'",
        ),
    ],
)
async def test_bad_requests_are_refused_and_change_nothing(
    server: Server, method: str, request_: Any, told: str
) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="INVALID_ARGUMENT") as refused:
        await server.call(method, request_)
    assert told in str(refused.value.details())
    assert server.partition.version == 0
    assert await dense_of(server) == {"w": [[1, 2], [3, 4]], "b": [5]}


async def test_a_model_needs_an_optimizer_a_server_of_its_own_and_no_rounds(start: Call) -> None:
    model = pb.Model(dense_parameters={"w": floats(1)})
    server = await start()
    for optimizer, told in (("", "which optimizer"), ("adam", "optimizer"), ('{"name": "x"}', "x")):
        with pytest.raises(grpc.aio.AioRpcError, match=told):
            await server.call("push_dense_paramters", model, optimizer=optimizer)
    assert not server.partition.initialised
    server.partition.mode = UpdateMode(use_async=False, grads_to_wait=2)
    with pytest.raises(grpc.aio.AioRpcError, match="knows no rounds"):
        await server.call("push_dense_paramters", model)
    await server.close()
    two = await start(2)
    with pytest.raises(grpc.aio.AioRpcError, match="one parameter server"):
        await two.call("push_dense_paramters", model)


async def test_nobody_calls_without_a_token_of_a_worker(server: Server) -> None:
    with pytest.raises(grpc.aio.AioRpcError, match="UNAUTHENTICATED"):
        await server.channel.unary_unary("/Pserver/pull_dense_parameters")(b"", timeout=20)
    with pytest.raises(grpc.aio.AioRpcError, match="PERMISSION_DENIED"):
        await server.call("push_gradients", gradients(b=floats(1)), role=Role.MASTER)


def test_values_are_filled_up_with_the_last_as_tensorflow_does() -> None:
    shape = pb.Tensor.Shape(dim=[pb.Tensor.Shape.Dim(size=4)])
    filled = pb.Tensor(dtype=1, tensor_shape=shape, float_val=[1, 2])
    assert array_of_tensor(filled, "x", ("float32",)).tolist() == [1, 2, 2, 2]
    with pytest.raises(ElasticDLError, match="0 values for the shape"):
        array_of_tensor(pb.Tensor(dtype=1, tensor_shape=shape), "x", ("float32",))


@pytest.mark.parametrize("dtype", sorted({*np.typecodes["AllInteger"], *"?efd"}))
def test_state_of_every_dtype_has_a_message(dtype: str) -> None:
    values = np.array([[0, 1]], dtype)
    found = array_of_tensor(tensor_of(values), "x", (values.dtype.name,))
    assert (found.dtype, found.tolist()) == (values.dtype, values.tolist())


@FEW
@pytest.mark.parametrize("method", sorted(METHODS))
@given(data=st.data())
async def test_any_message_has_a_documented_answer(server: Server, method: str, data: st.DataObject) -> None:
    takes_model = METHODS[method].input_type.name == "Model"
    good = [pb.Model(dense_parameters={"b": floats(1)})] if takes_model else []
    message = data.draw(messages(OddDoor(METHODS[method], None, good, ("w", "b", "t", "ones"))))
    try:
        await server.call(method, message)
    except grpc.aio.AioRpcError as error:
        assert error.code() in DOCUMENTED, (error.details(), message)
    assert (await server.call("pull_dense_parameters", pb.PullDenseParametersRequest())).initialized

from __future__ import annotations

from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.model import DenseKind, DenseSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_core.ports.launcher import Role
from elasticdl_proto.v1 import ps_pb2
from elasticdl_ps import gateway
from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.servicer import ParameterServer
from elasticdl_ps.store.partition import DenseInit, Partition
from elasticdl_runtime.rpc.client import RpcClient
from elasticdl_runtime.rpc.framing import decode_frame, encode_frame
from elasticdl_runtime.rpc.service import listen, make_server
from elasticdl_runtime.tokens import Claims, issue, verify

JOB, SECRET = "iris-abc123", "k" * 64


class Door:
    """One initialised server, and ways to say anything to it."""

    def __init__(self, address: str, partition: Partition, servicer: ParameterServer) -> None:
        self.address = address
        self.servicer = servicer
        self.partition = partition
        self.tokens = {role: issue(SECRET, JOB, role, 0, 0) for role in Role}
        self._clients: list[RpcClient] = []
        self._callers: dict[str, RpcClient] = {}

    def client(self, token: str) -> RpcClient:
        client = RpcClient(self.address, ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"], token)
        self._clients.append(client)
        return client

    async def call(self, method: str, request: Any, *, role: Role = Role.WORKER, token: str | None = None) -> Any:
        shown = self.tokens[role] if token is None else token
        # One for each token: thousands of calls are not to be thousands of connections.
        client = self._callers.get(shown) or self._callers.setdefault(shown, self.client(shown))
        if method in ("PushModel", "PushGradientsInPieces"):
            whole = request

            async def pieces() -> AsyncIterator[bytes]:
                yield whole

            request = pieces()
        if method == "PullDenseParameters":
            return [piece async for piece in client.stream(method, request, deadline_s=20)]
        if method == "Steps":
            return await client.begin_in_stream(method, ps_pb2.STEP_PULL, request, deadline_s=20)
        return await client.call(method, request, deadline_s=20)

    async def frame(self, method: str, message: Any, buffers: Any = (), **options: Any) -> Any:
        answer = await self.call(method, encode_frame(message.SerializeToString(), buffers), **options)
        response = ps_pb2.PushGradientsResponse() if method.startswith("PushGradients") else ps_pb2.PullResponse()
        response.ParseFromString(decode_frame(answer)[0])
        return response

    async def close(self) -> None:
        for client in self._clients:
            await client.close()


@pytest.fixture
async def door(tmp_path: Path) -> AsyncIterator[Door]:
    partition = Partition(load_kernels())
    dense = [
        DenseInit(DenseSpec("w", (3,)), 0, 3, np.zeros(3, np.float32)),
        DenseInit(DenseSpec("n", (), "int64", DenseKind.STATE), 0, 1, np.zeros(1, np.int64)),
    ]
    tables = [TableSpec("t", 2), TableSpec("closed", 2, input_dim=10)]
    partition.push_model(dense, tables, OptimizerSpec("sgd"), UpdateMode())
    servicer = ParameterServer(partition, 0, 1)

    def authenticate(token: str) -> Claims:
        return verify(SECRET, token, job_id=JOB)

    server = make_server(ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"], servicer, authenticate)
    server.serve_too(gateway.SERVICE, servicer.published, gateway.NAME)
    address = listen(server, f"unix:{tmp_path}/ps.sock")
    await server.start()
    door = Door(address, partition, servicer)
    yield door
    await door.close()
    await server.stop(None)
    servicer.close()

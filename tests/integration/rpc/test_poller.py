"""gRPC's polling thread, and the options that are given to gRPC, which ignores those that it does not know."""

from __future__ import annotations

import subprocess
import sys
from pathlib import Path

import grpc
import pytest

from elasticdl_runtime.rpc import client, service

pytestmark = pytest.mark.integration

_SERVER_LEFT = """
import asyncio, gc, sys
from elasticdl_proto.v1 import agent_pb2
from elasticdl_runtime.rpc.service import listen, make_server

AGENT = agent_pb2.DESCRIPTOR.services_by_name["Agent"]
SERVICER = type("Servicer", (), {method.name: print for method in AGENT.methods})()


async def serve():
    server = make_server(AGENT, SERVICER, str)
    listen(server, "unix:" + sys.argv[1])
    await server.start()
    return server


asyncio.run(serve())  # what it returns is collected when its loop is closed
gc.collect()
print("goes on")
"""


def test_a_process_goes_on_after_a_server_that_was_left_by_its_loop(tmp_path: Path) -> None:
    command = [sys.executable, "-c", _SERVER_LEFT, str(tmp_path / "socket")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.stdout == "goes on\n", done.stderr


@pytest.mark.parametrize("name", sorted({name for name, _ in (*client._OPTIONS, *service._OPTIONS)}))
def test_grpc_knows_each_option(name: str) -> None:
    library = Path(grpc.__file__).parent / "_cython"
    assert any(name.encode() + b"\0" in file.read_bytes() for file in library.glob("cygrpc*.so"))

"""Servers to measure transports against: they hand out and take in bytes, and do nothing else.

    python -m benchmarks.harness.echo raw|rpc ADDRESS

Prints a line once it serves, with the address.
"""
# ruff: noqa: N802 (methods are named as the RPCs of ps.proto)

from __future__ import annotations

import asyncio
import struct
import sys
from typing import Any

import numpy as np

from elasticdl_proto.v1 import ps_pb2
from elasticdl_runtime.memory import keep_large_blocks
from elasticdl_runtime.rpc.framing import decode_frame, encode_frame
from elasticdl_runtime.rpc.service import listen, make_server

HEAD = struct.Struct("<cQ")
"""A raw request: ``<`` pulls so many bytes, ``>`` is followed by so many and answered with one."""
_SERVICE = ps_pb2.DESCRIPTOR.services_by_name["ParameterServer"]


class EchoServicer:
    """Answers a pull with as many bytes as it asks for, a push with nothing; no other RPC is served."""

    def __init__(self) -> None:
        self._kept: dict[int, Any] = {}

    def __getattr__(self, name: str) -> Any:
        if name in _SERVICE.methods_by_name:
            return self.Pull
        raise AttributeError(name)

    async def Pull(self, frame: bytes, caller: str) -> bytes:
        header, _ = decode_frame(frame)
        request = ps_pb2.PullRequest.FromString(header)
        if request.pin not in self._kept:
            self._kept[request.pin] = np.ones(request.pin, np.uint8)
        # As the PS does it: values are copied into a new frame for each answer.
        return encode_frame(b"", [self._kept[request.pin]])

    async def PushGradients(self, frame: bytes, caller: str) -> bytes:
        decode_frame(frame)
        return encode_frame(b"")


async def _serve_raw(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
    kept: dict[int, bytes] = {}
    try:
        while True:
            kind, size = HEAD.unpack(await reader.readexactly(HEAD.size))
            if kind == b"<":
                writer.write(kept.setdefault(size, bytes(size)))
            else:
                await reader.readexactly(size)
                writer.write(b"!")
            await writer.drain()
    except asyncio.IncompleteReadError:
        writer.close()


async def main(kind: str, address: str) -> None:
    """Serves for ever."""
    keep_large_blocks()
    if kind == "raw":
        host, _, port = address.rpartition(":")
        server = await asyncio.start_server(_serve_raw, host, int(port), limit=RAW_LIMIT)
        address = f"{host}:{server.sockets[0].getsockname()[1]}"
    else:
        rpc = make_server(_SERVICE, EchoServicer(), lambda token: token)
        address = listen(rpc, address)
        await rpc.start()
    print(address, flush=True)
    await asyncio.Event().wait()


RAW_LIMIT = 4 << 20
"""Of the raw streams' buffers, in bytes: the default of 64 KiB halves their speed."""

if __name__ == "__main__":
    asyncio.run(main(*sys.argv[1:3]))

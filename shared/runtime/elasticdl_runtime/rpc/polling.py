"""The thread in which gRPC's asyncio side polls, kept for as long as the process lives."""

from __future__ import annotations

import functools

import grpc


@functools.cache
def keep_poller() -> None:
    """Holds gRPC's asyncio side open, so that it never shuts down within a process.

    It does so where its last channel or server is collected, in that object's destructor, and there it joins its
    polling thread. That thread ends when nothing is under way, which is never if the event loop of a server ended
    before the server was stopped: the process then hangs wherever the collector happened to run.
    """
    grpc.aio.init_grpc_aio()

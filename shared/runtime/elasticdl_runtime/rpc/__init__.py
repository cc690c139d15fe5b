"""Asyncio gRPC: frames, services bound from descriptors, deadlines, tokens, errors."""

from __future__ import annotations

import os
from importlib.metadata import version

_OLDER_POLLERS = "-event_engine_client,-event_engine_listener"
_MEASURED = (1, 85)


def _choose_pollers() -> None:
    """Has gRPC poll as it did before its event engine, whose threads hand each message on: a fifth of a call's CPU.

    gRPC reads the variable when it is first used. Versions not measured are left as they are.
    """
    if tuple(int(part) for part in version("grpcio").split(".")[:2]) <= _MEASURED:
        os.environ.setdefault("GRPC_EXPERIMENTS", _OLDER_POLLERS)


_choose_pollers()

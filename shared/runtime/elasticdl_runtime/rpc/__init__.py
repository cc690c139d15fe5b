"""Asyncio gRPC: frames, services bound from descriptors, deadlines, tokens, errors."""

from __future__ import annotations

from importlib.metadata import version

_OLDER_POLLERS = "-event_engine_client,-event_engine_listener"
_MEASURED = (1, 85)


def poller_variables() -> dict[str, str]:
    """Environment variables that have a process's gRPC poll as it did before its event engine.

    Its threads hand each message on: a fifth of a call's processor time. gRPC reads the variable when it is imported,
    so whoever starts a process sets it. Versions not measured are left as they are.
    """
    if tuple(int(part) for part in version("grpcio").split(".")[:2]) > _MEASURED:
        return {}
    return {"GRPC_EXPERIMENTS": _OLDER_POLLERS}

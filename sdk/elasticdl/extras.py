"""What a command needs beyond a plain installation, and how to get it."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from elasticdl_core.errors import InvalidInputError

_RPC = ("google.protobuf", "grpc", "structlog")
MODULES: Mapping[str, Sequence[str]] = {
    "local": (*_RPC, "alembic", "asyncpg", "fastapi", "numba", "prometheus_client", "redis", "sqlalchemy", "uvicorn"),
    "worker": _RPC,
    "tensorflow": ("tensorflow",),
}
"""By extra, the modules that must be there; a test compares it with what the extras install."""


def require(what: str, *extras: str) -> None:
    """Checks that the packages of some extras are installed, without importing them.

    Args:
        what: who needs them, e.g. a command.
        *extras: the extras.

    Raises:
        InvalidInputError: some are missing; names them and the command that installs them.
    """
    missing = sorted({module for extra in extras for module in MODULES[extra] if not _found(module)})
    if missing:
        raise InvalidInputError(
            f"{what} needs packages that are not installed: {', '.join(missing)}",
            fix=f"pip install 'elasticdl[{','.join(extras)}]'",
        )


def _found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package
        return False

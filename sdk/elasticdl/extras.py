"""Optional packages of commands and services, and how to install them."""

from __future__ import annotations

import sys
from collections.abc import Mapping, Sequence
from importlib.util import find_spec

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.installation import install_command

EXIT_CONFIGURATION = 64
_RPC = ("google.protobuf", "grpc", "structlog")
_SERVICE = (*_RPC, "pydantic_settings")
_DATABASE = ("asyncpg", "sqlalchemy")
MODULES: Mapping[str, Sequence[str]] = {
    "local": (*_RPC, "alembic", "asyncpg", "fastapi", "numba", "prometheus_client", "redis", "sqlalchemy", "uvicorn"),
    "api": (*_SERVICE, *_DATABASE, "alembic", "fastapi", "jwt", "prometheus_client", "sqlglot", "uvicorn"),
    "scheduler": (*_SERVICE, *_DATABASE),
    "master": (*_SERVICE, "pydantic", "redis"),
    "ps": (*_SERVICE, "numba"),
    "worker": _SERVICE,
    "agent": (*_SERVICE, "asyncpg", "redis"),
    "tensorflow": ("tensorflow",),
    "torch": ("safetensors", "torch"),
    "duckdb": ("duckdb", "pyarrow"),
    "images": ("PIL",),
    "odps": ("odps", "pyarrow"),
    "parquet": ("pyarrow",),
    "postgres": ("asyncpg",),
    "sql": ("sqlglot",),
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
            fix=install_command(*extras),
        )


def require_service(extra: str) -> None:
    """Ends this process with a message if a package of a service is missing; call it before the service's imports.

    Args:
        extra: the service and its extra, which have one name.
    """
    try:
        require(f"elasticdl_{extra}", extra)
    except InvalidInputError as error:
        print(f"error: {error.message}\n  fix: {error.fix}", file=sys.stderr)
        raise SystemExit(EXIT_CONFIGURATION) from None


def _found(module: str) -> bool:
    try:
        return find_spec(module) is not None
    except ModuleNotFoundError:  # its parent package
        return False

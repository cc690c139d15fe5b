"""Connections to Postgres that can only read, and addresses without passwords."""

from __future__ import annotations

import importlib
from collections.abc import Iterable
from typing import Any
from urllib.parse import SplitResult

from elasticdl.data.errors import ReaderParamsError

CONNECT_S = 30.0


async def connect_read_only(dsn: str, statement_s: float) -> Any:
    """A connection whose transactions only read and whose statements end in time.

    Args:
        dsn: address of the database, without a password: that comes from ``PGPASSFILE``, ``~/.pgpass`` or
            ``PGPASSWORD``.
        statement_s: seconds after which client and server give a statement up.

    Returns:
        asyncpg's connection.

    Raises:
        Exception: the library's, the system's and asyncio's, if the database cannot be reached.
    """
    return await importlib.import_module("asyncpg").connect(
        dsn, timeout=CONNECT_S, command_timeout=statement_s, statement_cache_size=0,
        server_settings={"default_transaction_read_only": "on", "statement_timeout": f"{int(statement_s * 1000)}",
                         "TimeZone": "UTC", "DateStyle": "ISO", "IntervalStyle": "postgres",
                         "application_name": "elasticdl"},
    )  # fmt: skip


def refuse_passwords(parts: SplitResult, parameters: Iterable[str]) -> None:
    """Refuses a password in an address.

    Args:
        parts: the address.
        parameters: names of what stands behind its question mark.

    Raises:
        ReaderParamsError: there is one; it is not repeated.
    """
    if parts.password is not None or any("pass" in name.lower() for name in parameters):
        raise ReaderParamsError(
            f"{parts.scheme}://{parts.hostname}{parts.path}: holds a password, which would be kept with the job "
            "or be read by others on the machine",
            fix="leave it out, and put it into a file that PGPASSFILE names where the rows are read",
        )

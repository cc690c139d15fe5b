"""Databases that statements read: connections that cannot write, one SELECT each, given up after a time."""

from __future__ import annotations

import asyncio
import contextlib
import importlib
import sqlite3
import time
from collections.abc import Coroutine, Iterator, Sequence
from concurrent.futures import ThreadPoolExecutor
from contextlib import AbstractContextManager, closing
from datetime import date, datetime
from datetime import time as time_of_day
from decimal import Decimal
from typing import Any, TypeVar
from urllib.parse import parse_qsl, urlsplit
from uuid import UUID

from elasticdl.data.postgres_connection import CONNECT_S, connect_read_only, refuse_passwords
from elasticdl.extras import require
from elasticdl.sql.lexing import refusal
from elasticdl_core.errors import DataError, InvalidInputError
from elasticdl_runtime.home import expand_home


class SourceUnreachableError(DataError):
    """The database of a source is not there, or lets nobody in; the message has its address."""


KNOWN = "sqlite:///FILE or postgresql://USER@HOST/DATABASE"
"""Sources, as errors name them."""
_SQLITE = "sqlite:///"
_DIALECTS = {_SQLITE: "sqlite", "postgresql://": "postgres"}
_PORTION = 1_000
_Selection = tuple[Sequence[str], Iterator[Sequence[Any]]]
_Result = TypeVar("_Result")


def dialect_of(url: str) -> str:
    """The dialect of a source, by sqlglot's name.

    Raises:
        InvalidInputError: there is no such kind of source.
    """
    for prefix, dialect in _DIALECTS.items():
        if url.startswith(prefix):
            return dialect
    raise InvalidInputError(f"the source {url.partition('@')[0]!r} is not known", fix=f"give {KNOWN}")


def open_selection(url: str, select: str, timeout_s: float) -> AbstractContextManager[_Selection]:
    """The names of a SELECT's columns, and its rows, in portions that memory does not notice.

    Args:
        url: the source.
        select: one SELECT.
        timeout_s: seconds until it is given up.

    Raises:
        InvalidInputError: the database refuses the SELECT, or it took too long.
        DataError: the database cannot be reached.
    """
    return (_of_sqlite if dialect_of(url) == "sqlite" else _of_postgres)(url, select, timeout_s)


def plain_value(name: str, value: Any) -> int | float | str | None:
    """A value as the files have it: a number, text or none.

    Args:
        name: its column.
        value: what the database gave.

    Raises:
        InvalidInputError: it is neither, such as bytes or an array.
    """
    if value is None or type(value) in (int, float, str):
        return value  # type: ignore[no-any-return]
    if isinstance(value, bool):
        return int(value)
    if isinstance(value, Decimal):  # sums of whole numbers are some
        return int(value) if value.as_tuple().exponent == 0 else float(value)
    if isinstance(value, date | datetime | time_of_day | UUID):
        return str(value)
    raise InvalidInputError(f"{name} holds {type(value).__name__}, of which there is no feature",
                            fix="select an expression of it that is a number or text, or leave it out")  # fmt: skip


@contextlib.contextmanager
def _of_sqlite(url: str, select: str, timeout_s: float) -> Iterator[_Selection]:
    path = expand_home(url.removeprefix(_SQLITE)).absolute()
    if not path.is_file():
        raise SourceUnreachableError(f"there is no database {path}", fix="check the path behind sqlite:///")
    with closing(sqlite3.connect(f"{path.as_uri()}?mode=ro", uri=True)) as connection:
        until = time.monotonic() + timeout_s
        connection.set_progress_handler(lambda: time.monotonic() > until, 10_000)
        try:
            cursor = connection.execute(select)
            yield [one[0] for one in cursor.description], _portions(lambda: cursor.fetchmany(_PORTION))
        except (sqlite3.Error, sqlite3.Warning) as error:
            raise _late(timeout_s) if time.monotonic() > until else _refused(select, error) from None


@contextlib.contextmanager
def _of_postgres(url: str, select: str, timeout_s: float) -> Iterator[_Selection]:
    require("a source postgresql://", "postgres")
    asyncpg = importlib.import_module("asyncpg")
    parts = urlsplit(url)
    refuse_passwords(parts, [name for name, _ in parse_qsl(parts.query, keep_blank_values=True)])
    until = time.monotonic() + timeout_s
    with contextlib.ExitStack() as undo:
        pool = undo.enter_context(ThreadPoolExecutor(1))  # the caller's thread may have a loop that runs
        runner = asyncio.Runner()
        undo.callback(lambda: pool.submit(runner.close).result())

        def run(work: Coroutine[Any, Any, _Result]) -> _Result:
            return pool.submit(runner.run, work).result()

        try:
            connection = run(_connected(url, timeout_s))
        except Exception as error:  # the library raises its own, the system's and asyncio's
            where = f"{parts.scheme}://{parts.netloc}{parts.path}"
            told = f"{where}: cannot be read: {str(error) or type(error).__name__}"
            raise SourceUnreachableError(told, fix="check the address, the user's rights and PGPASSFILE") from None
        undo.callback(connection.terminate)
        try:
            names, cursor = run(_cursor(connection, select))
            yield names, _portions(lambda: run(cursor.fetch(_PORTION, timeout=max(0.01, until - time.monotonic()))))
        except (TimeoutError, asyncpg.QueryCanceledError):
            raise _late(timeout_s) from None
        except (asyncpg.PostgresError, asyncpg.InterfaceError) as error:
            raise _refused(select, error) from None


async def _connected(url: str, timeout_s: float) -> Any:
    async with asyncio.timeout(CONNECT_S):
        return await connect_read_only(url, timeout_s)


async def _cursor(connection: Any, select: str) -> tuple[list[str], Any]:
    """Columns and a cursor of a SELECT, in a transaction that only reads; the protocol takes no second statement."""
    await connection.transaction(readonly=True).start()
    prepared = await connection.prepare(select)
    return [one.name for one in prepared.get_attributes()], await prepared.cursor()


def _portions(fetch: Any) -> Iterator[Sequence[Any]]:
    while portion := fetch():
        yield from portion


def _late(timeout_s: float) -> InvalidInputError:
    return InvalidInputError(f"the SELECT took over {timeout_s:g} s", fix="select fewer rows")


def _refused(select: str, error: Exception) -> InvalidInputError:
    told = f"the database refuses the SELECT: {error}"
    place = str(getattr(error, "position", None) or "")  # Postgres counts characters, from 1
    if place.isdecimal():
        return refusal(select, int(place) - 1, told, "correct the SELECT")
    return InvalidInputError(told, fix="correct the SELECT")

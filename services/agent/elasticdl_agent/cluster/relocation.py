"""Data directories that were moved or copied: what names files in them by their former path is rewritten.

Jobs name checkpoints by absolute paths, as users give them. The directory remembers where it lay, and the first
``up`` elsewhere rewrites what begins with that path, before any service reads it. A copy therefore never reads the
original.
"""

from __future__ import annotations

import json
import os
import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import asyncpg

from elasticdl_core.errors import ConflictError
from elasticdl_runtime import durable
from elasticdl_runtime.cluster.paths import DataDirectory
from elasticdl_runtime.database.dump import QUERY_S, connected

_END = "(?=[/,;]|$)"
"""What follows a path of which the rest is below it, or another item of a list."""
_COLUMNS = (("jobs", "spec"), ("checkpoints", "manifest"))


def former_root(directory: DataDirectory) -> Path | None:
    """The path where a data directory lay when it was used last; None for here, or before it was ever used.

    Raises:
        ConflictError: it is a copy that shares the folder of its database with the original.
    """
    try:
        former = Path(os.fsdecode(directory.location.read_bytes()))
    except FileNotFoundError:
        return None
    if former == directory.root:
        return None
    there, here = former / "postgres", directory.postgres
    if here.is_symlink() and there.exists() and not former.samefile(directory.root) and there.samefile(here):
        raise ConflictError(
            f"{directory.root} is a copy of {former}, and both have their database in {here.resolve()}",
            fix="copy a cluster with `elasticdl backup --files` and `elasticdl restore`",
        )
    return former


async def relocate(directory: DataDirectory, former: Path, database_url: str) -> int:
    """Rewrites the paths of a data directory that lay elsewhere, and notes where it lies now.

    Args:
        directory: the data directory.
        former: where it lay (``former_root``).
        database_url: its database, with the present schema.

    Returns:
        How many rows and files named the former place.

    Raises:
        UnavailableError: the database does not answer.
    """
    move = _mover(str(former), str(directory.root))
    changed = await _rewrite_database(database_url, str(former), move) + _rewrite_files(directory, move)
    note_location(directory, directory.root)
    return changed


def note_location(directory: DataDirectory, root: Path) -> None:
    """Notes where the paths that the database holds lead."""
    durable.write(directory.location, os.fsencode(root), mode=0o600)


async def _rewrite_database(url: str, former: str, move: Callable[[Any], Any]) -> int:
    async with connected(url) as connection, connection.transaction():
        return sum([await _rewrite_rows(connection, *one, former, move) for one in _COLUMNS])


async def _rewrite_rows(
    connection: asyncpg.Connection, table: str, column: str, former: str, move: Callable[[Any], Any]
) -> int:
    # The row's place serves as its key: nobody else writes, and a row is updated once.
    needle = json.dumps(former, ensure_ascii=False)[1:-1]
    rows = await connection.fetch(
        f"SELECT ctid, {column}::text AS content FROM {table} WHERE strpos({column}::text, $1) > 0",
        needle,
        timeout=QUERY_S,
    )
    texts = [(row["ctid"], json.loads(row["content"])) for row in rows]
    moved = [(place, json.dumps(move(content))) for place, content in texts if move(content) != content]
    await connection.executemany(f"UPDATE {table} SET {column} = $2::jsonb WHERE ctid = $1", moved, timeout=QUERY_S)
    return len(moved)


def _rewrite_files(directory: DataDirectory, move: Callable[[Any], Any]) -> int:
    """Rewrites the files in which jobs keep in mind which checkpoint they begin with."""
    changed = 0
    for file in (directory.root / "jobs").glob("*/initial/named.json"):
        named = json.loads(file.read_bytes())
        if (moved := move(named)) != named:
            durable.write(file, json.dumps(moved, indent=1))
            changed += 1
    return changed


def _mover(former: str, present: str) -> Callable[[Any], Any]:
    """Replaces a path where a string, or an item of a list in a string, begins with it; at any depth of JSON."""
    # Where the new path begins with the former one, an `up` that did not come to its end may have moved some.
    moved = rf"(?!{re.escape(present)}{_END})" if present.startswith(former) else ""
    pattern = re.compile(rf"(^|[,;=]|file://){moved}{re.escape(former)}{_END}")

    def move(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub(lambda found: found[1] + present, value)
        if isinstance(value, list):
            return [move(one) for one in value]
        if isinstance(value, dict):
            return {name: move(one) for name, one in value.items()}
        return value

    return move

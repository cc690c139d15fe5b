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

from sqlalchemy import Table, bindparam, func, select, update
from sqlalchemy import Text as SqlText

from elasticdl_core.errors import ConflictError
from elasticdl_runtime import durable
from elasticdl_runtime.cluster.paths import DataDirectory
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database

_COLUMNS = ((t.jobs, "spec"), (t.checkpoints, "manifest"))


def former_root(directory: DataDirectory) -> Path | None:
    """Where a data directory lay when it was used last; None for here, or before it was ever used.

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


async def relocate(directory: DataDirectory, database_url: str) -> int:
    """Rewrites the paths of a data directory that lay elsewhere, and notes where it lies now.

    Args:
        directory: the data directory.
        database_url: its database, with the present schema.

    Returns:
        How many rows and files named the former place.

    Raises:
        ConflictError: as for ``former_root``.
        UnavailableError: the database does not answer.
    """
    former = former_root(directory)
    changed = 0
    if former is not None:
        move = _mover(str(former), str(directory.root))
        database = Database(database_url, application="elasticdl up")
        try:
            for table, column in _COLUMNS:
                changed += await _rewrite_rows(database, table, column, str(former), move)
        finally:
            await database.close()
        changed += _rewrite_files(directory, move)
    note_location(directory, directory.root)
    return changed


def note_location(directory: DataDirectory, root: Path) -> None:
    """Notes where the paths that the database holds lead."""
    durable.write(directory.location, os.fsencode(root), mode=0o600)


async def _rewrite_rows(
    database: Database, table: Table, column: str, former: str, move: Callable[[Any], Any]
) -> int:
    keys = list(table.primary_key.columns)
    content = table.c[column]
    needle = json.dumps(former, ensure_ascii=False)[1:-1]
    async with database.transaction() as connection:
        found = select(*keys, content).where(func.strpos(content.cast(SqlText), needle) > 0)
        rows = (await connection.execute(found)).all()
        values = [
            {**{f"key_{key.name}": one for key, one in zip(keys, row[:-1], strict=True)}, "moved": move(row[-1])}
            for row in rows
            if move(row[-1]) != row[-1]
        ]
        if values:
            mine = (key == bindparam(f"key_{key.name}") for key in keys)
            await connection.execute(update(table).where(*mine).values({column: bindparam("moved")}), values)
    return len(values)


def _rewrite_files(directory: DataDirectory, move: Callable[[Any], Any]) -> int:
    """Those in which jobs keep in mind which checkpoint they begin with."""
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
    moved = rf"(?!{re.escape(present)}(?:/|$))" if present.startswith(former) else ""
    pattern = re.compile(rf"(^|[,;=]|file://){moved}{re.escape(former)}(?=/|$)")

    def move(value: Any) -> Any:
        if isinstance(value, str):
            return pattern.sub(lambda found: found[1] + present, value)
        if isinstance(value, list):
            return [move(one) for one in value]
        if isinstance(value, dict):
            return {name: move(one) for name, one in value.items()}
        return value

    return move

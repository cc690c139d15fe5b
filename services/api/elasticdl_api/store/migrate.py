"""Brings the schema of a database up to date; any number of replicas may try at once."""

from __future__ import annotations

import asyncio
from pathlib import Path

from alembic import command
from alembic.config import Config
from alembic.runtime.migration import MigrationContext
from alembic.script import ScriptDirectory
from sqlalchemy import Connection, text
from sqlalchemy.ext.asyncio import AsyncConnection

from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime.database.engine import Database

_LOCK = 0x656C6173  # any number that nobody else uses as an advisory lock
_HERE = Path(__file__).parent / "migrations"


async def migrate(database: Database, revision: str = "head", *, deadline_s: float = 60.0) -> None:
    """Runs the migrations that the database lacks, in one transaction under an advisory lock.

    Args:
        database: the pool.
        revision: how far; to the newest by default.
        deadline_s: how long to wait for another replica that does the same.

    Raises:
        InvalidInputError: the database is later than the newest or the given revision, or earlier than the
            first release.
        UnavailableError: the database is down.
        TimeoutError: another replica has held the lock for ``deadline_s`` seconds.
    """
    async with asyncio.timeout(deadline_s), database.transaction() as connection:
        await _lock(connection)
        await connection.run_sync(lambda plain: _upgrade(plain, revision))


async def _lock(connection: AsyncConnection) -> None:
    # Asked for again and again, because a statement that waits would run into the time limit of statements.
    query = text("SELECT pg_try_advisory_xact_lock(:key)")
    while not (await connection.execute(query, {"key": _LOCK})).scalar():  # noqa: ASYNC110
        await asyncio.sleep(0.1)


def knows(revision: str) -> bool:
    """Whether there is a migration of that name."""
    return revision in revisions()


def revisions() -> list[str]:
    """All revisions of the schema, oldest first."""
    return [script.revision for script in ScriptDirectory.from_config(_config()).walk_revisions()][::-1]


def _config() -> Config:
    config = Config()
    config.set_main_option("script_location", str(_HERE))
    return config


def _upgrade(connection: Connection, revision: str) -> None:
    _check_known(MigrationContext.configure(connection).get_current_revision(), revision)
    config = _config()
    config.attributes["connection"] = connection
    command.upgrade(config, revision)


def _check_known(present: str | None, revision: str) -> None:
    """Refuses to go back, since columns of later versions hold what nobody could give back, and unknown schemas."""
    known = revisions()
    wanted = known[-1] if revision == "head" else revision
    if present is None or (present in known and known.index(present) <= known.index(wanted)):
        return
    if present < known[0]:
        raise InvalidInputError(
            f"the schema of the database is at {present}, of before the first release",
            fix=f"take another database or data directory, or have a version of then upgrade it to {known[0]} first",
        )
    later = "a later version's than this one" if present not in known else f"later than {wanted}"
    raise InvalidInputError(
        f"the schema of the database is {later}: it is at {present}, and is not taken back",
        fix="start the version that upgraded it, or restore a backup of before: `elasticdl restore FILE`",
    )

"""Turns: of all replicas of the api one does something, once in so many seconds."""

from __future__ import annotations

from sqlalchemy import text

from elasticdl_runtime.database.engine import Database

_TAKE = text(
    "INSERT INTO leadership (name, expires_at) VALUES (:name, now() + make_interval(secs => :every))"
    " ON CONFLICT (name) DO UPDATE SET expires_at = excluded.expires_at, epoch = leadership.epoch + 1"
    " WHERE leadership.expires_at <= now()"
    # A time further ahead was set before the clock was set back. Counted from this very moment: a turn that another
    # took since this transaction began is further ahead than its beginning.
    " OR leadership.expires_at > clock_timestamp() + make_interval(secs => :every) RETURNING epoch"
)


_COUNT = text(
    "INSERT INTO leadership (name, expires_at) VALUES (:name, now())"
    " ON CONFLICT (name) DO UPDATE SET expires_at = excluded.expires_at, epoch = leadership.epoch + 1 RETURNING epoch"
)


async def count_turn(database: Database, name: str) -> int:
    """The number of times that this was asked for under a name, as far as the database remembers.

    Raises:
        UnavailableError: Postgres does not answer.
    """
    async with database.transaction() as connection:
        return int((await connection.execute(_COUNT, {"name": name})).scalar_one())


async def take_turn(database: Database, name: str, every_s: float) -> bool:
    """Whether it is this replica's turn, which it has taken then.

    Raises:
        UnavailableError: Postgres does not answer.
    """
    async with database.transaction() as connection:
        return (await connection.execute(_TAKE, {"name": name, "every": every_s})).first() is not None

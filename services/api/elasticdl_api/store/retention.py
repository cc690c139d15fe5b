"""Removes what is old enough, in batches; only the database: files are removed after their rows."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, and_, delete, exists, func, or_, select, tuple_, update
from sqlalchemy.dialects.postgresql import insert as upsert

from elasticdl_api.store.checkpoint_users import is_begun_with
from elasticdl_api.store.searches import is_open_search
from elasticdl_api.store.turns import count_turn, take_turn
from elasticdl_core.job.life import TERMINAL_STATES
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database


class RetentionStore:
    """Finds and removes rows that are past their age. Every method may raise UnavailableError.

    Args:
        database: the pool.
        batch: most rows that one call removes.
    """

    def __init__(self, database: Database, batch: int = 500) -> None:
        self._database = database
        self._batch = batch

    async def remove_jobs(self, days: float) -> list[str]:
        """Removes jobs that ended so long ago, with all their rows; returns their ids.

        A job stays as long as another one that is not over begins with what it saved.
        """
        old = (
            select(t.jobs.c.id)
            .where(_ended_before(days), ~is_begun_with())
            .order_by(t.jobs.c.finished_at)
            .limit(self._batch)
        )
        query = delete(t.jobs).where(t.jobs.c.id.in_(old.with_for_update(skip_locked=True))).returning(t.jobs.c.id)
        async with self._database.transaction() as connection:
            return list((await connection.execute(query)).scalars())

    async def remove_events(self, days: float) -> int:
        """Removes events that are so old, of jobs that are over; returns how many."""
        over = t.jobs.c.state.in_(sorted(TERMINAL_STATES))
        old = (
            select(t.events.c.id)
            .join(t.jobs, t.jobs.c.id == t.events.c.job_id)
            .where(t.events.c.at < _before(days), over)
            .order_by(t.events.c.at)
            .limit(self._batch)
        )
        return await self._remove(delete(t.events).where(t.events.c.id.in_(old)))

    async def remove_audit(self, days: float) -> int:
        """Removes entries of the log of changes that are so old; returns how many."""
        log = t.audit_log.c
        old = select(log.id).where(log.at < _before(days)).order_by(log.at).limit(self._batch)
        return await self._remove(delete(t.audit_log).where(log.id.in_(old)))

    async def remove_searches(self, days: float) -> int:
        """Removes searches that are over and so old, and whose job is not there; returns how many."""
        searches = t.searches.c
        there = exists().where(t.jobs.c.id == searches.job_id)
        old = select(searches.job_id).where(searches.at < _before(days), ~is_open_search(), ~there)
        return await self._remove(delete(t.searches).where(searches.job_id.in_(old.limit(self._batch))))

    async def remove_tokens(self, days: float) -> int:
        """Removes tokens that ended so long ago; returns how many."""
        tokens = t.tokens.c
        ended = func.least(tokens.revoked_at, tokens.expires_at)  # null only where both are
        old = select(tokens.id).where(ended < _before(days)).limit(self._batch)
        return await self._remove(delete(t.tokens).where(tokens.id.in_(old)))

    async def remove_sessions(self) -> int:
        """Removes sessions that are over; returns how many."""
        sessions = t.sessions.c
        old = select(sessions.sha256).where(sessions.expires_at <= func.now()).limit(self._batch)
        return await self._remove(delete(t.sessions).where(sessions.sha256.in_(old)))

    async def thin_losses(self, most: int) -> int:
        """Removes every second loss of a job that has more than so many; returns how many.

        The first and the last stay, so that what is left shows the whole of the training, more coarsely.
        """
        losses = t.losses.c
        # Of two losses both are ends: there is nothing to remove, and the next job's turn would never come.
        many = select(losses.job_id).group_by(losses.job_id).having(func.count() > max(most, 2)).limit(1)
        async with self._database.transaction() as connection:
            job_id = (await connection.execute(many)).scalar_one_or_none()
            if job_id is None:
                return 0
            place = func.row_number().over(order_by=losses.model_version)
            last = func.max(losses.model_version).over()
            ranked = select(losses.model_version, place.label("place"), last.label("last"))
            found = ranked.where(losses.job_id == job_id).subquery()
            second = select(found.c.model_version).where(
                found.c.place % 2 == 0, found.c.model_version != found.c.last
            )
            gone = delete(t.losses).where(losses.job_id == job_id, losses.model_version.in_(second))
            return int((await connection.execute(gone)).rowcount)

    async def remove_keys(self, days: float) -> int:
        """Removes idempotency keys that are so old; returns how many."""
        keys = t.idempotency_keys.c
        old = select(keys.namespace, keys.key).where(keys.created_at < _before(days)).limit(self._batch)
        return await self._remove(delete(t.idempotency_keys).where(tuple_(keys.namespace, keys.key).in_(old)))

    async def remove_bundles(self, days: float) -> int:
        """Removes bundles that nobody uploaded, submitted or ran for so long; returns how many."""
        bundles = t.bundles.c
        needed = exists().where(
            t.jobs.c.namespace == bundles.namespace,
            t.jobs.c.spec["model_bundle"].astext == bundles.digest,
            or_(t.jobs.c.state.not_in(sorted(TERMINAL_STATES)), t.jobs.c.finished_at > _before(days)),
        )
        # Said of each row when it is removed, not when it is found: it may be used in between.
        return await self._remove(delete(t.bundles).where(bundles.used_at < _before(days), ~needed))

    async def list_bundles(self, digests: Sequence[str]) -> frozenset[str]:
        """The digests among some that a namespace has."""
        query = select(t.bundles.c.digest).where(t.bundles.c.digest == t.any_of(digests))
        async with self._database.transaction() as connection:
            return frozenset((await connection.execute(query)).scalars())

    async def list_jobs(self, job_ids: Sequence[str]) -> frozenset[str]:
        """The jobs among some that exist, or that a search will make."""
        jobs, searches = t.jobs.c.id, t.searches.c.job_id
        found = select(jobs).where(jobs == t.any_of(job_ids))
        query = found.union(select(searches).where(searches == t.any_of(job_ids), is_open_search()))
        async with self._database.transaction() as connection:
            return frozenset((await connection.execute(query)).scalars())

    async def list_ended(self, days: float, after: tuple[datetime, str] | None) -> list[tuple[datetime, str]]:
        """When some of the jobs ended that did so so long ago, oldest first, from a moment on."""
        place = (t.jobs.c.finished_at, t.jobs.c.id)
        query = select(*place).where(_ended_before(days)).order_by(*place).limit(self._batch)
        if after is not None:
            query = query.where(tuple_(*place) > tuple_(*after))
        async with self._database.transaction() as connection:
            return [(at, job_id) for at, job_id in await connection.execute(query)]

    async def list_unmeasured(self, limit: int) -> list[str]:
        """Jobs whose disk is to be measured: those that may have changed since, the longest ago first."""
        disk = t.job_disk.c
        query = (
            select(t.jobs.c.id)
            .outerjoin(t.job_disk, disk.job_id == t.jobs.c.id)
            .where(or_(disk.at.is_(None), t.jobs.c.finished_at.is_(None), t.jobs.c.finished_at > disk.at))
            .order_by(disk.at.asc().nulls_first(), t.jobs.c.id)
            .limit(limit)
        )
        async with self._database.transaction() as connection:
            return list((await connection.execute(query)).scalars())

    async def record_disk(self, measured: Mapping[str, int]) -> None:
        """Records the bytes of jobs on disk; jobs that are gone meanwhile are passed over."""
        if not measured:
            return
        async with self._database.transaction() as connection:
            known = (
                (await connection.execute(select(t.jobs.c.id).where(t.jobs.c.id.in_(list(measured))))).scalars().all()
            )
            rows = [{"job_id": job_id, "bytes": measured[job_id]} for job_id in known]
            if rows:
                row = upsert(t.job_disk)
                changes = {"bytes": row.excluded.bytes, "at": func.now()}
                await connection.execute(row.on_conflict_do_update(index_elements=["job_id"], set_=changes), rows)

    async def count_disk(self, namespace: str) -> int:
        """Bytes on disk of a namespace: what its jobs made, as last measured, and its bundles."""
        jobs = (
            select(func.coalesce(func.sum(t.job_disk.c.bytes), 0))
            .join(t.jobs, t.jobs.c.id == t.job_disk.c.job_id)
            .where(t.jobs.c.namespace == namespace)
            .scalar_subquery()
        )
        bundles = (
            select(func.coalesce(func.sum(t.bundles.c.size), 0))
            .where(t.bundles.c.namespace == namespace)
            .scalar_subquery()
        )
        async with self._database.transaction() as connection:
            return int((await connection.execute(select(jobs + bundles))).scalar_one())

    async def read_disk_limit(self, namespace: str) -> int | None:
        """MiB that a namespace may fill, if an administrator said so."""
        query = select(t.namespaces.c.limits["disk_mib"].astext).where(t.namespaces.c.name == namespace)
        async with self._database.transaction() as connection:
            found = (await connection.execute(query)).scalar_one_or_none()
        return None if found is None else int(found)

    async def touch_bundle(self, namespace: str, digest: str) -> bool:
        """Notes that a namespace's bundle is used now; False if it has none of that digest."""
        mine = and_(t.bundles.c.namespace == namespace, t.bundles.c.digest == digest)
        async with self._database.transaction() as connection:
            done = await connection.execute(update(t.bundles).where(mine).values(used_at=func.now()))
        return bool(done.rowcount)

    async def take_turn(self, every_s: float) -> bool:
        """Whether this replica is the one that tidies up now: one does, once in so many seconds."""
        return await take_turn(self._database, "housekeeping", every_s)

    async def count_look(self, folder: str) -> int:
        """The number of looks at a data directory of that name that this database remembers, with this one."""
        return await count_turn(self._database, f"looks at {folder}")

    async def _remove(self, query: Any) -> int:
        async with self._database.transaction() as connection:
            return int((await connection.execute(query)).rowcount)


def _before(days: float) -> ColumnElement[datetime]:
    return func.now() - func.make_interval(0, 0, 0, 0, 0, 0, days * 86400.0)


def _ended_before(days: float) -> ColumnElement[bool]:
    return and_(t.jobs.c.state.in_(sorted(TERMINAL_STATES)), t.jobs.c.finished_at < _before(days))

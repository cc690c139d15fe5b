"""Whose places are whose: data roots of namespaces, and jobs by namespace."""

from __future__ import annotations

from collections.abc import Collection

from sqlalchemy import select

from elasticdl_core.job import JobSpec
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database


class PlaceStore:
    """Reads what decides about paths. Every method may raise UnavailableError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read_data_roots(self, namespace: str) -> tuple[str, ...]:
        """The folders and URL prefixes that an administrator gave a namespace, to read and to write."""
        query = select(t.namespaces.c.data_roots).where(t.namespaces.c.name == namespace)
        async with self._database.transaction() as connection:
            roots = (await connection.execute(query)).scalar_one_or_none()
        return tuple(str(root) for root in roots or ())

    async def filter_own(self, job_ids: Collection[str], namespace: str) -> frozenset[str]:
        """The jobs among some that belong to a namespace."""
        if not job_ids:
            return frozenset()
        query = select(t.jobs.c.id).where(t.jobs.c.id.in_(sorted(job_ids)), t.jobs.c.namespace == namespace)
        async with self._database.transaction() as connection:
            return frozenset((await connection.execute(query)).scalars())

    async def read_job(self, job_id: str) -> tuple[str, JobSpec, bool] | None:
        """Namespace and specification of a job, and whether its places are limited; None if there is no such job."""
        query = select(t.jobs.c.namespace, t.jobs.c.spec, t.jobs.c.restricted).where(t.jobs.c.id == job_id)
        async with self._database.transaction() as connection:
            row = (await connection.execute(query)).one_or_none()
        return None if row is None else (row.namespace, JobSpec.from_mapping(row.spec), row.restricted)

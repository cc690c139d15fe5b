"""Lists of jobs: which, in what order, how many."""

from __future__ import annotations

import enum
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Select, func, or_, select, tuple_

from elasticdl_api.store.records import JobRecord
from elasticdl_api.store.visibility import visible_jobs
from elasticdl_core.job.life import JobState
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database


class JobOrder(enum.StrEnum):
    """What jobs are ordered by, ``-`` for the largest first; jobs that are equal in it by their ids."""

    CREATED_AT = "created_at"
    NEWEST = "-created_at"
    UPDATED_AT = "updated_at"
    LATEST_UPDATED = "-updated_at"
    NAME = "name"
    NAME_BACKWARDS = "-name"
    PRIORITY = "priority"
    HIGHEST_PRIORITY = "-priority"
    STATE = "state"
    STATE_BACKWARDS = "-state"
    OWNER = "owner"
    OWNER_BACKWARDS = "-owner"

    @property
    def column(self) -> str:
        """The column of ``jobs``."""
        return self.value.removeprefix("-")

    @property
    def descending(self) -> bool:
        """Whether the largest comes first."""
        return self.value.startswith("-")


@dataclass(frozen=True)
class JobFilters:
    """Which jobs to list.

    Attributes:
        namespace: only of that namespace.
        states: only in one of these states; empty for any.
        name: only with that name.
        labels: only with all these labels.
        text: only those whose id, name or owner has that in it, in small or large letters.
    """

    namespace: str | None = None
    states: Sequence[JobState] = ()
    name: str | None = None
    labels: Mapping[str, str] | None = None
    text: str = ""


class JobLists:
    """Lists jobs. Every method may raise UnavailableError.

    Args:
        database: the pool.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_page(
        self,
        filters: JobFilters,
        *,
        namespace: str | None,
        order: JobOrder,
        limit: int,
        after: Sequence[Any] | None = None,
    ) -> list[JobRecord]:
        """Jobs that match.

        Args:
            filters: which.
            namespace: the only one that the reader sees, whichever is asked for.
            order: in what order.
            limit: at most that many.
            after: the place of the last job of the page before, as ``place_of`` gave it.
        """
        column, key = t.jobs.c[order.column], t.jobs.c.id
        query = select(t.jobs).where(*_conditions(filters, namespace))
        if after is not None:
            place = tuple_(_value(order, after[0]), after[1])
            here = tuple_(column, key)
            query = query.where(here < place if order.descending else here > place)
        turned = [one.desc() if order.descending else one.asc() for one in (column, key)]
        async with self._database.reading() as connection:
            rows = (await connection.execute(query.order_by(*turned).limit(limit))).mappings().all()
            return await visible_jobs(connection, rows, namespace)

    async def count(self, filters: JobFilters, *, namespace: str | None) -> int:
        """How many jobs match."""
        query: Select[Any] = select(func.count()).select_from(t.jobs).where(*_conditions(filters, namespace))
        async with self._database.reading() as connection:
            return int((await connection.execute(query)).scalar_one())


def place_of(job: JobRecord, order: JobOrder) -> list[Any]:
    """Where a job stands in an order, as JSON data."""
    value = getattr(job, order.column)
    return [value.isoformat() if isinstance(value, datetime) else value, job.id]


def _value(order: JobOrder, value: Any) -> Any:
    return datetime.fromisoformat(value) if order.column.endswith("_at") else value


def _conditions(filters: JobFilters, namespace: str | None) -> list[ColumnElement[bool]]:
    columns = t.jobs.c
    found: list[ColumnElement[bool]] = [
        columns.namespace == wanted for wanted in (filters.namespace, namespace) if wanted is not None
    ]
    if filters.states:
        found.append(t.in_states(filters.states))
    if filters.name is not None:
        found.append(columns.name == filters.name)
    if filters.labels:
        found.append(columns.spec["labels"].contains(dict(filters.labels)))
    if filters.text:
        found.append(or_(*(one.icontains(filters.text, autoescape=True) for one in (columns.id, columns.owner))))
    return found

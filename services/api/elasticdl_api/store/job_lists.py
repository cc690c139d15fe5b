"""Lists of jobs: which, in what order, how many."""

from __future__ import annotations

import enum
import functools
import json
import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import datetime
from typing import Any

from sqlalchemy import ColumnElement, Integer, Text, any_, bindparam, cast, func, or_, select, tuple_
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from elasticdl_api.store.job_views import SHOWN_COLUMNS, ShownJobs
from elasticdl_core.job.life import JobState
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.database.queries import Query


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


@dataclass(frozen=True)
class ListedJobs:
    """A page of a list.

    Attributes:
        bodies: the jobs, each as JSON.
        last: the place of the last one, as JSON data; None for an empty page.
        more: whether others follow.
    """

    bodies: list[bytes]
    last: list[Any] | None
    more: bool


class JobLists:
    """Lists jobs. Every method may raise UnavailableError.

    Args:
        database: the pool.
        views: shows jobs.
    """

    def __init__(self, database: Database, views: ShownJobs) -> None:
        self._database = database
        self._views = views

    async def list_page(
        self,
        filters: JobFilters,
        *,
        namespace: str | None,
        order: JobOrder,
        limit: int,
        after: Sequence[Any] | None = None,
    ) -> ListedJobs:
        """Jobs that match.

        Args:
            filters: which.
            namespace: the only one that the reader sees, whichever is asked for.
            order: in what order.
            limit: at most that many.
            after: where the page before ended.
        """
        values = _values(filters, namespace)
        query = _page_query(order, frozenset(values), after is not None)
        if after is not None:
            values |= {"after_value": _value(order, after[0]), "after_id": after[1]}
        rows = await self._database.fetch(query, limit=limit + 1, **values)
        page = rows[:limit]
        last = _place_of(page[-1], order) if page else None
        return ListedJobs(await self._views.summaries(page, namespace), last, len(rows) > limit)

    async def count(self, filters: JobFilters, *, namespace: str | None) -> int:
        """How many jobs match."""
        values = _values(filters, namespace)
        rows = await self._database.fetch(_count_query(frozenset(values)), **values)
        return int(rows[0]["number"])


def _place_of(row: Any, order: JobOrder) -> list[Any]:
    """Where a job stands in an order, as JSON data."""
    value = row[order.column]
    return [value.isoformat() if isinstance(value, datetime) else value, row["id"]]


def _value(order: JobOrder, value: Any) -> Any:
    return datetime.fromisoformat(value) if order.column.endswith("_at") else value


def _values(filters: JobFilters, namespace: str | None) -> dict[str, Any]:
    """The values of those filters that are given."""
    found: dict[str, Any] = {"seen": namespace, "namespace": filters.namespace, "name": filters.name}
    found = {name: value for name, value in found.items() if value is not None}
    if filters.states:
        found["states"] = [str(state) for state in filters.states]
    if filters.labels:
        found["labels"] = json.dumps(dict(filters.labels))
    if filters.text:
        found["text"] = "%" + _LIKE.sub(r"/\g<0>", filters.text) + "%"
    return found


_LIKE = re.compile(r"[%_/]")
_columns = t.jobs.c
_CONDITIONS: dict[str, ColumnElement[bool]] = {
    "seen": _columns.namespace == bindparam("seen"),
    "namespace": _columns.namespace == bindparam("namespace"),
    "states": _columns.state == any_(bindparam("states", type_=ARRAY(Text))),
    "name": _columns.name == bindparam("name"),
    "labels": _columns.spec["labels"].contains(cast(bindparam("labels", type_=Text), JSONB)),
    "text": or_(*(one.ilike(bindparam("text"), escape="/") for one in (_columns.id, _columns.owner))),
}


@functools.cache
def _page_query(order: JobOrder, given: frozenset[str], later: bool) -> Query:
    column, key = _columns[order.column], _columns.id
    query = select(*SHOWN_COLUMNS).where(*(_CONDITIONS[name] for name in sorted(given)))
    if later:
        place = tuple_(bindparam("after_value", type_=column.type), bindparam("after_id", type_=Text))
        here = tuple_(column, key)
        query = query.where(here < place if order.descending else here > place)
    turned = [one.desc() if order.descending else one.asc() for one in (column, key)]
    return Query(query.order_by(*turned).limit(bindparam("limit", type_=Integer)))


@functools.cache
def _count_query(given: frozenset[str]) -> Query:
    query = select(func.count().label("number")).select_from(t.jobs)
    return Query(query.where(*(_CONDITIONS[name] for name in sorted(given))))

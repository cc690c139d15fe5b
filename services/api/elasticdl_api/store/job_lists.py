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

from sqlalchemy import (
    ColumnElement,
    Double,
    Integer,
    Text,
    any_,
    bindparam,
    case,
    cast,
    func,
    literal,
    or_,
    select,
    tuple_,
)
from sqlalchemy.dialects.postgresql import ARRAY, JSONB

from elasticdl_api.store.job_views import BRIEF_COLUMNS, SHOWN_COLUMNS, ShownJobs
from elasticdl_core.job.life import LIVE_STATES, JobState
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.database.queries import Query


class JobOrder(enum.StrEnum):
    """Orders of jobs, ``-`` for the largest first; jobs that are equal in it by their ids."""

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
    PROGRESS = "progress"
    FURTHEST = "-progress"
    WORKERS = "workers"
    MOST_WORKERS = "-workers"
    END = "end"
    LATEST_END = "-end"

    @property
    def field(self) -> str:
        """The field that it compares."""
        return self.value.removeprefix("-")

    @property
    def descending(self) -> bool:
        """Whether the largest comes first."""
        return self.value.startswith("-")


@dataclass(frozen=True)
class JobFilters:
    """Filters of a list of jobs.

    Attributes:
        namespace: only of that namespace.
        states: only in one of these states; empty for any.
        name: only with that name.
        labels: only with all these labels.
        text: only those whose id, name or owner has that in it, in small or large letters.
        ids: only these; empty for any.
        owner: only of that owner; the empty one are those whose owner is not known.
    """

    namespace: str | None = None
    states: Sequence[JobState] = ()
    name: str | None = None
    labels: Mapping[str, str] | None = None
    text: str = ""
    ids: Sequence[str] = ()
    owner: str | None = None


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
        brief: bool = False,
    ) -> ListedJobs:
        """Jobs that match.

        Args:
            filters: which.
            namespace: the only one that the reader sees, whichever is asked for.
            order: in what order.
            limit: at most that many.
            after: where the page before ended.
            brief: without their specifications, and of their status the numbers alone.
        """
        values = _values(filters, namespace)
        query = _page_query(order, frozenset(values), after is not None, brief)
        if after is not None:
            values |= {"after_value": _value(order, after[0]), "after_id": after[1]}
        rows = await self._database.fetch(query, limit=limit + 1, **values)
        page = rows[:limit]
        last = _place_of(page[-1], order) if page else None
        show = self._views.briefs if brief else self._views.summaries
        return ListedJobs(await show(page, namespace), last, len(rows) > limit)

    async def count(self, filters: JobFilters, *, namespace: str | None) -> int:
        """The number of jobs that match."""
        values = _values(filters, namespace)
        rows = await self._database.fetch(_count_query(frozenset(values)), **values)
        return int(rows[0]["number"])


def _place_of(row: Any, order: JobOrder) -> list[Any]:
    """The position of a job in an order, as JSON data."""
    value = row[_PLACE]
    return [value.isoformat() if isinstance(value, datetime) else value, row["id"]]


def _value(order: JobOrder, value: Any) -> Any:
    return datetime.fromisoformat(value) if order.field.endswith("_at") else value


def _values(filters: JobFilters, namespace: str | None) -> dict[str, Any]:
    """The values of those filters that are given."""
    found: dict[str, Any] = {
        "seen": namespace,
        "namespace": filters.namespace,
        "name": filters.name,
        "owner": filters.owner,
    }
    found = {name: value for name, value in found.items() if value is not None}
    if filters.ids:
        found["ids"] = list(filters.ids)
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
    "owner": _columns.owner == bindparam("owner"),
    "ids": _columns.id == any_(bindparam("ids", type_=ARRAY(Text))),
    "labels": _columns.spec["labels"].contains(cast(bindparam("labels", type_=Text), JSONB)),
    "text": or_(*(one.ilike(bindparam("text"), escape="/") for one in (_columns.id, _columns.owner))),
}


_PLACE = "place"
"""Where a job stands in the order of a page."""
_UNKNOWN = 1e300
"""Stands for a number that nobody knows: these jobs come last, whatever comes first."""
_AFTER_ALL_ENDS = 1e12
"""Seconds since the epoch at which what is still to end counts from: what is over ended before."""


_LIVE = _columns.state == any_(literal(sorted(LIVE_STATES), ARRAY(Text)))


def _end() -> ColumnElement[Any]:
    """When a job ended; when it will end, for those that go on, is compared by how long that takes from now."""
    over = cast(func.extract("epoch", _columns.finished_at), Double)
    known = _LIVE & _columns.eta_seconds.is_not(None)
    ahead = case((known, _AFTER_ALL_ENDS + func.greatest(_columns.eta_seconds, 0.0)))
    return func.coalesce(over, ahead)


def _key(order: JobOrder) -> ColumnElement[Any]:
    """The sort key of an order."""
    numbers = {
        "progress": _columns.progress,
        "workers": case((_LIVE, cast(_columns.workers_present, Double))),
        "end": _end(),
    }
    if order.field not in numbers:
        return _columns[order.field]
    return func.coalesce(numbers[order.field], literal(-1.0 if order.descending else _UNKNOWN, Double))


@functools.cache
def _page_query(order: JobOrder, given: frozenset[str], later: bool, brief: bool) -> Query:
    """First which jobs, and then what they say: what is long is read of those of the page alone."""
    key, number = _key(order), _columns.id
    chosen = select(number, key.label(_PLACE)).where(*(_CONDITIONS[name] for name in sorted(given)))
    if later:
        place = tuple_(bindparam("after_value", type_=key.type), bindparam("after_id", type_=Text))
        here = tuple_(key, number)
        chosen = chosen.where(here < place if order.descending else here > place)
    turned = [one.desc() if order.descending else one.asc() for one in (key, number)]
    page = chosen.order_by(*turned).limit(bindparam("limit", type_=Integer)).cte("page").prefix_with("MATERIALIZED")
    shown = BRIEF_COLUMNS if brief else SHOWN_COLUMNS
    query = select(*shown, page.c.place).select_from(page.join(t.jobs, number == page.c.id))
    inner = (page.c.place, page.c.id)
    return Query(query.order_by(*(one.desc() if order.descending else one.asc() for one in inner)))


@functools.cache
def _count_query(given: frozenset[str]) -> Query:
    query = select(func.count().label("number")).select_from(t.jobs)
    return Query(query.where(*(_CONDITIONS[name] for name in sorted(given))))

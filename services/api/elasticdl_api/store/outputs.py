"""Outputs of a job, as they are shown: checkpoints, evaluations, artifacts. Postgres writes the JSON."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Column, ColumnElement, Integer, Table, Text, bindparam, cast, func, literal, or_, select
from sqlalchemy.dialects.postgresql import aggregate_order_by

from elasticdl_api.schemas.moments import moment_sql
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.database.queries import Query


@dataclass(frozen=True)
class OutputKind:
    """A kind of what jobs make.

    Attributes:
        table: has a row for each.
        key: names one of a job's, and orders them.
        shown: names and values of what is shown of one, in turns.
    """

    table: Table
    key: ColumnElement[Any]
    shown: Sequence[Any]

    @property
    def as_json(self) -> ColumnElement[Any]:
        """One of them."""
        return func.json_build_object(*self.shown)

    @property
    def all_of_job(self) -> ColumnElement[Any]:
        """All those of a row of ``jobs``, as one text."""
        rows = cast(func.json_agg(aggregate_order_by(self.as_json, self.key)), Text)
        found = select(func.coalesce(rows, "[]")).where(self.table.c.job_id == t.jobs.c.id)
        return found.correlate(t.jobs).scalar_subquery()


_checkpoints, _evaluations, _artifacts = t.checkpoints.c, t.evaluations.c, t.artifacts.c
_name: Column[str] = _artifacts.name
OUTPUTS = {
    "checkpoints": OutputKind(
        t.checkpoints,
        _checkpoints.version,
        (
            *("version", _checkpoints.version),
            *("committed_at", moment_sql(_checkpoints.committed_at)),
            *("manifest", _checkpoints.manifest),
        ),
    ),
    "evaluations": OutputKind(
        t.evaluations,
        _evaluations.number,
        (
            *("number", _evaluations.number),
            *("model_version", _evaluations.model_version),
            *("training_epoch", _evaluations.training_epoch),
            *("metrics", _evaluations.metrics),
            *("at", moment_sql(_evaluations.at)),
        ),
    ),
    "artifacts": OutputKind(
        t.artifacts,
        _name.collate("C"),  # one order, whatever the database's is
        (
            *("name", _name),
            *("size", _artifacts.size),
            *("sha256", _artifacts.sha256),
            *("at", moment_sql(_artifacts.at)),
            *("url", literal("/jobs/") + _artifacts.job_id + "/artifacts/" + _name),
        ),
    ),
}
"""By the name of the field of a job that lists them."""


def _page_query(kind: OutputKind) -> Query:
    after = bindparam("after", type_=kind.key.type)
    return Query(
        select(kind.key.label("key"), cast(kind.as_json, Text).label("body"))
        .where(kind.table.c.job_id == bindparam("job_id"), or_(after.is_(None), kind.key > after))
        .order_by(kind.key)
        .limit(bindparam("limit", type_=Integer))
    )


_PAGES = {name: _page_query(kind) for name, kind in OUTPUTS.items()}
_FILES = Query(
    select(_name, _artifacts.path, _artifacts.size, _artifacts.sha256).where(_artifacts.job_id == bindparam("job_id"))
)


_METRICS = Query(
    select(_evaluations.metrics)
    .where(_evaluations.job_id == bindparam("job_id"))
    .order_by(_evaluations.number.desc())
    .limit(1)
)


class OutputLists:
    """Lists what a job made. Every method may raise UnavailableError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_page(self, kind: str, job_id: str, *, after: Any, limit: int) -> list[tuple[Any, bytes]]:
        """The key and the JSON of those after a key, None for the beginning, in the order of keys."""
        rows = await self._database.fetch(_PAGES[kind], job_id=job_id, after=after, limit=limit)
        return [(row["key"], row["body"].encode()) for row in rows]

    async def last_metrics(self, job_id: str) -> dict[str, Any]:
        """The metrics of the last evaluation of a job; nothing if there is none."""
        rows = await self._database.fetch(_METRICS, job_id=job_id)
        return dict(json.loads(rows[0]["metrics"])) if rows else {}

    async def list_files(self, job_id: str) -> dict[str, dict[str, Any]]:
        """The artifacts of a job by their names: where they lie, their sizes and digests."""
        return {row["name"]: dict(row) for row in await self._database.fetch(_FILES, job_id=job_id)}

"""Series of numbers of jobs and of the cluster: written a few rows at a time, read in bounded pieces.

A row holds all numbers of one span, so that a job costs one row in five seconds however many series it has. What is
older than its tier keeps is removed by whoever writes, when a minute is over: nothing else has to tidy up, and a job
that has ended keeps its last half hour as fine as it was.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import (
    BigInteger,
    Double,
    Integer,
    Select,
    Text,
    and_,
    bindparam,
    case,
    cast,
    column,
    delete,
    func,
    or_,
    select,
    true,
)
from sqlalchemy.dialects.postgresql import ARRAY
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.ext.asyncio import AsyncConnection

from elasticdl_api.store.turns import take_turn
from elasticdl_core.series import TIERS, SeriesRow, SeriesSegment, beginning, segments
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.database.queries import Query

_KEY = ("tier", "start", "writer")


async def write_rows(
    connection: AsyncConnection, rows: Sequence[SeriesRow], *, writer: int, job_id: str | None = None
) -> None:
    """Writes rows, in the place of what the same writer said of the same spans.

    Args:
        connection: in a transaction.
        rows: the rows.
        writer: tells writers apart that may tell of one span.
        job_id: whose they are; None for the cluster.
    """
    table, mine = (t.cluster_series, {}) if job_id is None else (t.job_series, {"job_id": job_id})
    row = upsert(table)
    key = [*mine, *_KEY]
    changes = {name: row.excluded[name] for name in ("samples", "numbers")}
    values = [
        {**mine, "writer": writer, "tier": one.tier, "start": one.start, "samples": one.samples}
        | {"numbers": {name: list(told) for name, told in one.numbers.items()}}
        for one in rows
    ]
    await connection.execute(row.on_conflict_do_update(index_elements=key, set_=changes), values)
    newest = max((one.start for one in rows if one.tier > 0), default=0)
    if newest:
        columns = table.c
        old = or_(
            *(
                and_(columns.tier == tier, columns.start < newest - int(one.keeps_s))
                for tier, one in enumerate(TIERS)
                if one.keeps_s < math.inf
            )
        )
        own = [columns[name] == value for name, value in mine.items()]
        await connection.execute(delete(table).where(*own, old))


@dataclass(frozen=True)
class ReadSeries:
    """Series of a stretch of time.

    Attributes:
        since: its beginning; of what there is if none was asked for.
        until: its end.
        rows: rows that tell each moment once.
    """

    since: float
    until: float
    rows: list[SeriesRow]


@dataclass(frozen=True)
class LossStretch:
    """The losses of a stretch of versions or of time, added up.

    Attributes:
        x: where it lies: the mean version, or the mean time in seconds since the epoch.
        mean: of the losses; NaN if one of them is.
        least: of them.
        largest: of them.
    """

    x: float
    mean: float
    least: float
    largest: float


def _bounds_query(*, of_job: bool) -> Query:
    table = t.job_series if of_job else t.cluster_series
    tiers = func.generate_series(0, len(TIERS) - 1).table_valued(column("tier", Integer)).render_derived("tiers")
    mine = [table.c.tier == tiers.c.tier, *([table.c.job_id == bindparam("job_id")] if of_job else [])]

    def end(order: Any) -> Any:
        return select(table.c.start).where(*mine).order_by(order).limit(1).scalar_subquery()

    return Query(
        select(tiers.c.tier, end(table.c.start.asc()).label("first"), end(table.c.start.desc()).label("last"))
    )


def _rows_query(*, of_job: bool) -> Query:
    """The rows of some segments; of some numbers only where names are given."""
    table = t.job_series if of_job else t.cluster_series
    asked = func.unnest(
        bindparam("tiers", type_=ARRAY(Integer)),
        bindparam("begins", type_=ARRAY(BigInteger)),
        bindparam("ends", type_=ARRAY(BigInteger)),
    )
    wanted = asked.table_valued(
        column("tier", Integer), column("begins", BigInteger), column("ends", BigInteger), name="wanted"
    ).render_derived()
    here = [
        table.c.tier == wanted.c.tier,
        table.c.start >= wanted.c.begins,
        table.c.start < wanted.c.ends,
        *([table.c.job_id == bindparam("job_id")] if of_job else []),
    ]
    names = bindparam("names", type_=ARRAY(Text))
    pairs = func.jsonb_each(table.c.numbers).table_valued("key", "value", name="pairs").render_derived()
    chosen = select(func.jsonb_object_agg(pairs.c.key, pairs.c.value)).where(pairs.c.key == func.any(names))
    numbers = case((names.is_(None), table.c.numbers), else_=chosen.scalar_subquery())
    query: Select[Any] = (
        select(table.c.tier, table.c.start, table.c.samples, cast(numbers, Text).label("numbers"))
        .select_from(wanted.join(table, and_(true(), *here)))
        .order_by(table.c.start)
    )
    return Query(query)


def _losses_query(*, by_version: bool) -> Query:
    losses = t.losses.c
    place = cast(losses.model_version, Double) if by_version else cast(func.extract("epoch", losses.at), Double)
    since, until = bindparam("since", type_=Double), bindparam("until", type_=Double)
    width = bindparam("width", type_=Double)
    here = (losses.job_id == bindparam("job_id"), place >= since, place <= until)
    stretch = func.floor((place - since) / width)
    return Query(
        select(
            func.avg(place).label("x"),
            func.avg(losses.loss).label("mean"),
            func.min(losses.loss).label("least"),
            func.max(losses.loss).label("largest"),
        )
        .where(*here)
        .group_by(stretch)
        .order_by(stretch)
    )


_BOUNDS = {of_job: _bounds_query(of_job=of_job) for of_job in (False, True)}
_ROWS = {of_job: _rows_query(of_job=of_job) for of_job in (False, True)}
_LOSSES = {by_version: _losses_query(by_version=by_version) for by_version in (False, True)}
_LOSS_BOUNDS = Query(
    select(func.min(t.losses.c.model_version).label("first"), func.max(t.losses.c.model_version).label("last")).where(
        t.losses.c.job_id == bindparam("job_id")
    )
)
_EVALUATIONS = Query(
    select(
        t.evaluations.c.model_version,
        cast(func.extract("epoch", t.evaluations.c.at), Double).label("at"),
        cast(t.evaluations.c.metrics, Text).label("metrics"),
    )
    .where(t.evaluations.c.job_id == bindparam("job_id"))
    .order_by(t.evaluations.c.number.desc())
    .limit(bindparam("limit", type_=Integer))
)


class SeriesStore:
    """Reads series, and writes those of the cluster. Every method may raise UnavailableError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(
        self,
        job_id: str | None,
        *,
        since: float | None,
        until: float | None,
        points: int,
        names: Sequence[str] | None = None,
    ) -> ReadSeries:
        """Rows of a stretch of time.

        Args:
            job_id: whose; None for the cluster's.
            since: the beginning; None for that of the series.
            until: the end; None for that of the series.
            points: how many are wanted.
            names: only these numbers; None for all.
        """
        mine: dict[str, Any] = {} if job_id is None else {"job_id": job_id}
        of_job = job_id is not None
        found = await self._database.fetch(_BOUNDS[of_job], **mine)
        bounds = {row["tier"]: (row["first"], row["last"]) for row in found if row["first"] is not None}
        begin = beginning(bounds) if since is None else since
        ends = [last + TIERS[tier].step_s for tier, (_, last) in bounds.items() if tier == min(bounds)]
        end = max([*ends, begin]) if until is None else until
        wanted = segments(bounds, begin, end, points)
        rows = await self._read_rows(wanted, names, mine) if wanted else []
        return ReadSeries(begin, end, rows)

    async def _read_rows(
        self, wanted: Sequence[SeriesSegment], names: Sequence[str] | None, mine: Mapping[str, Any]
    ) -> list[SeriesRow]:
        asked: dict[str, Any] = {
            "tiers": [one.tier for one in wanted],
            "begins": [one.since for one in wanted],
            "ends": [one.until for one in wanted],
            "names": None if names is None else list(names),
        }
        rows = await self._database.fetch(_ROWS[bool(mine)], **asked, **mine)
        return [
            SeriesRow(row["tier"], row["start"], row["samples"], json.loads(row["numbers"]) if row["numbers"] else {})
            for row in rows
        ]

    async def read_losses(
        self, job_id: str, *, by_version: bool, since: float | None, until: float | None, points: int
    ) -> list[LossStretch]:
        """The losses of a job in so many stretches of versions or, where both ends are given, of time."""
        if by_version:
            (bounds,) = await self._database.fetch(_LOSS_BOUNDS, job_id=job_id)
            if bounds["first"] is None:
                return []
            since = bounds["first"] if since is None else since
            until = bounds["last"] if until is None else until
        if since is None or until is None or until < since:
            return []
        width = max((until - since) / points, 1.0 if by_version else 1e-3)
        found = await self._database.fetch(
            _LOSSES[by_version], job_id=job_id, since=float(since), until=float(until), width=width
        )
        return [LossStretch(row["x"], row["mean"], row["least"], row["largest"]) for row in found]

    async def read_evaluations(self, job_id: str, limit: int) -> list[tuple[float, float, dict[str, Any]]]:
        """The latest evaluations of a job, oldest first: version, time, metrics."""
        rows = await self._database.fetch(_EVALUATIONS, job_id=job_id, limit=limit)
        return [(row["model_version"], row["at"], json.loads(row["metrics"])) for row in reversed(rows)]

    async def write_cluster(self, rows: Sequence[SeriesRow], writer: int) -> None:
        """Writes rows of the cluster's series."""
        async with self._database.transaction() as connection:
            await write_rows(connection, rows, writer=writer)

    async def take_turn(self, every_s: float) -> bool:
        """Whether this replica is the one that looks at the cluster now: one does, once in so many seconds."""
        return await take_turn(self._database, "cluster series", every_s)

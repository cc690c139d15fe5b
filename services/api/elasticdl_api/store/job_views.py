"""Jobs as they are shown: one read each, and the JSON that Postgres holds goes into the answer as it is.

What a job's specification, status and outputs say is neither taken apart nor put together again on its way: that
costs more than everything else about an answer. The fields are those of ``schemas.jobs``; a test compares them.
"""

from __future__ import annotations

import json
from collections.abc import Iterable, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from pydantic_core import to_json
from sqlalchemy import (
    ColumnElement,
    Integer,
    Select,
    Text,
    any_,
    bindparam,
    case,
    cast,
    exists,
    func,
    literal,
    literal_column,
    select,
)
from sqlalchemy.dialects.postgresql import ARRAY, aggregate_order_by

from elasticdl_api.schemas.jobs import EventResponse, JobSummaryResponse
from elasticdl_api.schemas.moments import moment_sql, moment_text
from elasticdl_api.store.outputs import OUTPUTS
from elasticdl_api.store.records import BRIEF, brief_status, shown_error
from elasticdl_api.store.visibility import blockers_of, without_names
from elasticdl_api.web.json_bodies import SHOWN_DEPTH, prune
from elasticdl_core.errors import NotFoundError
from elasticdl_core.job import JobState
from elasticdl_core.scheduling.explanation import hide_names
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.database.queries import Query

_AS_TEXT = ("spec", "status", "error")
_PLAIN = tuple(name for name in JobSummaryResponse.model_fields if name not in _AS_TEXT)
_MOMENTS = tuple(name for name in _PLAIN if name.endswith("_at"))
SHOWN_COLUMNS = (
    *(t.jobs.c[name] for name in _PLAIN),
    *(cast(t.jobs.c[name], Text).label(name) for name in _AS_TEXT),
    t.jobs.c.target_detail["blockers"].astext.label("blockers"),
    t.jobs.c.revision,
)
"""What ``summary`` reads of ``jobs``."""


_EMPTY: ColumnElement[Any] = literal_column("'{}'::jsonb")


def _brief_numbers() -> Any:
    """Of a status what lists show of it: that of a job with many workers is long."""
    each = func.jsonb_each(t.jobs.c.status).table_valued("key", "value", name="told").render_derived()
    shown = each.c.key == any_(literal(list(BRIEF), ARRAY(Text)))
    numbers = select(func.coalesce(func.jsonb_object_agg(each.c.key, each.c.value), _EMPTY)).where(shown)
    is_object = func.jsonb_typeof(t.jobs.c.status) == "object"
    return cast(case((is_object, numbers.scalar_subquery()), else_=t.jobs.c.status), Text)


BRIEF_COLUMNS = (
    *(column for column in SHOWN_COLUMNS if column.name not in ("spec", "status")),
    _brief_numbers().label("status"),
    t.jobs.c.workers_present,
)
"""What ``brief`` reads of ``jobs``."""


@dataclass(frozen=True, slots=True)
class ShownJob:
    """A job as it is shown.

    Attributes:
        id: the job.
        revision: grows when state or settings change.
        body: the answer.
    """

    id: str
    revision: int
    body: bytes


def missing_job(job_id: str) -> NotFoundError:
    """Says that there is no such job for whoever asks."""
    return NotFoundError(f"there is no job {job_id}", fix="list the jobs: `elasticdl jobs list`, or GET /jobs")


def _of_one(*columns: Any) -> Select[Any]:
    """One job, if a reader of that namespace sees it."""
    return select(*columns).where(t.jobs.c.id == bindparam("job_id"), seen_by("namespace"))


def seen_by(parameter: str) -> Any:
    """Whether a job is of a namespace; any is, if that is null."""
    namespace = bindparam(parameter, type_=Text)
    return func.coalesce(namespace, t.jobs.c.namespace) == t.jobs.c.namespace


_DETAIL = Query(_of_one(*SHOWN_COLUMNS, *(kind.all_of_job.label(name) for name, kind in OUTPUTS.items())))
_EXISTS = Query(_of_one(literal(1)))
_STATE = Query(_of_one(t.jobs.c.state))


def _losses() -> Any:
    latest = (
        select(t.losses)
        .where(t.losses.c.job_id == bindparam("job_id"))
        .order_by(t.losses.c.model_version.desc())
        .limit(bindparam("limit", type_=Integer))
        .subquery("latest")
    )
    item = func.json_build_object(
        *("model_version", latest.c.model_version),
        *("loss", latest.c.loss),  # Postgres writes what is no number as a string, as we do
        *("at", moment_sql(latest.c.at)),
    )
    rows = func.json_agg(aggregate_order_by(item, latest.c.model_version))
    return select(func.coalesce(cast(rows, Text), "[]")).scalar_subquery()


_METRICS = Query(_of_one(_losses().label("losses"), OUTPUTS["evaluations"].all_of_job.label("evaluations")))
_EVENT_COLUMNS = (
    *(t.events.c[name] for name in EventResponse.model_fields if name != "detail"),
    cast(t.events.c.detail, Text).label("detail"),
)
_EVENTS = Query(
    select(*_EVENT_COLUMNS)
    .where(
        t.events.c.job_id == bindparam("job_id"),
        t.events.c.id > bindparam("after"),
        exists().where(t.jobs.c.id == t.events.c.job_id, seen_by("namespace")),
    )
    .order_by(t.events.c.id)
    .limit(bindparam("limit", type_=Integer))
)
_OF_NAMESPACE = Query(
    select(t.jobs.c.id).where(
        t.jobs.c.id == any_(bindparam("ids", type_=ARRAY(Text))), t.jobs.c.namespace == bindparam("namespace")
    )
)


class ShownJobs:
    """Reads jobs to show them. Every method may raise UnavailableError.

    ``namespace`` None sees all namespaces; reasons and events name no job of another namespace.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def require(self, job_id: str, *, namespace: str | None) -> None:
        """Sees that a job is there.

        Raises:
            NotFoundError: there is none.
        """
        if not await self._database.fetch(_EXISTS, job_id=job_id, namespace=namespace):
            raise missing_job(job_id)

    async def is_over(self, job_id: str, *, namespace: str | None) -> bool:
        """Whether a job has ended, or is not there any more."""
        rows = await self._database.fetch(_STATE, job_id=job_id, namespace=namespace)
        return not rows or JobState(rows[0]["state"]).terminal

    async def read(self, job_id: str, *, namespace: str | None) -> ShownJob:
        """One job with all that belongs to it.

        Raises:
            NotFoundError: there is none.
        """
        rows = await self._database.fetch(_DETAIL, job_id=job_id, namespace=namespace)
        if not rows:
            raise missing_job(job_id)
        row = rows[0]
        outputs = {name: row[name] for name in OUTPUTS}
        (body,) = await self.summaries(rows, namespace)
        return ShownJob(row["id"], row["revision"], joined(body, outputs))

    async def read_metrics(self, job_id: str, *, namespace: str | None, limit: int) -> bytes:
        """The latest losses of a job, and its evaluations.

        Raises:
            NotFoundError: there is none.
        """
        rows = await self._database.fetch(_METRICS, job_id=job_id, namespace=namespace, limit=limit)
        if not rows:
            raise missing_job(job_id)
        return joined(b"{}", dict(rows[0]))

    async def list_events(
        self, job_id: str, *, namespace: str | None, after: int, limit: int
    ) -> list[tuple[int, bytes]]:
        """Events of a job after an id, oldest first: the id and what is shown of each.

        Raises:
            NotFoundError: there is no such job.
        """
        rows = await self._database.fetch(_EVENTS, job_id=job_id, namespace=namespace, after=after, limit=limit)
        if not rows:
            await self.require(job_id, namespace=namespace)
        hidden = await self._hidden((_blockers_in(row["detail"]) for row in rows), namespace)
        return [(row["id"], _event(row, hidden)) for row in rows]

    async def list_seen(self, job_ids: Sequence[str], *, namespace: str | None) -> frozenset[str]:
        """The jobs among some that a reader of that namespace sees; all, also such as are gone, if that is None."""
        return frozenset(job_ids) - await self._hidden([job_ids], namespace)

    async def summaries(self, rows: Sequence[Mapping[str, Any]], namespace: str | None) -> list[bytes]:
        """Rows of ``SHOWN_COLUMNS`` as lists show them to a reader of that namespace."""
        hidden = await self._hidden((_loaded_list(row["blockers"]) for row in rows), namespace)
        return [_summary(row, hidden) for row in rows]

    async def briefs(self, rows: Sequence[Mapping[str, Any]], namespace: str | None) -> list[bytes]:
        """Rows of ``BRIEF_COLUMNS`` as short lists show them to a reader of that namespace."""
        hidden = await self._hidden((_loaded_list(row["blockers"]) for row in rows), namespace)
        numbers = [brief_status(_loaded(row["status"]), row["workers_present"]) for row in rows]
        return [to_json({**_values(row, hidden), "status": one}) for row, one in zip(rows, numbers, strict=True)]

    async def _hidden(self, blockers: Iterable[Sequence[str]], namespace: str | None) -> frozenset[str]:
        """The jobs, of some that reasons name, that a reader of that namespace does not see."""
        if namespace is None:
            return frozenset()
        named = frozenset(one for some in blockers for one in some)
        if not named:
            return named
        rows = await self._database.fetch(_OF_NAMESPACE, ids=sorted(named), namespace=namespace)
        return named - frozenset(row["id"] for row in rows)


def joined(head: bytes, parts: Mapping[str, str | bytes]) -> bytes:
    """A JSON object with more members, each of which is JSON already."""
    pieces = [head[:-1]]
    for name, text in parts.items():
        comma = b"" if pieces[-1] == b"{" else b","
        pieces.append(b'%s"%s":%s' % (comma, name.encode(), text.encode() if isinstance(text, str) else text))
    pieces.append(b"}")
    return b"".join(pieces)


def array(items: Iterable[bytes]) -> bytes:
    """A JSON array of what is JSON already."""
    return b"[%s]" % b",".join(items)


def _summary(row: Mapping[str, Any], hidden: frozenset[str]) -> bytes:
    return joined(to_json(_values(row, hidden)), {"spec": _safe(row["spec"]), "status": _safe(row["status"])})


def _values(row: Mapping[str, Any], hidden: frozenset[str]) -> dict[str, Any]:
    """The values of a row, without specification and status."""
    values = {name: row[name] for name in _PLAIN}
    for name in _MOMENTS:
        if values[name] is not None:
            values[name] = moment_text(values[name])
    if hidden:
        unseen = [one for one in _loaded_list(row["blockers"]) if one in hidden]
        values["target_reason"] = hide_names(values["target_reason"], unseen)
    if row["error"] is None:
        values["error"] = None
    else:
        values["error"] = shown_error(json.loads(_safe(row["error"])))
    return values


def _loaded(text: str) -> Any:
    return json.loads(_safe(text))


def _event(row: Mapping[str, Any], hidden: frozenset[str]) -> bytes:
    values = {"id": row["id"], "at": moment_text(row["at"]), "kind": row["kind"], "message": row["message"]}
    detail = row["detail"]
    unseen = [one for one in _blockers_in(detail) if one in hidden] if hidden else []
    if unseen:
        detail = to_json(without_names(json.loads(detail), unseen)).decode()
        values["message"] = hide_names(row["message"], unseen)
    return joined(to_json(values), {"detail": detail})


def _safe(text: str) -> str:
    """A JSON text as it can be shown: one that is nested more deeply than any door lets in is cut."""
    if text.count("{") + text.count("[") <= SHOWN_DEPTH:
        return text
    try:
        value = json.loads(text)
    except RecursionError:
        return '"..."'
    shown = prune(value)
    return text if shown is value else to_json(shown).decode()


def _blockers_in(detail: str) -> list[str]:
    return blockers_of(json.loads(detail)) if '"blockers"' in detail else []


def _loaded_list(text: str | None) -> list[str]:
    return [] if text is None else blockers_of({"blockers": json.loads(text)})

"""The scheduler explained: why each job has what it has, the plan, what if, and what was decided. All of it reads."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request
from fastapi.exceptions import RequestValidationError
from pydantic import ValidationError

from elasticdl_api.routes.jobs import find
from elasticdl_api.scheduling import explanations
from elasticdl_api.scheduling.what_if import answer, change_of
from elasticdl_api.schemas import jobs as schemas
from elasticdl_api.schemas import scheduling as s
from elasticdl_api.schemas.moments import GivenMoment
from elasticdl_api.services import Api, User
from elasticdl_api.store.scheduling import DecisionFilters
from elasticdl_api.web.auth import Identity
from elasticdl_api.web.json_bodies import BIGINT, read_json
from elasticdl_api.web.paging import PageToken
from elasticdl_api.web.problems import MalformedError, declared
from elasticdl_core.errors import InvalidInputError, PermissionDeniedError
from elasticdl_core.scheduling.explanation import hide_names

router = APIRouter(tags=["scheduler"])
LAST_DECISIONS = 5
MOST_FULL = 10
"""Decisions on a page that come with all that they were made on."""

JobName = Annotated[str | None, Query(description="Only what changed that job.", pattern=r"^[-a-z0-9]{1,100}$")]


@router.get(
    "/jobs/{job_id}/explain",
    response_model=s.Explanation,
    summary="Why a job has the workers that it has",
    responses=declared(404, 422),
)
async def explain(job_id: schemas.JobId, api: Api, user: User) -> Any:
    """One primary reason with its numbers, who holds what the job lacks, what would help, and when it will end."""
    record = await find(api, user, job_id)
    view = await api.cluster_views.get()
    if record.id not in view.rows and not record.terminal:
        view = await api.cluster_views.get(fresh=True)
    rows = await api.scheduling.list_decisions(DecisionFilters(job_id=record.id), limit=LAST_DECISIONS, full=False)
    changes = [one for one in await _changes(api, user, rows) if one.job_id == record.id]
    last = view.seen.last
    leads = bool(last and last["alive"])
    return await api.cluster_views.compute(lambda: explanations.explain(view, record, user.namespace, changes, leads))


@router.get("/scheduler/plan", response_model=s.PresentPlan, summary="The plan in force", responses=declared())
async def plan(api: Api, user: User) -> Any:
    """Targets and reasons of all jobs that are not over, with what is expected of each."""
    view = await api.cluster_views.get()
    return await api.cluster_views.compute(lambda: explanations.present_plan(view, user.namespace))


@router.post(
    "/scheduler/what-if",
    response_model=s.WhatIfAnswer,
    summary="Forecast of a change",
    openapi_extra={
        "requestBody": {
            "required": True,
            "description": "The changes, all together.",
            "content": {"application/json": {"schema": {"$ref": "#/components/schemas/WhatIf"}}},
        }
    },
    responses=declared(400, 404, 413, 415, 422),
)
async def what_if(request: Request, api: Api, user: User) -> Any:
    """Start, end and workers of every job without and with the changes. Changes nothing."""
    question = _question(await read_json(request))
    view = await api.cluster_views.get(fresh=True)
    change = change_of(question, view, user.namespace, user.home)
    return await api.cluster_views.compute(lambda: answer(view, change, user.namespace))


def _question(body: Any) -> s.WhatIf:
    if not isinstance(body, dict):
        raise MalformedError("the body is not a JSON object", fix="send the fields of a question; see /docs")
    try:
        return s.WhatIf.model_validate(body)
    except ValidationError as error:
        found = error.errors(include_url=False, include_context=False)
        raise RequestValidationError([{**item, "loc": ("body", *item["loc"])} for item in found]) from None


@router.get(
    "/scheduler/decisions",
    response_model=s.DecisionPage,
    summary="Decisions of the scheduler",
    responses=declared(422),
)
async def decisions(
    api: Api,
    user: User,
    job: JobName = None,
    since: Annotated[GivenMoment | None, Query(description="Only from then on (ISO 8601, with a zone).")] = None,
    until: Annotated[GivenMoment | None, Query(description="Only before then.")] = None,
    page_token: PageToken = None,
    cursor: Annotated[
        str | None,
        Query(
            description="An alias of page_token: next_cursor of the page before.",
            max_length=20,
            json_schema_extra={"pattern": "^([0-9]{1,18}|[1-8][0-9]{18})$"},
        ),
    ] = None,
    limit: Annotated[int, Query(description="Decisions on a page.", ge=1, le=500)] = 50,
    full: Annotated[
        bool,
        Query(description=f"With snapshot and plan, to replay; at most {MOST_FULL} a page; administrators only."),
    ] = False,
) -> Any:
    """Decisions that changed something, the latest first, each with the hash of what it was made on.

    A decision is replayed by giving its snapshot to its policy: the outcome is its plan.
    """
    if full and user.namespace is not None:
        raise PermissionDeniedError(
            "a snapshot shows the jobs of all namespaces", fix="use the admin token, or leave full out"
        )
    size = min(limit, MOST_FULL) if full else limit
    about = {"seen": user.namespace, "job": job, "since": since, "until": until}
    before = None if cursor is None else _cursor(cursor)
    if page_token is not None:
        (before,) = api.pages.read(page_token, "decisions", about)
    filters = DecisionFilters(user.namespace, job, since, until, before)
    rows = await api.scheduling.list_decisions(filters, limit=size + 1, full=full)
    page = rows[:size]
    changes: dict[int, list[s.JobChange]] = {}
    for change in await _changes(api, user, page):
        changes.setdefault(change.sequence, []).append(change)
    return {
        "decisions": [_decision(row, changes.get(row["id"], [])) for row in page],
        "next_page_token": api.pages.make("decisions", about, [page[-1]["id"]]) if len(rows) > size else None,
        "next_cursor": str(page[-1]["id"]) if len(rows) > size else None,
    }


def _decision(row: Mapping[str, Any], changes: list[s.JobChange]) -> dict[str, Any]:
    names = ("at", "epoch", "policy", "input_hash")
    return {
        "sequence": row["id"],
        **{name: row[name] for name in names},
        "changes": changes,
        "snapshot": row.get("snapshot"),
        "plan": row.get("plan"),
    }


def _cursor(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() and len(text) < 20 else -1
    if not 0 <= number <= BIGINT:
        raise InvalidInputError("the cursor is not one of ours", fix="use next_cursor as it came, or leave it out")
    return number


async def _changes(api: Api, user: Identity, rows: Sequence[Mapping[str, Any]]) -> list[s.JobChange]:
    """The changes of decisions, as far as the user may see them."""
    listed = [(row, change) for row in rows for change in row["changes"]]
    seen: frozenset[str] | None = None
    if user.namespace is not None:
        named = {one for _, change in listed for one in (change["job_id"], *change["blockers"])}
        seen = await api.scheduling.filter_by_namespace(sorted(named), user.namespace)
    return [_change(row, change, seen) for row, change in listed if seen is None or change["job_id"] in seen]


def _change(row: Mapping[str, Any], change: Mapping[str, Any], seen: frozenset[str] | None) -> s.JobChange:
    blockers = [one for one in change["blockers"] if seen is None or one in seen]
    return s.JobChange(
        sequence=row["id"],
        at=row["at"],
        job_id=change["job_id"],
        before=change["from"],
        after=change["to"],
        code=change["code"],
        text=hide_names(change["text"], [one for one in change["blockers"] if one not in blockers]),
        blockers=blockers,
    )

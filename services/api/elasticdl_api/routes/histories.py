"""Routes of histories of jobs and the cluster: lives of processes, series of numbers, the ledger of records."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from pydantic import Field

from elasticdl_api.histories.ledger import ledger_of
from elasticdl_api.histories.shown_series import By, SeriesQuery
from elasticdl_api.routes.jobs import find, require
from elasticdl_api.routes.pages import json_response
from elasticdl_api.schemas import jobs as schemas
from elasticdl_api.schemas.histories import (
    LedgerResponse,
    ProcessPageResponse,
    ProcessResponse,
    SeriesListResponse,
)
from elasticdl_api.schemas.moments import GivenMoment
from elasticdl_api.services import Api, User
from elasticdl_api.store.processes import ProcessKey
from elasticdl_api.web.paging import PageToken
from elasticdl_api.web.problems import declared
from elasticdl_core.errors import InvalidInputError
from elasticdl_core.ports.launcher import Role
from elasticdl_core.process_life import ProcessLife
from elasticdl_core.series import MOST_NAMES

router = APIRouter(tags=["histories"])
MOST_PLACE = 1e15
"""Beyond any time and any version."""


@router.get(
    "/jobs/{job_id}/processes",
    response_model=ProcessPageResponse,
    summary="The lives of a job's processes",
    responses=declared(404, 422),
)
async def processes(
    job_id: schemas.JobId,
    api: Api,
    user: User,
    role: Annotated[Role | None, Query(description="Only of that kind.")] = None,
    page_token: PageToken = None,
    limit: Annotated[int, Query(description="Processes on a page.", ge=1, le=10_000)] = 1000,
) -> Any:
    """Masters, parameter servers and workers, each incarnation: launched, ready, told to leave, ended, and why."""
    await require(api, user, job_id)
    about = {"job": job_id, "role": role}
    after = None if page_token is None else api.pages.read(page_token, "processes", about)
    found = await api.process_lists.list_page(job_id, role=role, after=after, limit=limit + 1)
    following = api.pages.make("processes", about, list(found[limit - 1][0])) if len(found) > limit else None
    shown = [_shown(key, life) for key, life in found[:limit]]
    return ProcessPageResponse(processes=shown, next_page_token=following)


@router.get(
    "/jobs/{job_id}/ledger",
    response_model=LedgerResponse,
    summary="Ledger of a job's records",
    responses=declared(404, 422),
)
async def ledger(job_id: schemas.JobId, api: Api, user: User) -> Any:
    """Records and tasks that are committed, leased, to do or passed over, by epoch; they add up to the plan."""
    job = await find(api, user, job_id)
    return ledger_of(job.status, active=job.state.active)


Names = Annotated[
    str | None,
    Query(
        description="Only these series, separated by commas.",
        max_length=4000,
        pattern=r"^[^\x00]+$",
        examples=["samples_per_second,loss"],
    ),
]
_HOW = "A time, or a number as the points have it: seconds since the epoch, or a version."
_Number = Annotated[float, Field(ge=0, le=MOST_PLACE)]
Since = Annotated[_Number | GivenMoment | None, Query(description=f"Only from there on. {_HOW}")]
Until = Annotated[_Number | GivenMoment | None, Query(description=f"Only up to there. {_HOW}")]
Points = Annotated[int, Query(description="About as many points of each series, at most.", ge=1, le=2000)]


@router.get(
    "/jobs/{job_id}/series",
    response_model=SeriesListResponse,
    summary="Numbers of a job over time",
    responses=declared(404, 422),
)
async def job_series(
    job_id: schemas.JobId,
    api: Api,
    user: User,
    names: Names = None,
    since: Since = None,
    until: Until = None,
    by: Annotated[By, Query(description="Along what the points lie.")] = "time",
    points: Points = 300,
) -> Response:
    """Speed, loss, metrics, workers, where a step's time goes, parameter servers; fine for the last half hour.

    What is older is coarser, and all of it is kept as long as the job is. Evaluations are never averaged.
    """
    await require(api, user, job_id)
    chosen = None if names is None else tuple(sorted(set(names.split(","))))
    if chosen is not None and len(chosen) > MOST_NAMES:
        raise InvalidInputError(f"{len(chosen)} names are too many", fix=f"ask for {MOST_NAMES} or fewer")
    query = SeriesQuery(_place(since, "since"), _place(until, "until"), points, chosen, by)
    return json_response(await api.series_views.of_job(job_id, _ordered(query)))


@router.get(
    "/cluster/series",
    response_model=SeriesListResponse,
    summary="Slots and the queue over time",
    responses=declared(422),
)
async def cluster_series(
    api: Api, user: User, since: Since = None, until: Until = None, points: Points = 300
) -> Response:
    """Slots in all, reserved and used, the number of jobs in the queue, and the slots of the largest jobs."""
    query = SeriesQuery(_place(since, "since"), _place(until, "until"), points)
    return json_response(await api.series_views.of_cluster(user.namespace, _ordered(query)))


def _place(at: float | datetime | None, name: str) -> float | None:
    if at is None:
        return None
    place = at.timestamp() if isinstance(at, datetime) else at
    if not 0 <= place <= MOST_PLACE:
        raise InvalidInputError(f"{name} is no place of a series", fix="give a time, or a number of 0 or more")
    return place


def _ordered(query: SeriesQuery) -> SeriesQuery:
    if query.since is not None and query.until is not None and query.until < query.since:
        raise InvalidInputError("until is before since", fix="give them the other way round")
    return query


def _shown(key: ProcessKey, life: ProcessLife) -> ProcessResponse:
    role, index, incarnation = key
    return ProcessResponse(
        role=Role(role),
        index=index,
        incarnation=incarnation,
        state=life.state,
        launched_at=life.launched_at,
        ready_at=life.ready_at,
        drained_at=life.drained_at,
        ended_at=life.ended_at,
        exit_code=life.exit_code,
        cause=life.cause,
        message=life.message,
    )

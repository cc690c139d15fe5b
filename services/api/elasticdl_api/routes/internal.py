"""Routes for masters. A job token of a master opens those of its own job; its epoch proves that it still is one."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Sequence
from datetime import UTC, datetime
from pathlib import Path, PurePosixPath
from typing import Annotated, Any, Literal

from fastapi import APIRouter, Query
from fastapi import Path as PathParameter
from pydantic import AfterValidator, BaseModel, Field, FiniteFloat, WithJsonSchema

from elasticdl_api.files import access as files
from elasticdl_api.files.model_code import bundle_path
from elasticdl_api.routes.bundles import stream_zip
from elasticdl_api.schemas.numbers import Whole, WholeNumbers
from elasticdl_api.schemas.reported import at_most, names_one_by_one, one_by_one, refused_of
from elasticdl_api.services import Api, Master
from elasticdl_api.store.processes import LifeReport
from elasticdl_api.web.json_bodies import BIGINT, clean
from elasticdl_api.web.problems import declared
from elasticdl_api.web.streamed import StreamedResponse
from elasticdl_core.errors import InvalidInputError, NotFoundError
from elasticdl_core.job.bounds import PATH_CHARS
from elasticdl_core.job.life import REPORTED_STATES, JobState
from elasticdl_core.json_numbers import whole
from elasticdl_core.path_policy import is_url
from elasticdl_core.process_life import EndCause, LifeStage
from elasticdl_core.series import MOST_NAMES, NAME_CHARS, TIERS, SeriesRow
from elasticdl_core.task import TASK_PATTERN, TaskId

router = APIRouter(prefix="/internal/jobs/{job_id}", tags=["internal"], responses=declared(400, 409, 422))
INTEGER = 2**31 - 1
_MOST = 10_000
"""Items of one report."""
Number = Annotated[Whole, Field(ge=0, le=BIGINT)]
Text = Annotated[str, Field(max_length=200_000), at_most(200_000)]


class LeaseRequest(BaseModel):
    """The process that asks to be the job's master."""

    holder: Annotated[str, Field(min_length=1, max_length=200, examples=["master-0.1@node-a:4711"])]


class Stamped(WholeNumbers):
    """Base of a master's messages: each carries its epoch."""

    epoch: Number


def _moment(at: datetime | None) -> datetime | None:
    if at is None:
        return None
    try:
        moment = at.astimezone(UTC) if at.tzinfo else at.replace(tzinfo=UTC)
        if not 1970 <= moment.year < 9999:
            raise ValueError
    except (OverflowError, ValueError):
        raise ValueError("it is no time between 1970 and 9999") from None
    return moment


class Loss(WholeNumbers):
    """A training loss; a number that JSON cannot write comes as a string."""

    model_version: Number
    loss: float = Field(allow_inf_nan=True, description="Or NaN, Infinity, -Infinity as strings.")
    at: Annotated[datetime | None, AfterValidator(_moment)] = Field(
        default=None, description="ISO 8601, or seconds since the epoch."
    )


class SpanOfSeries(WholeNumbers):
    """Statistics of all numbers in one span of time."""

    tier: Annotated[Whole, Field(ge=0, lt=len(TIERS))]
    start: Annotated[Whole, Field(ge=0, le=253_402_300_799, description="In seconds since the epoch.")]
    samples: Annotated[Whole, Field(ge=1, le=INTEGER)]
    numbers: Annotated[
        dict[
            Annotated[str, Field(min_length=1, max_length=NAME_CHARS)],
            Annotated[list[FiniteFloat], Field(min_length=1, max_length=3)],
        ],
        Field(
            max_length=MOST_NAMES, description="Mean, least and largest by name; the mean alone if they are equal."
        ),
        names_one_by_one(MOST_NAMES),
    ]


class HeartbeatReport(Stamped):
    """The job's status; extends the master's lease."""

    status: dict[str, Any]
    losses: Annotated[list[Loss], one_by_one(_MOST)] = Field(default=[])
    series: Annotated[list[SpanOfSeries], one_by_one(_MOST)] = Field(default=[])


def _reported(state: JobState) -> JobState:
    if state not in REPORTED_STATES:
        raise ValueError(f"a master reports one of {', '.join(sorted(REPORTED_STATES))}, not {state}")
    return state


class StateReport(Stamped):
    """The state that the job is in now."""

    to: Annotated[
        JobState,
        AfterValidator(_reported),
        WithJsonSchema({"type": "string", "enum": sorted(REPORTED_STATES)}),
    ]
    reason: Text = ""
    detail: dict[str, Any] = Field(default={})


class EventReport(BaseModel):
    """Something that happened."""

    kind: Annotated[str, Field(min_length=1, max_length=100)]
    message: Text = ""
    detail: dict[str, Any] = {}


class EventReports(Stamped):
    """Events to record."""

    events: Annotated[list[EventReport], one_by_one(_MOST)]


class ProcessName(WholeNumbers):
    """Names a PS or worker of the job; of masters the api knows itself."""

    role: Literal["ps", "worker"]
    index: Annotated[Whole, Field(ge=0, le=INTEGER)]
    incarnation: Annotated[Whole, Field(ge=0, le=INTEGER)]


class LifeOfProcess(ProcessName):
    """A process has come to a stage of its life."""

    stage: LifeStage
    at: Annotated[datetime, AfterValidator(_moment)] = Field(description="ISO 8601, or seconds since the epoch.")
    cause: EndCause | None = None
    exit_code: Annotated[Whole, Field(ge=-INTEGER, le=INTEGER)] | None = None
    message: Annotated[str, Field(max_length=10_000), at_most(10_000)] = ""
    announce: bool = Field(default=True, description="Whether an event tells it.")


class LifeReports(Stamped):
    """Reported ends and beginnings of processes."""

    lives: Annotated[list[LifeOfProcess], one_by_one(_MOST)]
    living: Annotated[list[ProcessName], Field(max_length=100_000)] | None = Field(
        default=None, description="All PS and workers that there are: others that were said to live are lost."
    )


class PlanReport(Stamped):
    """The plan of the job: shards, records per task, seed, rounds."""

    plan: dict[str, Any]


class DoneReport(Stamped):
    """Tasks that are done."""

    tasks: Annotated[list[Annotated[str, Field(pattern=TASK_PATTERN)]], Field(max_length=100_000)]
    accounts: dict[str, dict[str, Any]] = Field(
        default={},
        description="Of tasks with records that were passed over; an empty one takes it back.",
        json_schema_extra={"propertyNames": {"pattern": TASK_PATTERN}},
    )


class CheckpointReport(Stamped):
    """The manifest of a checkpoint whose files are all on disk."""

    manifest: dict[str, Any] = Field(
        json_schema_extra={
            "required": ["version"],
            "properties": {"version": {"type": "integer", "minimum": 0, "maximum": BIGINT}},
        }
    )


class EvaluationReport(Stamped):
    """Metrics at one version."""

    number: Number
    model_version: Annotated[Whole, Field(ge=-1, le=BIGINT)]
    training_epoch: Annotated[Whole, Field(ge=-1, le=BIGINT)]
    metrics: dict[str, Any]


class ArtifactReport(Stamped):
    """Something that the job made."""

    name: Annotated[str, Field(min_length=1, max_length=1000)]
    path: Annotated[str, Field(min_length=1, max_length=PATH_CHARS)]
    size: Number
    sha256: Annotated[str, Field(pattern="^[0-9a-f]{64}$", description="Compared before it is served.")]


@router.post("/lease", summary="Become the job's master")
async def lease(job_id: str, body: LeaseRequest, api: Api, master: Master) -> dict[str, Any]:
    """A new epoch, and all that is durable of the job: its plan, its reach and what was saved."""
    taken = await api.masters.take_lease(job_id, holder=clean(body.holder), incarnation=master.incarnation)
    reach = await api.reaches.of_job(job_id)
    return {**taken, "reach": None if reach is None else reach.to_mapping()}


@router.post("/heartbeat", summary="Extend the lease, report status and losses")
async def heartbeat(job_id: str, body: HeartbeatReport, api: Api, master: Master) -> dict[str, Any]:
    """Answers what is wanted: run, suspend, cancel or evict, and how many workers; and what could not be taken."""
    losses = [(item.model_version, item.loss, item.at) for item in body.losses]
    series = [SeriesRow(one.tier, one.start, one.samples, clean(one.numbers)) for one in body.series]
    answer = await api.masters.record_heartbeat(
        job_id, body.epoch, status=clean(body.status), losses=losses, series=series
    )
    api.job_feeds.look_soon(job_id)
    refused = {"losses": refused_of(body.losses), "series": refused_of(body.series)}
    return answer | ({"refused": refused} if any(refused.values()) else {})


@router.post("/state", summary="Report the job's state")
async def state(job_id: str, body: StateReport, api: Api, master: Master) -> dict[str, str]:
    """Answers the state that the job is in now: a cancellation wins over what the master meant."""
    now = await api.masters.report_state(
        job_id, body.epoch, to=body.to, reason=clean(body.reason), detail=clean(body.detail)
    )
    return {"state": now}


@router.post("/events", status_code=204, summary="Report events")
async def events(job_id: str, body: EventReports, api: Api, master: Master) -> None:
    """They are shown to the job's user."""
    reported = [clean(event.model_dump()) for event in body.events] + _said("events", body.events)
    await api.masters.add_events(job_id, body.epoch, reported)


@router.post("/processes", status_code=204, summary="Tell of the lives of processes")
async def processes(job_id: str, body: LifeReports, api: Api, master: Master) -> None:
    """Idempotent: of each stage the first word counts."""
    reports = [
        LifeReport(
            (one.role, one.index, one.incarnation),
            one.stage,
            one.at,
            one.cause,
            one.exit_code,
            clean(one.message),
            one.announce,
        )
        for one in body.lives
    ]
    living = None if body.living is None else [(one.role, one.index, one.incarnation) for one in body.living]
    await api.masters.record_lives(job_id, body.epoch, reports, living)
    if refused := _said("lives of processes", body.lives):
        await api.masters.add_events(job_id, body.epoch, refused)


@router.put("/plan", status_code=204, summary="Store the plan, once")
async def plan(job_id: str, body: PlanReport, api: Api, master: Master) -> None:
    """The same plan again is fine; another one is refused with 409."""
    await api.masters.store_plan(job_id, body.epoch, clean(body.plan))


@router.post("/done", summary="Mark tasks as done")
async def done(job_id: str, body: DoneReport, api: Api, master: Master) -> dict[str, int]:
    """Durable and idempotent; answers how many of them were new."""
    tasks = [str(TaskId.parse(task)) for task in body.tasks]
    accounts = {str(TaskId.parse(task)): clean(account) for task, account in body.accounts.items()}
    return {"new": await api.masters.mark_done(job_id, body.epoch, tasks, accounts)}


@router.post("/checkpoints", status_code=204, summary="Commit a checkpoint")
async def checkpoint(job_id: str, body: CheckpointReport, api: Api, master: Master) -> None:
    """From now on it exists."""
    version = whole(body.manifest.get("version"))
    if isinstance(version, bool) or not isinstance(version, int) or not 0 <= version <= BIGINT:
        raise InvalidInputError("the manifest has no version", fix="put the model version in manifest.version")
    await api.masters.commit_checkpoint(job_id, body.epoch, version=version, manifest=clean(body.manifest))


@router.delete("/checkpoints/{version}", status_code=204, summary="Forget a checkpoint")
async def forget_checkpoint(
    job_id: str,
    version: Annotated[int, PathParameter(ge=0, le=BIGINT)],
    api: Api,
    master: Master,
    body: Stamped | None = None,
    epoch: Annotated[int | None, Query(description="Instead of a body.", ge=0, le=BIGINT)] = None,
    directory: Annotated[
        str, Query(description="Directory of its files; empty for any of that version.", pattern=r"^[^\x00]*$")
    ] = "",
) -> None:
    """After its files were removed, or before: a checkpoint without a manifest does not exist.

    With a directory it is refused (409, ``conflict``) while another job that is not over begins with that checkpoint.
    """
    stamp = body.epoch if body is not None else epoch
    if stamp is None:
        raise InvalidInputError("the request has no epoch", fix="send ?epoch=, or a body with epoch")
    await api.masters.forget_checkpoint(job_id, stamp, version=version, directory=directory)


@router.post("/evaluations", status_code=204, summary="Report an evaluation")
async def evaluation(job_id: str, body: EvaluationReport, api: Api, master: Master) -> None:
    """Reporting the same number again replaces it."""
    await api.masters.record_evaluation(job_id, body.epoch, clean(body.model_dump(exclude={"epoch"})))


@router.post("/artifacts", status_code=204, summary="Report an artifact")
async def artifact(job_id: str, body: ArtifactReport, api: Api, master: Master) -> None:
    """Its path is relative to the job's artifacts directory, or absolute within the job's output."""
    values = clean(body.model_dump(exclude={"epoch"}))
    job = await api.masters.get(job_id)
    await asyncio.to_thread(_check_path, values["path"], str(job.spec.get("output", "")))
    await api.masters.record_artifact(job_id, body.epoch, values)


@router.get(
    "/bundle",
    response_class=StreamedResponse,
    summary="Fetch the job's model code",
    responses={**declared(404), 200: {"description": "The zip", "content": {"application/zip": {}}}},
)
async def bundle(job_id: str, api: Api, master: Master) -> StreamedResponse:
    """The zip as it was uploaded."""
    job = await api.masters.get(files.plain_name(job_id))
    digest = str(job.spec.get("model_bundle", ""))
    path = await bundle_path(api, job.namespace, digest) if digest else None
    if path is None:
        raise NotFoundError(f"job {job_id} has no bundle", fix="its model code is in model_zoo")
    return stream_zip(path)


def _said(what: str, items: Sequence[BaseModel]) -> list[dict[str, Any]]:
    """An event that says which items of a report were left out, if any were."""
    refused = refused_of(items)
    message = f"the api does not take some {what}: {'; '.join(refused)}"
    return [{"kind": "report_refused", "message": message, "detail": {"of": what}}] if refused else []


def _check_path(path: str, output: str) -> None:
    pure = PurePosixPath(path)
    roots = (os.path.normpath(output), os.path.realpath(output)) if output else ()
    inside = not pure.is_absolute() or any(Path(os.path.normpath(path)).is_relative_to(root) for root in roots)
    if is_url(path):
        inside = is_url(output) and path.startswith(f"{output.rstrip('/')}/")
    if ".." in pure.parts or not inside:
        raise InvalidInputError(
            f"the path {path!r} is outside of what the job may write",
            fix="report paths relative to the artifacts directory, or below the job's output",
        )

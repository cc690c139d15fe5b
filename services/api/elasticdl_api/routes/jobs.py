"""Jobs: submit, list, look, change, ask to stop, delete."""

from __future__ import annotations

import asyncio
import dataclasses
import hashlib
import json
from collections.abc import Mapping
from typing import Annotated, Any

import structlog
from fastapi import APIRouter, Header, Query, Request, Response
from pydantic import Field
from pydantic_core import to_json

from elasticdl_api.files import access as files
from elasticdl_api.files.model_code import check_model
from elasticdl_api.routes.pages import json_response
from elasticdl_api.scheduling.job_limits import check_limits, check_pods, check_priority
from elasticdl_api.schemas import jobs as schemas
from elasticdl_api.schemas.jobs import IdempotencyKey, JobChanges, JobPageResponse, JobResponse, ListedView
from elasticdl_api.services import Api, User
from elasticdl_api.store.job_lists import JobFilters, JobOrder
from elasticdl_api.store.job_views import ShownJob, array, joined
from elasticdl_api.store.records import JobRecord
from elasticdl_api.web.json_bodies import read_json
from elasticdl_api.web.paging import PageToken
from elasticdl_api.web.problems import MalformedError, declared
from elasticdl_api.web.representations import entity_tag
from elasticdl_api.web.versions import versioned
from elasticdl_core.errors import ElasticDLError, InvalidInputError, Problem, SpecError
from elasticdl_core.job import JobRequest, JobSpec, JobState, resolve_aliases
from elasticdl_core.job.updates import words_at_submission
from elasticdl_core.job.ways import refuse_meaningless
from elasticdl_core.scheduling.capacity_tracker import CapacityTracker, Obstacle
from elasticdl_core.scheduling.words import amount_of
from elasticdl_runtime.failpoints import failpoint
from elasticdl_runtime.lifecycle import to_its_end
from elasticdl_runtime.tree_removal import remove_tree

_log = structlog.get_logger(__name__)
router = APIRouter(tags=["jobs"])
_CHANGEABLE = frozenset(JobChanges.model_fields)

Label = Annotated[str, Field(max_length=400, json_schema_extra={"pattern": r"^[^=\x00]+=[^\x00]*$"})]
IfMatch = Annotated[
    str | None,
    Header(description="ETag of the job as you read it; refused with 412 if it has changed since.", max_length=200),
]


def _body(schema: dict[str, Any], description: str) -> dict[str, Any]:
    content = {"application/json": {"schema": schema}}
    return {"requestBody": {"required": True, "description": description, "content": content}}


_ETAG = {
    "ETag": {
        "description": "For If-None-Match, and for If-Match, where only its first part counts: it grows with state "
        "and settings.",
        "schema": {"type": "string"},
        "example": '"4-3f0a9d1c5b7e2468ace013579bdf2468"',
    }
}
_QUOTE = '"'
_MOST_IDS = 500
"""Jobs that a list can be asked for by their ids."""


@router.post(
    "/jobs",
    status_code=201,
    response_model=JobResponse,
    summary="Submit a job",
    openapi_extra=_body({"$ref": "#/components/schemas/JobSpec"}, "The specification; each field is a CLI flag."),
    responses={
        **declared(400, 409, 413, 415, 422),
        200: {"model": JobResponse, "description": "The job that the same request made before", "headers": _ETAG},
        201: {"description": "The new job", "headers": _ETAG},
    },
)
async def submit(
    request: Request,
    api: Api,
    user: User,
    idempotency_key: IdempotencyKey = None,
) -> Response:
    """Checks the specification and the model module without running it, and queues the job."""
    mapping = await read_json(request)
    if not isinstance(mapping, dict):
        raise MalformedError("the body is not a JSON object", fix="send the fields of a job specification")
    spec = JobSpec.from_mapping(mapping)
    refuse_meaningless(spec)
    body_hash = hashlib.sha256(json.dumps(mapping, sort_keys=True).encode()).hexdigest()
    if idempotency_key is not None:
        known = await api.jobs.find_submitted(user.home, idempotency_key, body_hash)
        if known is not None:
            return await _shown(api, user, known.id, 200)
    await check_limits(api.namespaces, api.settings, user.home, spec)
    await check_pods(api.launcher, spec)
    reach = await api.reaches.check(spec, user.home, restricted=user.restricted)
    await api.disk.require_room(user.home)
    await check_model(api, user.home, spec, reach)
    await api.reaches.require_stores(spec)
    told = words_at_submission(resolve_aliases(mapping), spec)
    job, created = await api.jobs.create(user, spec, key=idempotency_key, body_hash=body_hash, told=told)
    response = await _shown(api, user, job.id, 201 if created else 200)
    response.headers["Location"] = versioned(f"/jobs/{job.id}")
    return response


@router.get("/jobs", response_model=JobPageResponse, summary="List jobs", responses=declared(422))
async def list_jobs(
    api: Api,
    user: User,
    state: Annotated[list[JobState] | None, Query(description="Only in these states.")] = None,
    name: Annotated[str | None, Query(description="Only with that name.", pattern=r"^[-a-z0-9]{1,40}$")] = None,
    label: Annotated[
        list[Label] | None, Query(description="Only with all these labels, each as key=value.", examples=[["team=a"]])
    ] = None,
    namespace: Annotated[
        str | None, Query(description="Only of that namespace.", pattern=r"^[-a-z0-9]{1,40}$")
    ] = None,
    q: Annotated[
        str, Query(description="Only with that in id, name or owner.", max_length=100, pattern=r"^[^\x00]*$")
    ] = "",
    ids: Annotated[
        str | None,
        Query(
            description="Only these jobs: their ids, with commas between them.",
            max_length=20_000,
            pattern=r"^[-A-Za-z0-9_.,]*$",
            json_schema_extra={"pattern": r"^,*[-A-Za-z0-9_.][-A-Za-z0-9_.,]*$"},
            examples=[schemas.EXAMPLE_ID],
        ),
    ] = None,
    owner: Annotated[
        str | None, Query(description="Only of that owner.", max_length=200, pattern=r"^[^\x00]*$")
    ] = None,
    view: Annotated[
        ListedView, Query(description="`summary` leaves out specifications, and of each status all but its numbers.")
    ] = ListedView.FULL,
    sort: Annotated[
        JobOrder,
        Query(
            description="In what order; `-` for the largest first. Jobs of which nobody knows progress, number of "
            "workers or end come last."
        ),
    ] = JobOrder.NEWEST,
    total: Annotated[bool, Query(description="Count all that match, too.")] = False,
    page_token: PageToken = None,
    limit: Annotated[int, Query(description="Jobs on a page.", ge=1, le=500)] = 50,
) -> Response:
    """Jobs that match all filters, newest first unless `sort` says something else."""
    if namespace is not None and user.namespace not in (None, namespace):
        return json_response(to_json({"jobs": [], "next_page_token": None, "total": 0 if total else None}))
    filters = JobFilters(
        namespace=namespace,
        states=state or (),
        name=name,
        labels=_labels(label or []),
        text=q,
        ids=() if ids is None else _ids(ids),
        owner=owner,
    )
    about = {**dataclasses.asdict(filters), "order": str(sort), "seen": user.namespace}
    after = None if page_token is None else api.pages.read(page_token, "jobs", about)
    brief = view is ListedView.SUMMARY
    page = await api.job_lists.list_page(
        filters, namespace=user.namespace, order=sort, limit=limit, after=after, brief=brief
    )
    rest = {
        "next_page_token": api.pages.make("jobs", about, page.last) if page.more and page.last else None,
        "total": await api.job_lists.count(filters, namespace=user.namespace) if total else None,
    }
    return json_response(joined(to_json(rest), {"jobs": array(page.bodies)}))


@router.get(
    "/jobs/{job_id}",
    response_model=JobResponse,
    summary="Look at a job",
    responses={**declared(404), 200: {"description": "The job", "headers": _ETAG}},
)
async def look(job_id: schemas.JobId, api: Api, user: User) -> Response:
    """State, reason, progress, speed, workers, PS, metrics, checkpoints, evaluations, artifacts."""
    return _answer(await api.job_views.read(files.plain_name(job_id), namespace=user.namespace), 200)


@router.patch(
    "/jobs/{job_id}",
    response_model=JobResponse,
    summary="Change priority, bounds of the number of workers, labels",
    openapi_extra=_body({"$ref": "#/components/schemas/JobChanges"}, "Only what shall change."),
    responses={
        **declared(400, 404, 409, 412, 413, 415, 422),
        200: {"description": "The job", "headers": _ETAG},
    },
)
async def change(job_id: schemas.JobId, request: Request, api: Api, user: User, if_match: IfMatch = None) -> Response:
    """A running job is scaled by the scheduler within the new bounds, without a restart.

    Labels are merged into those that there are (RFC 7396): null removes one; also of a job that is over.
    """
    await require(api, user, job_id)
    given = await read_json(request)
    if not isinstance(given, dict):
        raise MalformedError("the body is not a JSON object", fix=f"send some of {sorted(_CHANGEABLE)}")
    changes = resolve_aliases(given)
    wrong = [key for key in changes if key not in _CHANGEABLE]
    if wrong:
        fix = f"only {', '.join(sorted(_CHANGEABLE))} can be changed; submit a new job for the rest"
        raise SpecError([Problem(key, "it cannot be changed", fix) for key in wrong])
    await _refuse_impossible(api, job_id, changes)
    await _refuse_priority(api, user, job_id, changes)
    await api.jobs.change_settings(job_id, user=user, changes=changes, if_match=if_match)
    return await _shown(api, user, job_id, 200)


def _request_route(what: JobRequest, summary: str, description: str) -> None:
    async def ask(job_id: schemas.JobId, api: Api, user: User, if_match: IfMatch = None) -> Response:
        await api.jobs.request(files.plain_name(job_id), what, user=user, if_match=if_match)
        return await _shown(api, user, job_id, 202)

    router.add_api_route(
        f"/jobs/{{job_id}}/{what}",
        ask,
        methods=["POST"],
        status_code=202,
        response_model=JobResponse,
        name=what,
        summary=summary,
        description=description,
        responses={**declared(404, 409, 412, 422), 202: {"description": "It was asked for", "headers": _ETAG}},
    )


_request_route(JobRequest.CANCEL, "Cancel a job", "Final: the job ends as CANCELLED, within 30 seconds.")
_request_route(
    JobRequest.SUSPEND, "Suspend a job", "It saves a checkpoint, gives back its workers, and waits for resume."
)
_request_route(JobRequest.RESUME, "Resume a suspended job", "It waits for capacity, and goes on where it was.")


@router.delete(
    "/jobs/{job_id}",
    status_code=204,
    response_class=Response,
    summary="Delete a job that is over",
    responses=declared(404, 409, 412, 422),
)
async def remove(job_id: schemas.JobId, api: Api, user: User, if_match: IfMatch = None) -> Response:
    """Removes the job with its events, logs, checkpoints and artifacts in the job's own directory."""
    await to_its_end(_remove(api, user, files.plain_name(job_id), if_match))
    return Response(status_code=204)


async def _remove(api: Api, user: User, job_id: str, if_match: str | None) -> None:
    await api.jobs.delete(job_id, user=user, if_match=if_match)
    failpoint("api.after_job_removed")
    if api.launcher is not None:
        try:
            await api.launcher.terminate_job(job_id, grace_s=1.0)
        except ElasticDLError:
            pass  # LeftoverCleanup ends the processes of jobs that are not there any more
    if (failed := await asyncio.to_thread(remove_tree, api.settings.job_dir(job_id))) is not None:
        _log.warning("files of a deleted job stay until the next clean-up", job=job_id, error=str(failed))


async def _refuse_impossible(api: Api, job_id: str, changes: Mapping[str, Any]) -> None:
    """Refuses to raise the fewest workers of a job above what the cluster, or its team, can ever have."""
    least = changes.get("min_workers")
    if not isinstance(least, int):
        return  # it is not changed, or refused with all else that is wrong
    snapshot = (await api.cluster_views.get()).snapshot
    job = snapshot.by_id.get(job_id)
    if job is None or least <= job.min_workers or not snapshot.capacity.total.slots:
        return
    tracker = CapacityTracker(snapshot)
    obstacle = tracker.possible(job, least)
    if obstacle is not None:
        what, _, total = tracker.too_much_of(job, least)
        whole = f"the whole cluster of {amount_of(what, total)}"
        most = f"the limit of team {job.team}" if obstacle is Obstacle.LIMIT else whole
        fix = "give fewer; `elasticdl status` shows what the cluster has"
        raise SpecError([Problem("min_workers", f"{least} workers are more than {most}", fix)])


async def _refuse_priority(api: Api, user: User, job_id: str, changes: Mapping[str, Any]) -> None:
    """Refuses to raise a job's priority above the highest of its namespace."""
    priority = changes.get("priority")
    if not isinstance(priority, int):
        return  # it is not changed, or refused with all else that is wrong
    job = await find(api, user, job_id)
    if priority > job.priority:
        check_priority(job.namespace, await api.namespaces.get_limits(job.namespace), priority)


async def find(api: Api, user: User, job_id: str) -> JobRecord:
    """The job of that id, if the caller may see it.

    Raises:
        NotFoundError: there is none.
    """
    return await api.jobs.get(files.plain_name(job_id), namespace=user.namespace)


async def require(api: Api, user: User, job_id: str) -> None:
    """Sees that there is a job of that id that the caller may see.

    Raises:
        NotFoundError: there is none.
    """
    await api.job_views.require(files.plain_name(job_id), namespace=user.namespace)


async def _shown(api: Api, user: User, job_id: str, status: int) -> Response:
    return _answer(await api.job_views.read(job_id, namespace=user.namespace), status)


def _answer(job: ShownJob, status: int) -> Response:
    # If-Match compares the revision, which what a master reports leaves as it is; If-None-Match all of it.
    tag = f'"{job.revision}-{entity_tag(job.body).strip(_QUOTE)}"'
    return Response(job.body, status_code=status, headers={"ETag": tag}, media_type="application/json")


def _ids(text: str) -> tuple[str, ...]:
    ids = tuple(dict.fromkeys(one for one in text.split(",") if one))
    if len(ids) > _MOST_IDS:
        raise InvalidInputError(f"ids names {len(ids)} jobs", fix=f"ask for {_MOST_IDS} or fewer at a time")
    if not ids:
        raise InvalidInputError("ids names no job", fix="write ids=ID,ID, or leave it out")
    return ids


def _labels(labels: list[str]) -> dict[str, str]:
    pairs = {}
    for label in labels:
        key, equals, value = label.partition("=")
        if not equals or not key or "\0" in label:
            raise InvalidInputError(f"the label {label!r} is not key=value", fix="write label=key=value")
        pairs[key] = value
    return pairs

"""Statements of SQL: planned, run, their results."""

from __future__ import annotations

import hashlib
import json
from typing import Any

from fastapi import APIRouter, Response

from elasticdl_api.files.access import plain_name
from elasticdl_api.routes.jobs import find
from elasticdl_api.schemas import jobs as schemas
from elasticdl_api.schemas.statements import StatementRequest, StatementResponse, StatementResultResponse
from elasticdl_api.services import Api, Services, User
from elasticdl_api.statements.results import read_result, search_result
from elasticdl_api.statements.submission import SentStatement, run_statement
from elasticdl_api.statements.trial_jobs import shown_search
from elasticdl_api.web.auth import Identity
from elasticdl_api.web.problems import declared
from elasticdl_api.web.versions import versioned
from elasticdl_core.job.searches import SearchState
from elasticdl_core.json_numbers import to_json

router = APIRouter(tags=["statements"])


@router.post(
    "/sql",
    status_code=201,
    response_model=StatementResponse,
    summary="Run a statement",
    responses={
        **declared(404, 409, 422),
        200: {
            "model": StatementResponse,
            "description": "The plan alone, or the job that the same request made before",
        },
        201: {"description": "The statement has a new job"},
    },
)
async def run(
    wanted: StatementRequest,
    response: Response,
    api: Api,
    user: User,
    idempotency_key: schemas.IdempotencyKey = None,
) -> Any:
    """Reads the rows of the SELECT from a source of the namespace, plans the job of the statement and submits it.

    The SELECT only reads, and has 300 seconds. What is wrong in a statement is told with its `position`. A statement
    that evaluates, explains or predicts uses the model of the last training that did not fail. One that names no
    model begins a search: `GET /sql/{job_id}` shows what is tried, and its job is made when the best model is known.
    """
    body = json.dumps({"sql": wanted.model_dump()}, sort_keys=True)
    body_hash = hashlib.sha256(body.encode()).hexdigest()
    sent = SentStatement(wanted.statement, wanted.source, wanted.dry_run, idempotency_key, body_hash)
    answer, made = await run_statement(api, user, sent)
    if not made:
        response.status_code = 200
    else:
        place = "jobs" if answer.get("search") is None else "sql"
        response.headers["Location"] = versioned(f"/{place}/{answer['job_id']}")
    return answer


@router.get(
    "/sql/{job_id}",
    response_model=StatementResultResponse,
    summary="Look at the result of a statement",
    responses=declared(404, 409, 422),
)
async def result(job_id: schemas.JobId, api: Api, user: User) -> Any:
    """The statement of a job, and metrics, importances of columns or the first predictions beside their rows.

    Of a statement that names no model, what was tried and why it ended.
    """
    return await _shown(api, user, job_id)


@router.post(
    "/sql/{job_id}/cancel",
    status_code=202,
    response_model=StatementResultResponse,
    summary="Stop a search",
    responses=declared(404, 409, 422),
)
async def cancel(job_id: schemas.JobId, api: Api, user: User) -> Any:
    """Stops the comparison of models and cancels its jobs; that of a model that was found is cancelled as others."""
    await api.searches.cancel(plain_name(job_id), user=user)
    return await _shown(api, user, job_id)


async def _shown(api: Services, user: Identity, job_id: str) -> dict[str, Any]:
    search = await api.searches.find(plain_name(job_id), namespace=user.namespace)
    if search is None:
        job = await find(api, user, job_id)
        kept = await api.statements.get(job.id, namespace=user.namespace)
        told = {"statement": kept.text, "verb": kept.verb, "model": kept.model, "source": kept.source}
        told |= {"target": str(kept.plan["target"])}
        return {**told, "job_id": job.id, "state": kept.state, **to_json(await read_result(api, job, kept))}
    state = search.state.of_job
    if search.state is SearchState.DONE:
        state = (await find(api, user, job_id)).state
    about = {
        name: value for name, value in shown_search(search).items() if name in StatementResultResponse.model_fields
    }
    return {**about, "state": state, **to_json(search_result(search))}

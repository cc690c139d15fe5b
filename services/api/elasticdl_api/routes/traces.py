"""Traces of a job's processes over some seconds, recorded on request."""

from __future__ import annotations

import asyncio
import json

from fastapi import APIRouter, Request, Response
from pydantic import ValidationError

from elasticdl_api.routes.jobs import require
from elasticdl_api.routes.pages import json_response
from elasticdl_api.routes.stacks import note, require_agent
from elasticdl_api.schemas import jobs as schemas
from elasticdl_api.schemas.observing import TraceRequest, TraceResponse
from elasticdl_api.services import Api, User
from elasticdl_api.web.json_bodies import read_json
from elasticdl_api.web.problems import declared
from elasticdl_core.chrome_trace import chrome_trace
from elasticdl_core.errors import InvalidInputError
from elasticdl_core.ports.launcher import Inquiry
from elasticdl_runtime.lifecycle import wait_for_event

router = APIRouter(tags=["activity"])
_BODY = {
    "requestBody": {
        "required": True,
        "description": "For how long.",
        "content": {"application/json": {"schema": TraceRequest.model_json_schema()}},
    }
}


@router.post(
    "/jobs/{job_id}/trace",
    response_model=TraceResponse,
    summary="Record what a job's processes do",
    openapi_extra=_BODY,
    responses=declared(400, 404, 413, 415, 422),
)
async def record(job_id: schemas.JobId, request: Request, api: Api, user: User) -> Response:
    """A Chrome trace: steps (reading, pull, compute, push) and calls of all processes. The answer comes at its end.

    Nothing is recorded otherwise. Of a job that does not run there is an empty trace, at once. A second
    request for the same job begins the recording anew.
    """
    await require(api, user, job_id)
    try:
        requested = TraceRequest.model_validate(await read_json(request))
    except ValidationError as error:
        first = error.errors(include_url=False, include_input=False)[0]
        raise InvalidInputError(
            f"{'.'.join(map(str, first['loc'])) or 'body'}: {first['msg']}",
            fix='send {"seconds": 5}: more than 0, at most 30',
        ) from None
    launcher = require_agent(api)
    with (await api.log_slot(user))():
        await note(api, user, "job.trace", job_id)
        if await launcher.inspect(job_id, Inquiry.TRACE, seconds=requested.seconds + 1.0):
            await wait_for_event(api.stopping, requested.seconds)
        found = await launcher.inspect(job_id, Inquiry.RECORDED)
    return json_response(await asyncio.to_thread(lambda: json.dumps(chrome_trace(found, job_id)).encode()))

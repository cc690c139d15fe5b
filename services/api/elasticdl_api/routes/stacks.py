"""Present stacks of a job's processes: asked of the agent, which asks them."""

from __future__ import annotations

import asyncio
import time
from collections.abc import Sequence
from dataclasses import asdict
from typing import Any

from fastapi import APIRouter, Response
from pydantic_core import to_json

from elasticdl_api.routes.jobs import require
from elasticdl_api.routes.pages import json_response
from elasticdl_api.schemas import jobs as schemas
from elasticdl_api.schemas.observing import StacksResponse
from elasticdl_api.services import Api, Services, User
from elasticdl_api.store import audit
from elasticdl_api.web.auth import Identity
from elasticdl_api.web.problems import declared
from elasticdl_core.errors import UnavailableError
from elasticdl_core.ports.launcher import Inquiry, InspectedProcess, Launcher, Role
from elasticdl_core.stacks import read_stacks

router = APIRouter(tags=["activity"])
_ROLES = tuple(Role)


@router.get(
    "/jobs/{job_id}/stacks",
    response_model=StacksResponse,
    summary="Stacks of a job's processes",
    responses=declared(404, 422),
)
async def stacks(job_id: schemas.JobId, api: Api, user: User) -> Response:
    """The stacks of the master, all PS and all workers, and what each waits for, within about two seconds.

    A process that hangs has stacks too; one that is stopped has its state only. A job that does not run has no
    processes. Who asked is in the audit log.
    """
    await require(api, user, job_id)
    launcher = require_agent(api)
    began = time.monotonic()
    found = await launcher.inspect(job_id, Inquiry.STACKS)
    body = await asyncio.to_thread(_body, found, began)
    await note(api, user, "job.stacks", job_id)
    return json_response(body)


def require_agent(api: Services) -> Launcher:
    """The launcher.

    Raises:
        UnavailableError: there is none.
    """
    if api.launcher is None:
        raise UnavailableError("there is no agent that runs processes", fix="start one, and set ELASTICDL_AGENT")
    return api.launcher


async def note(api: Services, user: Identity, action: str, job_id: str) -> None:
    """Writes down who looked into the processes of a job."""
    async with api.database.transaction() as connection:
        await audit.record(connection, user, action, job_id)


def _body(found: Sequence[InspectedProcess], began: float) -> bytes:
    processes: list[dict[str, Any]] = []
    for one in sorted(found, key=lambda each: (_ROLES.index(each.id.role), each.id.index, each.id.incarnation)):
        where = {"role": one.id.role, "index": one.id.index, "incarnation": one.id.incarnation}
        processes.append({**where, **asdict(read_stacks(one))})
    return to_json({"took_s": round(time.monotonic() - began, 3), "processes": processes})

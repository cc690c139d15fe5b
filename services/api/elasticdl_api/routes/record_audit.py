"""The audit of a job's records: done-marks against the traces of its workers."""

from __future__ import annotations

from fastapi import APIRouter, Response
from pydantic_core import to_json

from elasticdl_api.examination.audit import audit_job
from elasticdl_api.routes.jobs import find
from elasticdl_api.routes.pages import json_response
from elasticdl_api.schemas import jobs as schemas
from elasticdl_api.schemas.observing import RecordAuditResponse
from elasticdl_api.services import Api, User
from elasticdl_api.store.audited import read_done_marks, read_plan
from elasticdl_api.web.problems import declared

router = APIRouter(tags=["activity"])


@router.get(
    "/jobs/{job_id}/audit",
    response_model=RecordAuditResponse,
    summary="Was every record of a job processed?",
    responses=declared(404, 422),
)
async def audit_of(job_id: schemas.JobId, api: Api, user: User) -> Response:
    """Counts anew what was processed and by whom, from done-marks and the workers' own traces, and says what differs.

    `held`: every record that is marked as done was processed. `broken`: not so; `findings` say which. `running`: the
    job is not over, and nothing is wrong so far.
    """
    job = await find(api, user, job_id)
    # The marks first: a trace is written before the mark that it stands for.
    done = await read_done_marks(api.database, job_id)
    found = await audit_job(
        api.settings.job_dir(job_id).parent,
        job_id,
        {
            "type": str(job.type),
            "state": str(job.state),
            "terminal": job.state.terminal,
            "plan": await read_plan(api.database, job_id),
            "done": done,
            "status": {name: job.status.get(name) for name in ("ledger", "audit", "skipped")},
        },
    )
    return json_response(to_json(found))

"""The cluster and the api itself: capacity, health."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter
from fastapi.responses import JSONResponse

from elasticdl_api.scheduling.overview import in_words
from elasticdl_api.schemas.jobs import ClusterResponse, Health
from elasticdl_api.services import Api, User
from elasticdl_api.web.problems import declared
from elasticdl_core.errors import ElasticDLError

router = APIRouter()
health_router = APIRouter(tags=["health"])


@router.get("/cluster", tags=["cluster"], response_model=ClusterResponse, summary="The cluster", responses=declared())
async def cluster(api: Api, user: User) -> Any:
    """Worker slots in all and in use, jobs by state, and how each component is."""
    return await api.overview.read(user.namespace)


@health_router.get("/healthz", response_model=Health, summary="Does the api live?")
async def healthz() -> Any:
    """200 as long as the process answers."""
    return {"status": "ok"}


@health_router.get(
    "/readyz",
    response_model=Health,
    summary="Is the api ready?",
    responses={503: {"model": Health, "description": "Not ready: see the components"}},
)
async def readyz(api: Api) -> JSONResponse:
    """200 when the database answers; agent and scheduler are reported, but the api is of use without them."""
    components = {}
    try:
        last = await api.scheduling.read_last_pass()
        components["database"] = "ok"
        components["scheduler"] = in_words(led=last is not None and bool(last["alive"]))
    except ElasticDLError as error:
        components["database"] = error.message
    components["agent"] = (await api.overview.capacity())[1]
    ready = components["database"] == "ok" and not api.stopping.is_set()
    return JSONResponse(
        {"status": "ok" if ready else "not ready", "components": components},
        status_code=200 if ready else 503,
        headers={} if ready else {"Retry-After": "2"},
    )

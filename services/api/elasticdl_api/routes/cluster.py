"""The cluster and the api itself: capacity, health, Prometheus metrics."""

from __future__ import annotations

from typing import Any

from fastapi import APIRouter, Response
from fastapi.responses import JSONResponse
from prometheus_client import CONTENT_TYPE_LATEST, CollectorRegistry, Counter, Gauge, generate_latest

from elasticdl_api.schemas.jobs import ClusterResponse, Health
from elasticdl_api.services import Api, User
from elasticdl_api.web import telemetry
from elasticdl_api.web.problems import declared
from elasticdl_core.errors import ElasticDLError
from elasticdl_core.job import JobState

router = APIRouter()
health_router = APIRouter(tags=["health"])


@router.get("/cluster", tags=["cluster"], response_model=ClusterResponse, summary="The cluster", responses=declared())
async def cluster(api: Api, user: User) -> Any:
    """Worker slots in all and in use, jobs by state, and how each component is."""
    return await api.overview.read(user.namespace)


@router.get(
    "/metrics",
    tags=["cluster"],
    response_class=Response,
    summary="Metrics of the api, for Prometheus",
    responses={
        **declared(),
        200: {"description": "Text exposition", "content": {"text/plain": {"schema": {"type": "string"}}}},
    },
)
async def prometheus(api: Api, user: User) -> Response:
    """Requests by route and status, jobs by state and reason, worker slots, how the scheduler does."""
    gauges = CollectorRegistry()
    jobs = Gauge("elasticdl_jobs", "Jobs by state.", ["state"], registry=gauges)
    counts = await api.jobs.count_by_state(user.namespace)
    for state in JobState:
        jobs.labels(str(state)).set(counts.get(state, 0))
    capacity, _ = await api.overview.capacity()
    slots = Gauge("elasticdl_slots", "Worker slots.", ["kind"], registry=gauges)
    slots.labels("total").set(capacity.slots)
    slots.labels("used").set(sum(capacity.used.values()))
    slots.labels("reserved").set(sum(one.slots for one in capacity.reservations))
    slots.labels("free").set(max(capacity.for_jobs - sum(capacity.used.values()), 0))
    await _scheduler_metrics(api, user, gauges)
    content = generate_latest(telemetry.REGISTRY) + generate_latest(gauges)
    return Response(content, headers={"Content-Type": CONTENT_TYPE_LATEST})


async def _scheduler_metrics(api: Api, user: User, registry: CollectorRegistry) -> None:
    """Metrics of the scheduler, which serves no requests itself: from the record of its last pass."""
    reasons = Gauge("elasticdl_jobs_by_reason", "Jobs by state and reason.", ["state", "reason"], registry=registry)
    for (state, code), number in (await api.scheduling.count_by_reason(user.namespace)).items():
        reasons.labels(state, code or "none").set(number)
    last = await api.scheduling.read_last_pass()
    if last is None:
        return
    for name, text, value in (
        ("alive", "Whether a scheduler leads.", float(last["alive"])),
        ("plan_age_seconds", "Seconds since it looked last.", last["age_s"]),
        ("plan_seconds", "Seconds that its last look took.", last["seconds"]),
        ("epoch", "Its epoch.", last["epoch"]),
    ):
        Gauge(f"elasticdl_scheduler_{name}", text, registry=registry).set(value)
    for name, text, value in (
        ("passes", "How often it has looked.", last["passes"]),
        ("changes", "Targets and states of jobs that it has changed.", last["changes"]),
    ):
        Counter(f"elasticdl_scheduler_{name}", text, registry=registry).inc(value)


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
    """200 when the database answers; the agent is reported, but the api is of use without it."""
    components = {}
    try:
        await api.jobs.ping()
        components["database"] = "ok"
    except ElasticDLError as error:
        components["database"] = error.message
    components["agent"] = (await api.overview.capacity())[1]
    ready = components["database"] == "ok" and not api.stopping.is_set()
    return JSONResponse(
        {"status": "ok" if ready else "not ready", "components": components},
        status_code=200 if ready else 503,
        headers={} if ready else {"Retry-After": "2"},
    )

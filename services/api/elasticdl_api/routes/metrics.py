"""Metrics of every process and of the jobs, for Prometheus: one target for the whole cluster."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
from typing import Any

from fastapi import APIRouter, Request, Response
from prometheus_client import CollectorRegistry
from prometheus_client.exposition import choose_encoder

from elasticdl_api.scrape.families import ClusterMetrics, ScrapeCollector
from elasticdl_api.services import Api, Services, User
from elasticdl_api.web import telemetry
from elasticdl_api.web.problems import declared
from elasticdl_core.meters import MeterKey, known_meters
from elasticdl_runtime.telemetry import meters

router = APIRouter()


@router.get(
    "/metrics",
    tags=["cluster"],
    response_class=Response,
    summary="Metrics of all processes, for Prometheus",
    responses={
        **declared(),
        200: {"description": "Text exposition", "content": {"text/plain": {"schema": {"type": "string"}}}},
    },
)
async def prometheus(request: Request, api: Api, user: User) -> Response:
    """Jobs, slots, and what each master, PS and worker tells of itself, labelled by job, namespace, role and index.

    A token of a namespace sees its jobs; one of the cluster the api, the agent and the scheduler besides. A process
    that does not answer delays this by a moment and is counted. OpenMetrics if ``Accept`` asks for it.
    """
    now = await _look(api, user.namespace)
    registry = CollectorRegistry(auto_describe=False)
    registry.register(ScrapeCollector(now))
    if user.namespace is None:
        registry.register(telemetry.REGISTRY)
    encode, media_type = choose_encoder(request.headers.get("accept", ""))
    content = await asyncio.to_thread(encode, registry)
    return Response(content, headers={"Content-Type": media_type, "Vary": "Accept"})


async def _look(api: Services, namespace: str | None) -> ClusterMetrics:
    collected, (capacity, agent), last = await asyncio.gather(
        api.meter_collection.read(), api.overview.capacity(), api.scheduling.read_last_pass()
    )
    jobs = await api.scraped_jobs.read(namespace)
    return ClusterMetrics(
        states=await api.jobs.count_by_state(namespace),
        reasons=await api.scheduling.count_by_reason(namespace),
        oldest_s=await api.scraped_jobs.oldest_queued_s(namespace),
        capacity=capacity if agent == "ok" else None,
        last_pass=last,
        jobs=jobs,
        lost=await api.scraped_jobs.count_lost([job.id for job in jobs]),
        collected=collected,
        components=_components(collected.agent, last) if namespace is None else {},
    )


def _components(
    agent: Mapping[MeterKey, float] | None, last: Mapping[str, Any] | None
) -> dict[str, Mapping[MeterKey, float]]:
    found: dict[str, Mapping[MeterKey, float]] = {"api": known_meters(list(meters.read()))}
    if agent is not None:
        found["agent"] = agent
    if last is not None:
        found["scheduler"] = known_meters(last["meters"])
    return found

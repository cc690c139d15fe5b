"""Prometheus metrics of the api."""

from __future__ import annotations

import time
from collections.abc import Callable

from prometheus_client import CollectorRegistry, Counter, Gauge, Histogram
from starlette.types import ASGIApp, Message, Receive, Scope, Send

REGISTRY = CollectorRegistry()
REQUESTS = Counter("elasticdl_api_requests", "Requests by route.", ["method", "route", "status"], registry=REGISTRY)
SECONDS = Histogram(
    "elasticdl_api_first_byte_seconds", "Seconds until an answer begins.", ["route"], registry=REGISTRY
)
LOOP_LAG = Histogram(
    "elasticdl_api_loop_lag_seconds",
    "How late the event loop is, looked at ten times a second.",
    buckets=(0.001, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1.0, 2.5),
    registry=REGISTRY,
)
LOOP_LAG_MOST = Gauge("elasticdl_api_loop_lag_most_seconds", "The latest it ever was.", registry=REGISTRY)
LAUNCHES = Counter("elasticdl_api_launches", "Launch intents by outcome.", ["outcome"], registry=REGISTRY)
REPLACED = Counter("elasticdl_api_masters_replaced", "Masters that were replaced.", registry=REGISTRY)
REAPED = Counter("elasticdl_api_jobs_reaped", "Jobs whose left-over processes were ended.", registry=REGISTRY)
BACKGROUND_FAILURES = Counter(
    "elasticdl_api_background_failures",
    "Steps of background tasks (relay, watchdog, leftovers, housekeeping, ...) that failed or were put off.",
    ["task"],
    registry=REGISTRY,
)
BACKGROUND_PUT_OFF = Gauge(
    "elasticdl_api_background_put_off",
    "Items of background tasks (launches, jobs, folders, ...) that failed and are tried again later; see the log.",
    ["task"],
    registry=REGISTRY,
)
BACKGROUND_DONE = Gauge(
    "elasticdl_api_background_success_timestamp_seconds",
    "When a background task last did all that it had to, in seconds since 1970.",
    ["task"],
    registry=REGISTRY,
)


def tell_of(task: str) -> Callable[[int, bool], None]:
    """A function that takes the news of the items of a background task."""

    def tell(number: int, failed: bool) -> None:
        BACKGROUND_PUT_OFF.labels(task).set(number)
        if failed:
            BACKGROUND_FAILURES.labels(task).inc()

    return tell


_METHODS = frozenset({"GET", "HEAD", "POST", "PUT", "PATCH", "DELETE", "OPTIONS"})


class RequestMeter:
    """ASGI middleware that counts requests and times them, by route.

    Args:
        app: what is measured.
    """

    def __init__(self, app: ASGIApp) -> None:
        self._app = app

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Handles one request."""
        if scope["type"] != "http":
            await self._app(scope, receive, send)
            return
        began = time.monotonic()

        async def observe(message: Message) -> None:
            if message["type"] == "http.response.start":
                # The path of the route, not of the request: that one has no bound.
                route = getattr(scope.get("route"), "path", "none")
                scope.setdefault("state", {})["route"] = route
                method = scope["method"] if scope["method"] in _METHODS else "other"
                REQUESTS.labels(method, route, str(message["status"])).inc()
                SECONDS.labels(route).observe(time.monotonic() - began)
            await send(message)

        await self._app(scope, receive, observe)

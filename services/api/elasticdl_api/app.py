"""The application: routes behind authentication, problem details for errors, a complete OpenAPI document."""

from __future__ import annotations

import functools
from contextlib import AbstractAsyncContextManager

from fastapi import APIRouter, Depends, FastAPI, Request

from elasticdl_api.openapi import describe
from elasticdl_api.routes import (
    access,
    activity,
    artifacts,
    bundles,
    cluster,
    dashboard,
    histories,
    internal,
    jobs,
    metrics,
    namespaces,
    overview,
    record_audit,
    reference,
    reservations,
    scheduling,
    session,
    stacks,
    statements,
    tokens,
    traces,
)
from elasticdl_api.services import Services
from elasticdl_api.web import problems
from elasticdl_api.web.access_log import AccessLogMiddleware
from elasticdl_api.web.auth import AuthenticationMiddleware, TokenVerifier, refuse_unruled
from elasticdl_api.web.bodies import BodyLimits, UnreadBodies
from elasticdl_api.web.browsers import BrowserRules
from elasticdl_api.web.methods import HeadMiddleware
from elasticdl_api.web.needless_bodies import refuse_needless_body
from elasticdl_api.web.page_addresses import PageAddresses
from elasticdl_api.web.query_parameters import refuse_unknown_parameters
from elasticdl_api.web.rate_limits import FailedTokensMiddleware, RequestRate, RequestRateMiddleware
from elasticdl_api.web.representations import RepresentationMiddleware
from elasticdl_api.web.request_ids import RequestIdMiddleware
from elasticdl_api.web.route_scopes import check_rules
from elasticdl_api.web.telemetry import RequestMeter
from elasticdl_api.web.versions import VersionMiddleware

VERSION = "0.2.0"
_PUBLIC = (
    jobs,
    metrics,
    activity,
    record_audit,
    traces,
    histories,
    stacks,
    overview,
    artifacts,
    bundles,
    statements,
    cluster,
    scheduling,
    reservations,
    tokens,
    namespaces,
    access,
    session,
)
_DESCRIPTION = """Submit, follow and steer elastic training jobs.

Every request carries `Authorization: Bearer <token>`. Errors are problem details (RFC 9457) with a `code` for
programs and a `fix` for people. Each answer has an `X-Request-ID`: the caller's, or a new one.

HEAD works wherever GET does. Answers to GET have an `ETag`, which `If-None-Match` compares, and are compressed for
who takes gzip. The same paths without `/v1` are aliases that stay."""


def create_app(services: Services, background: AbstractAsyncContextManager[None] | None = None) -> FastAPI:
    """Builds the application.

    Args:
        services: what the routes work with.
        background: what runs as long as the application does.
    """
    app = FastAPI(
        title="ElasticDL",
        version=VERSION,
        description=_DESCRIPTION,
        lifespan=None if background is None else lambda _app: background,
        docs_url=None,
        redoc_url=None,
        swagger_ui_oauth2_redirect_url=None,
        redirect_slashes=False,
        dependencies=[Depends(refuse_unruled)],
    )
    app.state.services = services
    problems.install(app)
    app.state.routers = [one.router for one in _PUBLIC] + [
        *(session.open_router, cluster.health_router, reference.router, dashboard.router, internal.router)
    ]
    app.router.routes.extend(_routes().routes)
    _add_middlewares(app, services)
    app.openapi = lambda: describe(app)  # type: ignore[method-assign]
    return app


@functools.cache
def _routes() -> APIRouter:
    """The routes of every application of this process: FastAPI takes longer to make them than a test to use them."""
    every = APIRouter(dependencies=[Depends(refuse_unruled)])
    every.include_router(dashboard.router)  # first: a page has many files, and routes are tried in order
    for one in _PUBLIC:
        check_rules(one.router.routes)
        every.include_router(one.router, dependencies=[Depends(_refuse_unread)])
    every.include_router(session.open_router, dependencies=[Depends(_refuse_unread)])
    every.include_router(cluster.health_router)
    every.include_router(reference.router)
    every.include_router(internal.router)
    return every


async def _refuse_unread(request: Request) -> None:
    """Refuses what a request brings and its route would not read; in one step, for each costs every request."""
    await refuse_unknown_parameters(request)
    await refuse_needless_body(request)


def _add_middlewares(app: FastAPI, services: Services) -> None:
    """The layers around the routes; the first is the innermost."""
    settings = services.settings
    app.add_middleware(BodyLimits)
    app.add_middleware(RequestRateMiddleware, rate_of=services.limits.rate_of)
    app.add_middleware(
        AuthenticationMiddleware,
        verify=TokenVerifier(services.database, settings.admin_token, services.provider),
        cluster_secret=settings.cluster_secret,
    )
    rate = RequestRate(settings.failed_tokens_per_s, settings.failed_tokens_at_once)
    app.add_middleware(FailedTokensMiddleware, rate=rate, admin_token=settings.admin_token)
    app.add_middleware(RepresentationMiddleware)
    app.add_middleware(RequestMeter)
    app.add_middleware(PageAddresses)
    app.add_middleware(BrowserRules, hosts=settings.hosts)
    app.add_middleware(HeadMiddleware)
    app.add_middleware(AccessLogMiddleware, log=services.access_log)
    app.add_middleware(VersionMiddleware)
    app.add_middleware(RequestIdMiddleware)
    app.add_middleware(UnreadBodies)

"""Sessions of browsers: log in with a token, log out."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Any

from fastapi import APIRouter, Request, Response

from elasticdl_api.schemas.access import ProvidersResponse, SessionResponse
from elasticdl_api.services import Api, User
from elasticdl_api.web.auth import PROVIDERS, bearer_of
from elasticdl_api.web.problems import declared
from elasticdl_api.web.session_cookies import csrf_token, session_of, set_cookie
from elasticdl_core.errors import NotFoundError

router = APIRouter(tags=["access"])
open_router = APIRouter(tags=["access"])
"""What somebody without a token may ask."""


@router.post(
    "/session", status_code=201, response_model=SessionResponse, summary="Log in", responses=declared(401, 403)
)
async def log_in(request: Request, response: Response, api: Api, user: User) -> Any:
    """With a token in the Authorization header: the answer sets the session's cookie, which stands for it then.

    Requests that change something also carry the session's CSRF token, as `X-CSRF-Token`. The token may be one that a
    page got from the identity provider (an id token of the authorization code flow): the session ends with it.
    """
    lifetime_s = api.settings.session_hours * 3600
    if user.expires_at is not None:
        lifetime_s = max(1, min(lifetime_s, int((user.expires_at - datetime.now(UTC)).total_seconds())))
    secret = await api.sessions.begin(user, bearer_of(request.scope), lifetime_s=lifetime_s)
    set_cookie(response, request.scope, secret, lifetime_s=lifetime_s)
    response.headers["Cache-Control"] = "no-store"
    return await _shown(api, user, secret)


@router.get("/session", response_model=SessionResponse, summary="The session", responses=declared(404))
async def look(request: Request, response: Response, api: Api, user: User) -> Any:
    """The user who is logged in, and the CSRF token of the session."""
    response.headers["Cache-Control"] = "no-store"
    secret = session_of(request.scope)
    if secret is None:
        raise NotFoundError("the request has no session", fix="log in: POST /session")
    return await _shown(api, user, secret)


@router.delete("/session", status_code=204, response_class=Response, summary="Log out", responses=declared(403))
async def log_out(request: Request, api: Api, user: User) -> Response:
    """Ends the session of the cookie, and takes the cookie away."""
    response = Response(status_code=204)
    secret = session_of(request.scope)
    if secret is not None:
        await api.sessions.end(user, secret)
        set_cookie(response, request.scope, "", lifetime_s=0)
    return response


@open_router.get(PROVIDERS, response_model=ProvidersResponse, summary="Login providers")
async def providers(api: Api) -> Any:
    """The identity provider whose id tokens begin a session, for a page that has no token yet."""
    provider = api.settings.provider
    return {"oidc": None if provider is None else {"issuer": provider.issuer, "client_id": provider.client_id}}


async def _shown(api: Api, user: User, secret: str) -> dict[str, Any]:
    return {
        "user": user.user,
        "namespace": user.namespace,
        "scope": user.scope,
        "expires_at": await api.sessions.expires_at(secret),
        "csrf_token": csrf_token(secret),
    }

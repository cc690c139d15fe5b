"""Tokens: make one, list them, revoke one."""

from __future__ import annotations

from datetime import datetime
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi import Path as PathParameter

from elasticdl_api.schemas.access import (
    NewTokenResponse,
    TokenPageResponse,
    TokenRequest,
)
from elasticdl_api.services import Api, User
from elasticdl_api.store.tokens import TokenGrant
from elasticdl_api.web.paging import PageToken
from elasticdl_api.web.problems import declared
from elasticdl_core.access import NAMESPACE_PATTERN, USER_PATTERN
from elasticdl_core.errors import InvalidInputError

router = APIRouter(tags=["access"])
TokenId = Annotated[
    str, PathParameter(description="The token's id.", pattern=r"^[-a-z0-9]{1,40}$", examples=["tok-7f3kq2mx"])
]


@router.post(
    "/tokens",
    status_code=201,
    response_model=NewTokenResponse,
    summary="Make a token",
    responses=declared(403, 404, 409, 422),
)
async def create(wanted: TokenRequest, response: Response, api: Api, user: User) -> Any:
    """Shows the token this once. It may do no more than the one that makes it, nowhere else, and no longer."""
    user.require_own_token("makes no tokens")
    if wanted.of_cluster and wanted.namespace is not None:
        raise InvalidInputError(
            "a token is either of a namespace or of the cluster", fix="leave namespace or of_cluster out"
        )
    grant = TokenGrant(
        name=wanted.name,
        scope=wanted.scope,
        namespace=None if wanted.of_cluster else wanted.namespace or user.home,
        owner=wanted.owner or user.user,
        expires_in_s=wanted.expires_in_s,
    )
    row, token = await api.tokens.create(user, grant)
    response.headers["Cache-Control"] = "no-store"
    return {**row, "token": token}


@router.get("/tokens", response_model=TokenPageResponse, summary="List tokens", responses=declared(403, 422))
async def list_tokens(
    api: Api,
    user: User,
    namespace: Annotated[str | None, Query(description="Only of that namespace.", pattern=NAMESPACE_PATTERN)] = None,
    owner: Annotated[str | None, Query(description="Only of that user.", pattern=USER_PATTERN)] = None,
    ended: Annotated[bool, Query(description="Also those that are expired or revoked.")] = False,
    page_token: PageToken = None,
    limit: Annotated[int, Query(description="Tokens on a page.", ge=1, le=500)] = 100,
) -> Any:
    """Lists the tokens that the caller administers, the newest first; never the tokens themselves."""
    about = {"namespace": namespace, "owner": owner, "ended": ended, "seen": user.namespace}
    after = None if page_token is None else api.pages.read(page_token, "tokens", about)
    place = None if after is None else (datetime.fromisoformat(after[0]), str(after[1]))
    found = await api.tokens.list_page(
        user, namespace=namespace, owner=owner, ended=ended, limit=limit + 1, after=place
    )
    page, following = found[:limit], None
    if len(found) > limit:
        following = api.pages.make("tokens", about, [page[-1]["created_at"].isoformat(), page[-1]["id"]])
    return {"tokens": page, "next_page_token": following}


@router.delete(
    "/tokens/{token_id}",
    status_code=204,
    response_class=Response,
    summary="Revoke a token",
    responses=declared(403, 404, 422),
)
async def revoke(token_id: TokenId, api: Api, user: User) -> Response:
    """It is refused from the next request on; it stays in the list of those that have ended."""
    await api.tokens.revoke(user, token_id)
    return Response(status_code=204)

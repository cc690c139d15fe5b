"""Routes of identity, versions, and the log of changes."""

from __future__ import annotations

import dataclasses
import platform
from typing import Annotated, Any

from fastapi import APIRouter, Query

from elasticdl_api.schemas.access import AuditPageResponse, VersionResponse, WhoAmIResponse
from elasticdl_api.schemas.moments import GivenMoment
from elasticdl_api.services import Api, User
from elasticdl_api.store import audit
from elasticdl_api.web.paging import PageToken
from elasticdl_api.web.problems import declared
from elasticdl_core.access import NAMESPACE_PATTERN
from elasticdl_core.installation import own_version

router = APIRouter(tags=["access"])
_VERSION = own_version()
_WORD = r"^[\x21-\x7e]{1,200}$"


@router.get("/whoami", response_model=WhoAmIResponse, summary="Identity of the caller", responses=declared())
async def whoami(api: Api, user: User) -> Any:
    """The holder of the token, and what it may do."""
    row = await api.tokens.get(user.token_id)
    return {
        "user": user.user,
        "namespace": user.namespace,
        "home": user.home,
        "scope": user.scope,
        "token_id": user.token_id,
        "expires_at": user.expires_at if row is None else row["expires_at"],
    }


@router.get("/version", response_model=VersionResponse, summary="Version of the API", responses=declared())
async def show_version(user: User) -> Any:
    """Of ElasticDL, and of what the api runs on."""
    return {"version": _VERSION, "python": platform.python_version()}


@router.get("/audit", response_model=AuditPageResponse, summary="Log of changes", responses=declared(403, 422))
async def list_entries(
    api: Api,
    user: User,
    namespace: Annotated[str | None, Query(description="Only of that one.", pattern=NAMESPACE_PATTERN)] = None,
    actor: Annotated[str | None, Query(description="Only of that user.", pattern=_WORD)] = None,
    action: Annotated[
        str | None, Query(description="Only such.", pattern=r"^[a-z_.-]{1,100}$", examples=["job.cancel"])
    ] = None,
    target: Annotated[str | None, Query(description="Only about that object.", pattern=_WORD)] = None,
    since: Annotated[GivenMoment | None, Query(description="Only from then on (ISO 8601, with a zone).")] = None,
    until: Annotated[GivenMoment | None, Query(description="Only before then.")] = None,
    page_token: PageToken = None,
    limit: Annotated[int, Query(description="Entries on a page.", ge=1, le=500)] = 100,
) -> Any:
    """Every change that a user made, the latest first: of the caller's namespace, or of all of them."""
    filters = audit.AuditFilters(namespace, actor, action, target, since, until)
    about = {**dataclasses.asdict(filters), "seen": user.namespace}
    (before,) = (None,) if page_token is None else api.pages.read(page_token, "audit", about)
    found = await audit.list_entries(api.database, user, filters, before=before, limit=limit + 1)
    page = found[:limit]
    following = api.pages.make("audit", about, [page[-1]["id"]]) if len(found) > limit else None
    return {"entries": page, "next_page_token": following}

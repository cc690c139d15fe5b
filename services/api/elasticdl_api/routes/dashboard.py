"""The page at ``/`` and its files."""

from __future__ import annotations

from fastapi import APIRouter, Request, Response

from elasticdl_api.dashboard import files
from elasticdl_api.services import Api
from elasticdl_api.web.representations import accepts_gzip, entity_tag
from elasticdl_api.web.session_cookies import session_of
from elasticdl_core.errors import NotFoundError

router = APIRouter(include_in_schema=False)
_FOR_GOOD = "public, max-age=31536000, immutable"


@router.get(files.PAGE)
async def page(request: Request, api: Api) -> Response:
    """The page. It says whether the request had a session, whether that is still valid or not."""
    policy = files.policy(api.settings.oidc_issuer)
    found = files.page(session=session_of(request.scope) is not None)
    kept = {"Cache-Control": "private, no-cache", "Vary": "Cookie, Accept-Encoding"}
    return _answer(request, found, {**kept, "Content-Security-Policy": policy})


@router.get(files.FOLDER + "/{release}/{name:path}")
async def file(request: Request, release: str, name: str) -> Response:
    """One of its files. Its address names all files as they are, so that it may be kept for good."""
    if release != files.release() or name == files.INDEX:
        raise _missing()
    found = files.read(name)
    if found is None:
        raise _missing()
    return _answer(request, found, {"Cache-Control": _FOR_GOOD, "Vary": "Accept-Encoding"})


def _missing() -> NotFoundError:
    return NotFoundError("there is no such file of the page", fix="load the page anew: it may have been updated")


def _answer(request: Request, found: files.PageFile, headers: dict[str, str]) -> Response:
    headers |= {"ETag": entity_tag(found.packed)}
    if accepts_gzip(request.headers.get("accept-encoding", "")):
        return Response(found.packed, media_type=found.media_type, headers={**headers, "Content-Encoding": "gzip"})
    return Response(found.content, media_type=found.media_type, headers=headers)

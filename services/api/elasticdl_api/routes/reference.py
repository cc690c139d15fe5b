"""The reference of the api as a page: Swagger UI, from files that come with the package, without inline scripts."""

from __future__ import annotations

import gzip
from functools import cache
from importlib import resources

from fastapi import APIRouter, Request, Response

from elasticdl_api.web.representations import accepts_gzip

router = APIRouter(include_in_schema=False)
_FILES = resources.files("elasticdl_api") / "reference"


@cache
def _read(name: str) -> bytes:
    return (_FILES / name).read_bytes()


@router.get("/docs")
async def page() -> Response:
    """The page."""
    return Response(_read("index.html"), media_type="text/html")


@router.get("/docs/start.js")
async def start() -> Response:
    """The beginning of the page."""
    return Response(_read("start.js"), media_type="text/javascript")


@router.get("/docs/swagger-ui-bundle.js")
async def script(request: Request) -> Response:
    """Swagger UI."""
    return _packed(request, "swagger-ui-bundle.js.gz", "text/javascript")


@router.get("/docs/swagger-ui.css")
async def style(request: Request) -> Response:
    """Its style."""
    return _packed(request, "swagger-ui.css.gz", "text/css")


def _packed(request: Request, name: str, media_type: str) -> Response:
    """A file that is kept compressed."""
    headers = {"Vary": "Accept-Encoding", "Cache-Control": "private, max-age=86400"}
    if accepts_gzip(request.headers.get("accept-encoding", "")):
        return Response(_read(name), media_type=media_type, headers={**headers, "Content-Encoding": "gzip"})
    return Response(gzip.decompress(_read(name)), media_type=media_type, headers=headers)

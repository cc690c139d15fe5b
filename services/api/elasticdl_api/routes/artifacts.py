"""Artifacts: what a job made, as files or, for directories, as zip files."""

from __future__ import annotations

import contextlib
import os
import urllib.parse
from collections.abc import AsyncGenerator, Generator, Mapping
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Query, Request, Response
from fastapi import Path as PathParameter
from pydantic import BaseModel

from elasticdl_api.files import access as files
from elasticdl_api.files.artifacts import ArtifactOpener
from elasticdl_api.places.digests import FileState, changed, unchanged_pieces
from elasticdl_api.routes.jobs import find, require
from elasticdl_api.routes.pages import page_or_list, page_response
from elasticdl_api.schemas import jobs as schemas
from elasticdl_api.schemas.jobs import (
    ArtifactPageResponse,
    CheckpointPageResponse,
    EvaluationPageResponse,
)
from elasticdl_api.services import Api, Services, User
from elasticdl_api.web.paging import PageToken
from elasticdl_api.web.problems import declared
from elasticdl_api.web.streamed import Body, StreamedResponse, opened_file, read_in_threads
from elasticdl_core.errors import NotFoundError
from elasticdl_core.path_policy import is_url
from elasticdl_runtime.lifecycle import in_thread

router = APIRouter(tags=["artifacts"])
_Limit = Annotated[int, Query(description="The number on a page.", ge=1, le=1000)]
_BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


async def _page(
    kind: str, job_id: str, api: Api, user: User, page_token: str | None, limit: int
) -> tuple[list[bytes], str | None]:
    """A page of what a job made of one kind, and the token of the next."""
    await require(api, user, job_id)
    about = {"job": job_id}
    (after,) = (None,) if page_token is None else api.pages.read(page_token, kind, about)
    found = await api.outputs.list_page(kind, job_id, after=after, limit=limit + 1)
    following = api.pages.make(kind, about, [found[limit - 1][0]]) if len(found) > limit else None
    return [body for _, body in found[:limit]], following


@router.get(
    "/jobs/{job_id}/artifacts",
    response_model=ArtifactPageResponse,
    summary="Artifacts of a job",
    responses=declared(404, 422),
)
async def list_artifacts(
    job_id: schemas.JobId,
    request: Request,
    api: Api,
    user: User,
    page_token: PageToken = None,
    limit: Annotated[int, Query(description="Artifacts on a page.", ge=1, le=10_000)] = 1000,
) -> Response:
    """Exported models, predictions and whatever else the job left."""
    return page_or_list(request, "artifacts", *await _page("artifacts", job_id, api, user, page_token, limit))


def _numbered_route(kind: str, page: type[BaseModel], summary: str, description: str) -> None:
    async def list_some(
        job_id: schemas.JobId,
        api: Api,
        user: User,
        page_token: PageToken = None,
        limit: _Limit = 100,
    ) -> Response:
        return page_response(kind, *await _page(kind, job_id, api, user, page_token, limit))

    router.add_api_route(
        f"/jobs/{{job_id}}/{kind}",
        list_some,
        methods=["GET"],
        response_model=page,
        name=f"list_{kind}",
        summary=summary,
        description=description,
        responses=declared(404, 422),
    )


_numbered_route(
    "checkpoints",
    CheckpointPageResponse,
    "Checkpoints of a job",
    "The committed ones, by the version of the model.",
)
_numbered_route(
    "evaluations",
    EvaluationPageResponse,
    "Evaluations of a job",
    "Metrics of the model at each version that was evaluated, oldest first.",
)


@router.get(
    "/jobs/{job_id}/artifacts/{name:path}",
    response_class=StreamedResponse,
    summary="Fetch an artifact",
    responses={**declared(404, 409, 422), 200: {"description": "Its content", "content": _BINARY}},
)
async def fetch(
    job_id: schemas.JobId,
    name: Annotated[str, PathParameter(description="Its name, or a file below it if it is a directory.")],
    api: Api,
    user: User,
) -> StreamedResponse:
    """A file as it is; a directory as a zip of its files. What was changed since the job reported it is refused."""
    job = await find(api, user, job_id)
    rows = await api.outputs.list_files(job_id)
    wanted = name.rstrip("/")
    opener = await ArtifactOpener.of(api, job)
    if wanted in rows:
        return _file(api, opener, rows[wanted])
    below = {key.removeprefix(f"{wanted}/"): row for key, row in rows.items() if key.startswith(f"{wanted}/")}
    if not below:
        raise NotFoundError(
            f"job {job_id} has no artifact {name!r}",
            fix="list them: `elasticdl jobs get ID`, or GET /jobs/{id}/artifacts",
        )
    return _folder(api, opener, wanted, below)


def _file(api: Services, opener: ArtifactOpener, row: Mapping[str, Any]) -> StreamedResponse:
    headers = {"Content-Length": str(row["size"]), **_headers(Path(row["name"]).name)}

    @contextlib.asynccontextmanager
    async def opening_stored() -> AsyncGenerator[Body]:
        stored = opener.stored(row)
        await in_thread(stored.require)
        async with read_in_threads(stored.pieces()) as pieces:
            yield Body(pieces, "application/octet-stream", headers)

    @contextlib.asynccontextmanager
    async def opening() -> AsyncGenerator[Body]:
        async with (
            _compared(api, opener, row) as descriptor,
            read_in_threads(unchanged_pieces(descriptor, row["name"])) as pieces,
        ):
            yield Body(pieces, "application/octet-stream", headers)

    return StreamedResponse(opening_stored if is_url(row["path"]) else opening)


def _folder(
    api: Services, opener: ArtifactOpener, name: str, rows: Mapping[str, Mapping[str, Any]]
) -> StreamedResponse:
    """A zip of the files that were reported below a name; others that lie there are nobody's."""
    states: dict[str, FileState] = {}

    def content(below: str) -> Generator[bytes]:
        if is_url(rows[below]["path"]):
            yield from opener.stored(rows[below]).pieces()
            return
        descriptor = opener.open(rows[below]["path"])
        try:
            if FileState.of(descriptor) != states[below]:
                raise changed(rows[below]["name"])
            yield from unchanged_pieces(descriptor, rows[below]["name"])
        finally:
            os.close(descriptor)

    @contextlib.asynccontextmanager
    async def opening() -> AsyncGenerator[Body]:
        for below, row in sorted(rows.items()):
            if is_url(row["path"]):
                await in_thread(opener.stored(row).require)
                continue
            async with _compared(api, opener, row) as descriptor:
                states[below] = FileState.of(descriptor)
        async with read_in_threads(files.zip_pieces((below, content(below)) for below in sorted(rows))) as pieces:
            yield Body(pieces, "application/zip", _headers(f"{Path(name).name}.zip"))

    return StreamedResponse(opening)


@contextlib.asynccontextmanager
async def _compared(api: Services, opener: ArtifactOpener, row: Mapping[str, Any]) -> AsyncGenerator[int]:
    """An open file that is as it was reported."""
    async with opened_file(lambda: opener.open(row["path"])) as descriptor:
        await api.digests.require(descriptor, row["name"], row["size"], row["sha256"])
        yield descriptor


def _headers(name: str) -> dict[str, str]:
    disposition = f"attachment; filename*=UTF-8''{urllib.parse.quote(name)}"
    return {"X-Content-Type-Options": "nosniff", "Content-Disposition": disposition}

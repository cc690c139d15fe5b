"""Artifacts: what a job made, as files or, for directories, as zip files."""

from __future__ import annotations

import asyncio
import os
import urllib.parse
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter
from fastapi import Path as PathParameter
from fastapi.responses import StreamingResponse

from elasticdl_api.files import access as files
from elasticdl_api.routes.jobs import find
from elasticdl_api.schemas import jobs as schemas
from elasticdl_api.schemas.jobs import ArtifactResponse
from elasticdl_api.services import Api, User
from elasticdl_api.web.problems import declared
from elasticdl_core.errors import NotFoundError

router = APIRouter(tags=["artifacts"])
_BINARY = {"application/octet-stream": {"schema": {"type": "string", "format": "binary"}}}


@router.get(
    "/jobs/{job_id}/artifacts",
    response_model=list[ArtifactResponse],
    summary="What a job made",
    responses=declared(404, 422),
)
async def list_artifacts(job_id: schemas.JobId, api: Api, user: User) -> Any:
    """Exported models, predictions and whatever else the job left."""
    await find(api, user, job_id)
    outputs = await api.jobs.list_outputs(job_id)
    return [schemas.artifact(job_id, row) for row in outputs["artifacts"]]


@router.get(
    "/jobs/{job_id}/artifacts/{name:path}",
    response_class=StreamingResponse,
    summary="Fetch an artifact",
    responses={**declared(404, 422), 200: {"description": "Its content", "content": _BINARY}},
)
async def fetch(
    job_id: schemas.JobId,
    name: Annotated[str, PathParameter(description="Its name, or a file below it if it is a directory.")],
    api: Api,
    user: User,
) -> StreamingResponse:
    """A file as it is; a directory as a zip of its files."""
    await find(api, user, job_id)
    found = _locate(name.rstrip("/"), (await api.jobs.list_outputs(job_id))["artifacts"])
    if found is None:
        raise NotFoundError(
            f"job {job_id} has no artifact {name!r}",
            fix="list them: `elasticdl jobs get ID`, or GET /jobs/{id}/artifacts",
        )
    descriptor = await asyncio.to_thread(_open, api.settings.job_dir(job_id) / "artifacts", *found)
    return _answer(descriptor, Path(name).name)


def _locate(name: str, rows: Iterable[Mapping[str, Any]]) -> tuple[str, str] | None:
    """The recorded path that a name leads to, and what of the name lies below it.

    Exports record each file of a directory: the directory's own name leads to where they lie.
    """
    for row in rows:
        known = row["name"].rstrip("/")
        if name == known or name.startswith(f"{known}/"):
            return row["path"], name.removeprefix(known).strip("/")
        within = known.removeprefix(f"{name}/")
        if within != known and row["path"].endswith(f"/{within}"):
            return row["path"].removesuffix(f"/{within}"), ""
    return None


def _open(directory: Path, path: str, below: str) -> int:
    """Opens an artifact; an absolute path was checked against the job's output when it was recorded."""
    base = Path(path).parent if Path(path).is_absolute() else directory
    relative = Path(path).name if Path(path).is_absolute() else path
    return files.open_below(base, f"{relative}/{below}" if below else relative)


def _answer(descriptor: int, name: str) -> StreamingResponse:
    headers = {"X-Content-Type-Options": "nosniff"}
    if files.is_directory(descriptor):
        pieces, name, media_type = files.zip_pieces(descriptor), f"{name}.zip", "application/zip"
    else:
        headers["Content-Length"] = str(os.fstat(descriptor).st_size)
        pieces, media_type = files.read_pieces(descriptor), "application/octet-stream"
    headers["Content-Disposition"] = f"attachment; filename*=UTF-8''{urllib.parse.quote(name)}"
    return StreamingResponse(pieces, media_type=media_type, headers=headers)

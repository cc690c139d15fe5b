"""Artifacts of a job, downloaded into a directory."""

from __future__ import annotations

import itertools
from collections.abc import Sequence
from pathlib import Path

from elasticdl.client.aio.connection import AsyncApiConnection, AsyncResponseStream
from elasticdl.client.aio.waiting import run_blocking
from elasticdl.client.artifact_file import ArtifactFile, place_of
from elasticdl.client.messages import NoResponse, Request, Response
from elasticdl.client.problems import error_of, unreachable
from elasticdl.client.requests import job_path
from elasticdl.client.views import Artifact
from elasticdl_core.errors import NotFoundError

READ_TIMEOUT_S = 60.0


async def fetch_artifacts(api: AsyncApiConnection, job_id: str) -> list[Artifact]:
    """The artifacts of a job."""
    data = await api.fetch(Request("GET", job_path(job_id, "artifacts")))
    return [Artifact.from_json(item) for item in data]


async def download(api: AsyncApiConnection, job_id: str, directory: Path, names: Sequence[str] | None) -> list[Path]:
    """Downloads artifacts into a directory: a file appears at once and whole, its digest checked.

    Raises:
        NotFoundError: the job has no artifact of a name.
        ConflictError: what came is not what the job made, or the place is taken.
        ElasticDLError: the API refused, or did not answer.
    """
    listed = {item.name: item for item in await fetch_artifacts(api, job_id)}
    missing = [name for name in names or () if name not in listed]
    if missing:
        raise NotFoundError(
            f"job {job_id} has no artifact {', '.join(missing)}",
            fix=f"it has: {', '.join(listed)}" if listed else "it has none; see whether it succeeded",
        )
    places = {name: place_of(directory, name) for name in (names if names is not None else listed)}
    return [await _download_one(api, job_id, listed[name], place) for name, place in places.items()]


async def _download_one(api: AsyncApiConnection, job_id: str, artifact: Artifact, place: Path) -> Path:
    request = Request("GET", job_path(job_id, "artifacts", artifact.name), read_timeout_s=READ_TIMEOUT_S)
    for attempt in itertools.count():
        async with await api.open(request) as stream:
            outcome = stream.outcome
            if isinstance(outcome, Response) and outcome.status < 400:
                received = await _receive(stream, outcome, artifact, place)
                if isinstance(received, Path):
                    return received
                outcome = received
        pause = api.retry.pause(request, outcome, attempt)
        if pause is None:
            break
        await api.sleep(pause)
    raise unreachable(outcome, api.url) if isinstance(outcome, NoResponse) else error_of(outcome, request)


async def _receive(stream: AsyncResponseStream, head: Response, artifact: Artifact, place: Path) -> Path | NoResponse:
    """Writes a response to its place; gives the place, or what broke the response off."""
    file = await run_blocking(ArtifactFile, place)
    try:
        while True:
            chunk = await stream.read()
            if isinstance(chunk, NoResponse):
                return chunk
            if chunk is None:
                return await run_blocking(file.keep, artifact, head.headers)
            await run_blocking(file.write, chunk)
    finally:
        file.discard()

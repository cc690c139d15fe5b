"""Bundles: upload model code as a zip, addressed by its content."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import hashlib
import os
import tempfile
from collections.abc import AsyncGenerator
from pathlib import Path
from typing import Annotated, Any

from fastapi import APIRouter, Request
from fastapi import Path as PathParameter
from fastapi.responses import JSONResponse

from elasticdl_api.files import access as files
from elasticdl_api.files.model_code import bundle_path
from elasticdl_api.schemas.jobs import BundleResponse
from elasticdl_api.services import Api, User
from elasticdl_api.web.problems import MalformedError, TooLargeError, declared
from elasticdl_api.web.streamed import Body, StreamedResponse, opened_file, read_in_threads
from elasticdl_core.errors import NotFoundError
from elasticdl_runtime import durable
from elasticdl_runtime.bundles import MAX_ZIP_BYTES, digest_hex
from elasticdl_runtime.failpoints import failpoint
from elasticdl_runtime.lifecycle import in_thread

router = APIRouter(tags=["bundles"])
Digest = Annotated[
    str,
    PathParameter(
        description="sha256: and the 64 hex digits of the zip's SHA-256.",
        pattern=r"^sha256:[0-9a-f]{64}$",
        examples=["sha256:" + "0f" * 32],
    ),
]
_BYTES: dict[str, Any] = {"schema": {"type": "string", "format": "binary"}}
_ZIP: dict[str, Any] = {"application/zip": _BYTES}
_UPLOADED = _ZIP | {"application/octet-stream": _BYTES}
"""Generators of clients know bytes, and not all of them zips."""


@router.put(
    "/bundles/{digest}",
    status_code=201,
    response_model=BundleResponse,
    summary="Upload a bundle",
    openapi_extra={"requestBody": {"required": True, "description": "The zip.", "content": _UPLOADED}},
    responses={**declared(400, 409, 413, 422), 200: {"model": BundleResponse, "description": "It was there already"}},
)
async def upload(digest: Digest, request: Request, api: Api, user: User) -> JSONResponse:
    """The zip is checked: its digest, its members, its size when unpacked."""
    known = await bundle_path(api, user.home, digest)
    if known is not None:
        return JSONResponse({"digest": digest, "size": known.stat().st_size}, status_code=200)
    await api.disk.require_room(user.home)
    directory = api.settings.bundles_dir
    await asyncio.to_thread(durable.make_folder, directory)
    descriptor, path = await in_thread(functools.partial(_open_upload, directory), abandon=_abandon)
    try:
        size = await _receive(request, descriptor, digest)
        await api.examiners.examine_bundle(path, namespace=user.home)
        failpoint("api.before_bundle_placed")
        await in_thread(lambda: durable.place(path, directory / f"{digest_hex(digest)}.zip"))
        failpoint("api.after_bundle_placed")
        await api.jobs.add_bundle(user, digest, size)
    finally:
        await in_thread(lambda: path.unlink(missing_ok=True))
    return JSONResponse({"digest": digest, "size": size}, status_code=201)


@router.get(
    "/bundles/{digest}",
    response_class=StreamedResponse,
    summary="Fetch a bundle",
    responses={**declared(404, 422), 200: {"description": "The zip", "content": _ZIP}},
)
async def fetch(digest: Digest, api: Api, user: User) -> StreamedResponse:
    """The zip as it was uploaded."""
    return stream_zip(await _find(api, user, digest))


def stream_zip(path: Path) -> StreamedResponse:
    """A zip file as a response."""

    @contextlib.asynccontextmanager
    async def opening() -> AsyncGenerator[Body]:
        async with (
            opened_file(lambda: os.open(path, os.O_RDONLY | os.O_CLOEXEC)) as descriptor,
            read_in_threads(files.read_pieces(descriptor)) as pieces,
        ):
            size = str(os.fstat(descriptor).st_size)
            yield Body(pieces, "application/zip", {"Content-Length": size, "X-Content-Type-Options": "nosniff"})

    return StreamedResponse(opening)


async def _find(api: Api, user: User, digest: str) -> Path:
    path = await bundle_path(api, user.home, digest)
    if path is None:
        raise NotFoundError(f"there is no bundle {digest}", fix="upload it with PUT /bundles/{digest}")
    return path


def _open_upload(directory: Path) -> tuple[int, Path]:
    descriptor, name = tempfile.mkstemp(prefix=".upload-", dir=directory)
    return descriptor, Path(name)


def _abandon(upload: tuple[int, Path]) -> None:
    descriptor, path = upload
    os.close(descriptor)
    path.unlink()


async def _receive(request: Request, descriptor: int, digest: str) -> int:
    size = 0
    hasher = hashlib.sha256()
    with os.fdopen(descriptor, "wb") as file:
        async for piece in request.stream():
            size += len(piece)
            if size > MAX_ZIP_BYTES:
                raise TooLargeError(
                    f"the bundle is larger than {MAX_ZIP_BYTES >> 20} MiB", fix="keep data out of the model zoo"
                )
            hasher.update(piece)
            file.write(piece)
    if f"sha256:{hasher.hexdigest()}" != digest:
        raise MalformedError(
            f"the body's digest is sha256:{hasher.hexdigest()}, not {digest}",
            fix="send the zip unchanged to the path with its own digest",
        )
    return size

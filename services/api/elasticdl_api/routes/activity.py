"""Routes of a job's activity: events (as a list or a live stream), logs, metrics."""

from __future__ import annotations

import asyncio
import contextlib
import functools
from collections.abc import AsyncGenerator, Awaitable, Callable
from datetime import UTC, datetime
from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request
from fastapi.responses import Response
from pydantic import AwareDatetime

from elasticdl_api.feeds.streams import EventStreamResponse
from elasticdl_api.files.access import plain_name
from elasticdl_api.files.logs import list_logs
from elasticdl_api.routes.jobs import require
from elasticdl_api.routes.pages import json_response, page_or_list
from elasticdl_api.schemas import jobs as schemas
from elasticdl_api.schemas.jobs import EventPageResponse, MetricsResponse
from elasticdl_api.schemas.observing import LogFilesResponse
from elasticdl_api.services import Api, User
from elasticdl_api.web.json_bodies import BIGINT
from elasticdl_api.web.paging import PageToken
from elasticdl_api.web.problems import declared
from elasticdl_api.web.representations import wants_events
from elasticdl_api.web.streamed import Body, StreamedResponse
from elasticdl_core.errors import InvalidInputError, UnavailableError
from elasticdl_core.ports.launcher import Role
from elasticdl_runtime.lifecycle import end_all

router = APIRouter(tags=["activity"])
LONGEST_LINE = 1 << 20
"""What is longer, without a line's end in it, is looked at in parts."""
_EPOCH = datetime(1970, 1, 1, tzinfo=UTC)
FIRST_LOOK_S = 1.0
"""Seconds in which a log that cannot be read is told as a problem."""
_SSE: dict[str, Any] = {
    "text/event-stream": {
        "schema": {"type": "string"},
        "example": 'id: 7\nevent: event\ndata: {"id": 7, "kind": "state", "message": "2 workers fit"}\n\n',
    }
}


@router.get(
    "/jobs/{job_id}/events",
    response_model=EventPageResponse,
    summary="Events of a job, as a list or a live stream",
    responses={**declared(404, 422), 200: {"description": "Events, oldest first", "content": _SSE}},
)
async def events(
    job_id: schemas.JobId,
    request: Request,
    api: Api,
    user: User,
    after: Annotated[int, Query(description="Only events after that id.", ge=0, le=BIGINT)] = 0,
    page_token: PageToken = None,
    limit: Annotated[int, Query(description="Events on a page (lists only).", ge=1, le=1000)] = 200,
    last_event_id: Annotated[
        str | None, Header(description="Streams only: go on after that id.", max_length=40)
    ] = None,
) -> Response:
    """With `Accept: text/event-stream`: each `event` with its id, `status` when it changed, `end` at the end.

    A stream that was cut, or that was too slow, goes on where it was with `Last-Event-ID`.
    """
    plain_name(job_id)
    if not wants_events(request.headers.get("accept", "")):
        about = {"job": job_id}
        if page_token is not None:
            (after,) = api.pages.read(page_token, "events", about)
        found = await api.job_views.list_events(job_id, namespace=user.namespace, after=after, limit=limit + 1)
        following = api.pages.make("events", about, [found[limit - 1][0]]) if len(found) > limit else None
        return page_or_list(request, "events", [body for _, body in found[:limit]], following)
    await api.job_views.require(job_id, namespace=user.namespace)
    start = after if last_event_id is None else _event_id(last_event_id)
    return EventStreamResponse(
        lambda: api.job_feeds.follow(job_id, user.namespace, start), await api.stream_slot(user)
    )


@router.get(
    "/jobs/{job_id}/logs",
    response_class=Response,
    summary="Log of a process of a job",
    responses={
        **declared(404, 422),
        200: {"description": "The log", "content": {"text/plain": {"schema": {"type": "string"}}}},
    },
)
async def logs(
    job_id: schemas.JobId,
    api: Api,
    user: User,
    role: Annotated[Role, Query(description="The role of the process.")] = Role.WORKER,
    index: Annotated[int, Query(description="Its index in the role.", ge=0, le=100_000)] = 0,
    tail: Annotated[int | None, Query(description="Only the last lines, that many.", ge=0, le=100_000)] = None,
    follow: Annotated[bool, Query(description="Go on with what is printed until the job is over.")] = False,
    since: Annotated[
        AwareDatetime | None, Query(description="Only what was printed then or later; up to a second more.")
    ] = None,
    grep: Annotated[
        str, Query(description="Of all that only the lines that contain this text.", max_length=1000)
    ] = "",
    offset: Annotated[
        int | None, Query(description="Leave out that many bytes at the beginning.", ge=0, le=BIGINT)
    ] = None,
    download: Annotated[bool, Query(description="As a file to keep.")] = False,
) -> Response:
    """All incarnations of the process, oldest first."""
    await require(api, user, job_id)
    if offset is not None and (tail is not None or since is not None):
        raise InvalidInputError(
            "offset does not go with tail or since", fix="give one of them: each says where to begin"
        )
    if download and follow:
        raise InvalidInputError("download does not go with follow", fix="leave one of them out: a file has an end")
    if api.launcher is None:
        raise UnavailableError("there is no agent that keeps logs", fix="start one, and set ELASTICDL_AGENT")
    start = None if since is None else (since - _EPOCH).total_seconds()
    read = functools.partial(api.launcher.logs, job_id, role, index, since=start)
    slot = await api.log_slot(user) if follow else contextlib.nullcontext
    named = {"Content-Disposition": f'attachment; filename="{job_id}-{role}-{index}.log"'} if download else {}
    headers = {"X-Content-Type-Options": "nosniff", "Cache-Control": "no-store", **named}

    @contextlib.asynccontextmanager
    async def opening() -> AsyncGenerator[Body]:
        async with contextlib.AsyncExitStack() as stack:
            stack.enter_context(slot())

            async def closed(pieces: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
                return await stack.enter_async_context(contextlib.aclosing(pieces))

            pieces = await closed(read(tail=None, follow=follow, lines=tail))
            if follow:
                over = functools.partial(api.job_views.is_over, job_id, namespace=user.namespace)
                pieces = await closed(_until_over(pieces, over))
            if offset:
                pieces = await closed(_without_beginning(pieces, offset))
            if grep:
                pieces = await closed(_lines_with(grep.encode("utf-8", "replace"), pieces))
            pieces = await stack.enter_async_context(_begun(pieces))
            yield Body(pieces, "text/plain; charset=utf-8", headers)

    return StreamedResponse(opening, until=api.stopping)


@router.get(
    "/jobs/{job_id}/logs/files",
    response_model=LogFilesResponse,
    summary="Logs of a job",
    responses=declared(404, 422),
)
async def log_files(job_id: schemas.JobId, api: Api, user: User) -> Any:
    """The logs of all processes of a job, one for each incarnation, with their sizes."""
    await require(api, user, job_id)
    return {"files": await asyncio.to_thread(list_logs, api.settings.job_dir(job_id).parent, job_id)}


@router.get(
    "/jobs/{job_id}/metrics",
    response_model=MetricsResponse,
    summary="Losses and evaluations of a job",
    responses=declared(404, 422),
)
async def metrics(
    job_id: schemas.JobId,
    api: Api,
    user: User,
    limit: Annotated[int, Query(description="At most that many losses, the latest.", ge=1, le=100_000)] = 10_000,
) -> Response:
    """The training loss by model version, and every evaluation."""
    return json_response(await api.job_views.read_metrics(plain_name(job_id), namespace=user.namespace, limit=limit))


def _event_id(text: str) -> int:
    number = int(text) if text.isascii() and text.isdigit() else -1
    if not 0 <= number <= BIGINT:
        raise InvalidInputError(f"Last-Event-ID {text!r} is not an id of ours", fix="send the last id that came")
    return number


async def _until_over(pieces: AsyncGenerator[bytes], over: Callable[[], Awaitable[bool]]) -> AsyncGenerator[bytes]:
    """Yields a followed log until its job is over: of each incarnation, however long the next one takes to come."""
    was_over = False
    async for piece in pieces:
        if piece:
            yield piece
        elif was_over:  # and all was read after that
            return
        else:
            was_over = await over()


async def _without_beginning(pieces: AsyncGenerator[bytes], skip: int) -> AsyncGenerator[bytes]:
    """The same pieces, without so many bytes."""
    async for piece in pieces:
        if skip < len(piece):
            yield piece[skip:]
        skip = max(0, skip - len(piece))


async def _lines_with(text: bytes, pieces: AsyncGenerator[bytes]) -> AsyncGenerator[bytes]:
    """The lines with a text in them, as soon as they are whole; an endless line counts as several."""
    rest = b""
    async for piece in pieces:
        *lines, rest = (rest + piece).split(b"\n")
        if found := b"".join(line + b"\n" for line in lines if text in line):
            yield found
        if len(rest) > LONGEST_LINE:
            if text in rest:
                yield rest
            rest = b""
    if text in rest:
        yield rest


@contextlib.asynccontextmanager
async def _begun(pieces: AsyncGenerator[bytes]) -> AsyncGenerator[AsyncGenerator[bytes]]:
    """The same pieces, after a first look: what fails at once fails as a problem, not in the middle of a body."""
    first = asyncio.ensure_future(anext(pieces, b""))

    async def all_pieces() -> AsyncGenerator[bytes]:
        yield await first
        async for piece in pieces:
            yield piece

    try:
        await asyncio.wait({first}, timeout=FIRST_LOOK_S)
        if first.done():
            first.result()
        async with contextlib.aclosing(all_pieces()) as following:
            yield following
    finally:
        await end_all(first)

"""All jobs and the cluster on one live stream."""

from __future__ import annotations

from typing import Annotated, Any

from fastapi import APIRouter, Header, Query, Request, Response

from elasticdl_api.feeds.streams import EventStreamResponse
from elasticdl_api.schemas.jobs import ListedView
from elasticdl_api.services import Api, User
from elasticdl_api.web.problems import NotAcceptableError, declared
from elasticdl_api.web.representations import wants_events

router = APIRouter(tags=["activity"])
_SSE: dict[str, Any] = {
    "text/event-stream": {
        "schema": {"type": "string"},
        "example": 'id: 5f0c1b2a3d4e-7\nevent: job\ndata: {"id": "digits-x7k2p9", "state": "RUNNING"}\n\n',
    }
}


@router.get(
    "/events",
    response_class=Response,
    summary="All jobs and the cluster, as a live stream",
    responses={**declared(406, 422, 429), 200: {"description": "What changes", "content": _SSE}},
)
async def overview(
    request: Request,
    api: Api,
    user: User,
    view: Annotated[ListedView, Query(description="`summary`: of each status the numbers alone.")] = ListedView.FULL,
    last_event_id: Annotated[str | None, Header(description="Go on after that id.", max_length=40)] = None,
) -> Response:
    """Sends `job` with each job that changed (as in lists, without its specification), `deleted`, and `cluster`.

    `reset` comes first, unless the stream could go on after `Last-Event-ID`: read the lists then, for what was before
    is not told. Messages that came are always the newest; those of one job replace each other while they wait.
    """
    if not wants_events(request.headers.get("accept", "")):
        raise NotAcceptableError("this is a stream of server-sent events", fix="send 'Accept: text/event-stream'")
    return EventStreamResponse(
        lambda: api.overview_feeds.follow(user.namespace, last_event_id, brief=view is ListedView.SUMMARY),
        await api.stream_slot(user),
    )

"""Reservations: slots that processes which are not ours take, above all jobs."""

from __future__ import annotations

import functools
from collections.abc import Awaitable, Callable, Mapping
from typing import Annotated, Any

from fastapi import APIRouter, Query, Response
from fastapi import Path as PathParameter
from pydantic import BaseModel, ConfigDict, Field
from sqlalchemy import text

from elasticdl_api.schemas.moments import Moment
from elasticdl_api.schemas.numbers import Whole, WholeNumbers
from elasticdl_api.schemas.paging import NEXT_PAGE
from elasticdl_api.services import Api, User
from elasticdl_api.store import audit
from elasticdl_api.web.paging import PageToken
from elasticdl_api.web.problems import declared
from elasticdl_core.errors import ElasticDLError, NotFoundError, UnavailableError
from elasticdl_core.ports.launcher import CapacityInfo, Launcher
from elasticdl_runtime.failpoints import failpoint
from elasticdl_runtime.lifecycle import to_its_end

DEFAULT_GRACE_S = 30.0
router = APIRouter(tags=["cluster"])
Name = Annotated[
    str,
    PathParameter(
        description="Name of the service.", pattern=r"^[a-z0-9]([-a-z0-9]{0,61}[a-z0-9])?$", examples=["web-shop"]
    ),
]


class ReservationRequest(WholeNumbers):
    """The slots to reserve."""

    model_config = ConfigDict(extra="forbid", strict=True)

    slots: Whole = Field(ge=0, le=100_000, description="Worker slots.", examples=[3])
    grace_s: float = Field(
        default=DEFAULT_GRACE_S,
        ge=0,
        le=600,
        description="Seconds that workers have to leave these slots; then they are ended.",
    )


class ReservationView(BaseModel):
    """A reservation as it stands."""

    name: str = Field(examples=["web-shop"])
    slots: int = Field(description="Slots asked for.")
    granted: int = Field(description="The number of them that no worker holds any more.")
    grace_s: float = Field(description="Seconds that workers have to leave.")
    changed_at: Moment = Field(description="When it was last changed.")
    granted_at: Moment | None = Field(description="When all of it was granted; null while workers are leaving.")


class ReservationList(BaseModel):
    """All reservations, and what they leave."""

    reservations: list[ReservationView]
    next_page_token: str | None = NEXT_PAGE
    slots: int = Field(description="Slots of the cluster.")
    headroom: int = Field(description="Slots that are kept free of workers for reservations to come.")
    for_jobs: int = Field(description="Slots that jobs may have together.")


@router.get(
    "/cluster/reservations", response_model=ReservationList, summary="List reservations", responses=declared(403, 503)
)
async def list_reservations(
    api: Api,
    user: User,
    page_token: PageToken = None,
    limit: Annotated[int, Query(description="Reservations on a page.", ge=1, le=1000)] = 1000,
) -> Any:
    """Lists the reservations, and how many of their slots are free of workers by now."""
    capacity = await _agent(api).capacity()
    rows = sorted(capacity.reservations, key=lambda one: one.name)
    page, following = api.pages.cut("reservations", rows, lambda one: one.name, limit, page_token)
    return {
        "reservations": page,
        "next_page_token": following,
        "slots": capacity.slots,
        "headroom": capacity.headroom,
        "for_jobs": capacity.for_jobs,
    }


@router.get(
    "/cluster/reservations/{name}",
    response_model=ReservationView,
    summary="Look at a reservation",
    responses=declared(403, 404, 422, 503),
)
async def get_reservation(name: Name, api: Api, user: User) -> Any:
    """One reservation; it can be used up to ``granted`` slots."""
    return _named(await _agent(api).capacity(), name)


@router.put(
    "/cluster/reservations/{name}",
    response_model=ReservationView,
    summary="Reserve slots",
    responses=declared(403, 422, 503),
)
async def put_reservation(name: Name, wanted: ReservationRequest, api: Api, user: User) -> Any:
    """Takes slots from jobs, or changes how many are taken.

    They no longer count as the jobs' from now on. Those that workers hold are granted as the workers leave, which
    they are told at once; whoever stays longer than ``grace_s`` seconds is ended. Free slots are granted at once.
    """
    launcher = _agent(api)
    reserve = functools.partial(launcher.reserve, name, wanted.slots, grace_s=wanted.grace_s)
    await to_its_end(_change(api, user, "reservation.put", name, wanted.model_dump(), reserve))
    return _named(await launcher.capacity(), name)


@router.delete(
    "/cluster/reservations/{name}",
    status_code=204,
    response_class=Response,
    summary="Release reserved slots",
    responses=declared(403, 404, 422, 503),
)
async def delete_reservation(name: Name, api: Api, user: User) -> Response:
    """Gives the slots back to jobs."""
    launcher = _agent(api)
    _named(await launcher.capacity(), name)
    await to_its_end(_change(api, user, "reservation.delete", name, {}, functools.partial(launcher.release, name)))
    return Response(status_code=204)


def _agent(api: Api) -> Launcher:
    if api.launcher is None:
        raise UnavailableError("there is no agent that has slots", fix="set ELASTICDL_AGENT for the api")
    return api.launcher


def _named(capacity: CapacityInfo, name: str) -> Any:
    for reservation in capacity.reservations:
        if reservation.name == name:
            return reservation
    raise NotFoundError(f"no slots are reserved for {name!r}", fix="list the reservations")


async def _change(
    api: Api, user: User, action: str, name: str, detail: Mapping[str, Any], do: Callable[[], Awaitable[None]]
) -> None:
    """Writes down what is to be done at the agent, does it, and tells the scheduler.

    It is written down before, so that nothing is done without an entry, wherever the api dies; what the agent
    refuses nevertheless gets a second one. The scheduler listens where changes of jobs are told; it would look by
    itself some seconds later.
    """

    async def note(what: str, why: Mapping[str, Any]) -> None:
        async with api.database.transaction() as connection:
            await audit.record(connection, user, what, name, why)

    await note(action, detail)
    try:
        await do()
    except UnavailableError:
        raise  # whether it was done is not known
    except ElasticDLError as error:
        await note(f"{action}.refused", {"reason": error.message})
        raise
    failpoint("api.after_reservation")
    async with api.database.transaction() as connection:
        await connection.execute(text("SELECT pg_notify('elasticdl_jobs', '')"))

"""Namespaces: who sees what, what their jobs may read, what they may take."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

from fastapi import APIRouter, Response
from fastapi import Path as PathParameter

from elasticdl_api.places.roots import check_data_roots
from elasticdl_api.schemas.access import NamespaceList, NamespaceRequest, NamespaceResponse
from elasticdl_api.services import Api, User
from elasticdl_api.web.problems import declared
from elasticdl_api.web.sealed_tokens import SOURCE, seal
from elasticdl_core.access import NAMESPACE_PATTERN
from elasticdl_core.errors import Problem, SpecError
from elasticdl_core.scheduling import Quota, Resources
from elasticdl_core.scheduling.quota import over_guaranteed

router = APIRouter(tags=["access"])
Name = Annotated[
    str, PathParameter(description="The namespace's name.", pattern=NAMESPACE_PATTERN, examples=["team-a"])
]


@router.get("/namespaces", response_model=NamespaceList, summary="List namespaces", responses=declared())
async def list_namespaces(api: Api, user: User) -> Any:
    """Lists the namespaces that the caller sees, by name."""
    return {"namespaces": await api.namespaces.list_all(user)}


@router.get(
    "/namespaces/{name}",
    response_model=NamespaceResponse,
    summary="Look at a namespace",
    responses=declared(404, 422),
)
async def get_namespace(name: Name, api: Api, user: User) -> Any:
    """Its data roots and limits, the names of its sources, how many jobs and tokens it has."""
    return await api.namespaces.get(user, name)


@router.put(
    "/namespaces/{name}",
    response_model=NamespaceResponse,
    summary="Make or change a namespace",
    responses={**declared(403, 422), 201: {"model": NamespaceResponse, "description": "The new namespace"}},
)
async def put_namespace(name: Name, wanted: NamespaceRequest, response: Response, api: Api, user: User) -> Any:
    """Creates or changes a namespace; what is not given stays as it is. For administrators of the cluster."""
    given = wanted.model_dump(include={"data_roots"}, exclude_none=True)
    await asyncio.to_thread(check_data_roots, wanted.data_roots or (), api.settings.data_dir)
    if wanted.limits is not None:
        given["limits"] = wanted.limits.model_dump(exclude_none=True)
        if wanted.limits.guaranteed_slots is not None:
            await _check_guarantees(api, name, wanted.limits.guaranteed_slots)
    if wanted.sources is not None:
        secret = api.settings.cluster_secret
        given["sources"] = {
            key: None if url is None else seal(secret, url, SOURCE) for key, url in wanted.sources.items()
        }
    if await api.namespaces.put(user, name, given):
        response.status_code = 201
    return await api.namespaces.get(user, name)


async def _check_guarantees(api: Api, name: str, slots: int) -> None:
    """Refuses to guarantee more slots in all than the cluster has, where that is known."""
    view = await api.cluster_views.get(fresh=True)
    others = {team: quota for team, quota in view.snapshot.quotas.items() if team != name}
    problem = over_guaranteed({**others, name: Quota(guaranteed=Resources(slots=float(slots)))}, view.capacity.slots)
    if view.capacity.slots and problem:
        fix = "guarantee fewer; `elasticdl namespaces list` shows what others are guaranteed"
        raise SpecError([Problem("limits.guaranteed_slots", problem, fix)])


@router.delete(
    "/namespaces/{name}",
    status_code=204,
    response_class=Response,
    summary="Remove a namespace",
    responses=declared(403, 404, 409, 422),
)
async def delete_namespace(name: Name, api: Api, user: User) -> Response:
    """One without jobs; its tokens are gone with it. For administrators of the cluster."""
    await api.namespaces.remove(user, name)
    return Response(status_code=204)

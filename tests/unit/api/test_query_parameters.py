"""Query parameters that no route reads."""

from __future__ import annotations

import asyncio
from typing import Annotated, Any

import httpx
import pytest
from fastapi import APIRouter, Depends, FastAPI, Query

from elasticdl_api.web import problems
from elasticdl_api.web.query_parameters import refuse_unknown_parameters

pytestmark = pytest.mark.unit


def page(limit: int = 5) -> int:
    return limit


@pytest.fixture
def client() -> Any:
    router = APIRouter()

    @router.get("/things/{name}")
    async def things(
        name: str,
        limit: Annotated[int, Depends(page)],
        state: Annotated[list[str] | None, Query()] = None,
    ) -> dict[str, Any]:
        return {"name": name, "limit": limit, "state": state}

    @router.get("/plain")
    async def plain() -> dict[str, Any]:
        return {}

    app = FastAPI()
    problems.install(app)
    app.include_router(router, dependencies=[Depends(refuse_unknown_parameters)])

    class Client:
        def get(self, path: str, params: dict[str, Any]) -> httpx.Response:
            async def ask() -> httpx.Response:
                transport = httpx.ASGITransport(app)
                async with httpx.AsyncClient(transport=transport, base_url="http://api") as one:
                    return await one.get(path, params=params)

            return asyncio.run(ask())

    return Client()


def test_known_parameters_are_taken_also_those_of_dependencies(client: Any) -> None:
    answer = client.get("/things/a", params={"state": ["x", "y"], "limit": 3})
    assert answer.json() == {"name": "a", "limit": 3, "state": ["x", "y"]}


def test_an_unknown_parameter_is_refused_with_the_nearest_one(client: Any) -> None:
    """``?stat=RUNNING`` listed all jobs."""
    answer = client.get("/things/a", params={"stat": "x"})
    assert answer.status_code == 422
    assert "/things/a has no query parameter 'stat'" in answer.json()["detail"]
    assert answer.json()["fix"] == "did you mean state? it has limit, state"
    assert client.get("/plain", params={"x": 1}).json()["fix"] == "it has none"

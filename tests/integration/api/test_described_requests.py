"""Requests made from the api's own description, right and wrong ones: no 5xx, and nothing but what is described."""

from __future__ import annotations

import asyncio
import collections
import re
import time
from collections.abc import Callable
from typing import Any

import httpx
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
    status_code_conformance,
)

from tests.fakes import bad_inputs
from tests.integration.api.conftest import Api

pytestmark = pytest.mark.integration
_CHECKS = [
    not_a_server_error,
    status_code_conformance,
    content_type_conformance,
    response_headers_conformance,
    response_schema_conformance,
]
_MODES = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)


@schemathesis.serializer("application/zip")
def _as_bytes(_context: Any, value: Any) -> bytes:
    data = getattr(value, "data", value)
    return data if isinstance(data, bytes) else str(data).encode("utf-8", "replace")


async def test_some_requests_of_each_route(api: Api) -> None:
    await _try_all(api, 3)


@pytest.mark.slow
@pytest.mark.timeout(7200)
async def test_fifty_thousand_requests(api: Api) -> None:
    routes = sum(len(methods) for methods in api.app.openapi()["paths"].values())
    # Some more of each, because a route that takes nothing can be asked nothing wrong.
    counts = await _try_all(api, -(-55_000 // (routes * len(_MODES))))
    by_status = collections.Counter[int]()
    for (_, status), number in counts.items():
        by_status[status] += number
    print("requests by status:", dict(sorted(by_status.items())))
    assert by_status.total() >= 50_000
    taken = {route for (route, status) in counts if status < 300}
    assert {route for route, _ in counts if "/internal/" in route} <= taken  # the living master was one


class _Jobs:
    """A job that is over, and one with its master that lives; another one once a request has ended it.

    Attributes:
        over: the first; streams of living jobs would not end.
        living: the second.
        master: of the second.
    """

    def __init__(self, api: Api) -> None:
        self._api = api
        self.over = self.living = ""
        self.master = api.master("none")

    async def ensure(self) -> None:
        """Makes those that are missing."""
        if not self.over:
            self.over, master = await self._api.running()
            assert (await master.post("/state", to="SUCCEEDED", reason="over")).status_code == 200
        shown = await self._api.http.get(f"/jobs/{self.living or 'none'}")
        if shown.status_code != 200 or (shown.json()["state"], shown.json()["desired"]) != ("RUNNING", "run"):
            self.living, self.master = await self._api.running()

    def name_in(self, case: schemathesis.Case) -> None:
        """Has a request mean one of them; what speaks as a master speaks in its epoch."""
        if "job_id" not in case.path_parameters:
            return
        internal = "/internal/" in case.path
        case.path_parameters["job_id"] = self.over if case.method == "GET" and not internal else self.living
        if not internal:
            return
        for place in (case.body, case.query):
            if isinstance(place, dict) and "epoch" in place:
                place["epoch"] = self.master.epoch

    async def note(self, case: schemathesis.Case, answer: httpx.Response) -> None:
        """Sees what a request did to them."""
        if case.method == "GET" or answer.status_code >= 300 or self.living not in case.path_parameters.values():
            return
        if case.path.endswith("/lease"):
            self.master.epoch = answer.json()["epoch"]
        elif case.path.endswith("/plan"):
            self.living = ""  # there is one plan of a job, and the next request has another
        if case.path.endswith(("/state", "/plan")) or "/internal/" not in case.path:
            await self.ensure()


async def _try_all(api: Api, examples: int) -> collections.Counter[tuple[str, int]]:
    """Sends so many requests of each kind to each route; returns how often each status came from each."""
    jobs = _Jobs(api)
    await jobs.ensure()
    loop = asyncio.get_running_loop()
    counts: collections.Counter[tuple[str, int]] = collections.Counter()
    wrong: dict[str, str] = {}

    async def exchange(case: schemathesis.Case, request: requests.PreparedRequest, headers: Any) -> httpx.Response:
        answer = await api.http.request(
            request.method or "", request.url or "", headers=headers, content=request.body
        )
        await jobs.note(case, answer)
        return answer

    def send(case: schemathesis.Case, known: bool) -> None:
        if known:
            jobs.name_in(case)
        request = requests.Request(**case.as_transport_kwargs(base_url="http://api")).prepare()
        headers = {name: value for name, value in request.headers.items() if name.lower() != "authorization"}
        if "/internal/" in case.path:
            headers |= jobs.master.headers
        encoded = {
            name: value if isinstance(value, bytes) else value.encode("latin-1") for name, value in headers.items()
        }
        began = time.monotonic()
        answer = asyncio.run_coroutine_threadsafe(exchange(case, request, encoded), loop).result(timeout=60)
        counts[f"{case.method} {case.path}", answer.status_code] += 1
        seconds = time.monotonic() - began
        bad_inputs.count("routes of the API", server_errors=answer.status_code >= 500, seconds=seconds)
        try:
            case.validate_response(answer, checks=_CHECKS)
        except (Failure, FailureGroup) as failure:
            found = getattr(failure, "exceptions", (failure,))
            for one in found:
                wrong.setdefault(
                    f"{case.method} {case.operation.path}: {type(one).__name__}: {answer.status_code}", str(one)
                )

    schema = schemathesis.openapi.from_dict(api.app.openapi())
    for found in schema.get_all_operations():
        operation = found.ok()
        for mode in _MODES:
            try:
                await asyncio.to_thread(_examples(operation.as_strategy(generation_mode=mode), send, examples))
            except Unsatisfiable:
                assert mode is schemathesis.GenerationMode.NEGATIVE  # of a route that takes nothing, nothing is wrong
    shown = "\n".join(f"{name}\n{re.sub(r'^', '    ', text[:600], flags=re.M)}" for name, text in wrong.items())
    assert not wrong, shown
    assert not any(status >= 500 for _, status in counts)
    assert any(status == 200 for _, status in counts)
    return counts


def _examples(cases: st.SearchStrategy[Any], send: Callable[[Any, bool], None], number: int) -> Callable[[], None]:
    @settings(
        max_examples=number,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(cases, st.booleans())
    def run(case: Any, known: bool) -> None:
        send(case, known)

    return run

"""Requests made from the api's own description, right and wrong ones: no 5xx, and nothing but what is described."""

from __future__ import annotations

import asyncio
import collections
import re
import time
from collections.abc import Callable
from typing import Any

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
    print("requests by status:", dict(sorted(counts.items())))
    assert sum(counts.values()) >= 50_000


async def _try_all(api: Api, examples: int) -> collections.Counter[int]:
    """Sends so many requests of each kind to each route; returns how often each status came."""
    job_id, master = await api.running()
    await master.post("/state", to="SUCCEEDED", reason="over")  # streams of living jobs would not end
    loop = asyncio.get_running_loop()
    counts: collections.Counter[int] = collections.Counter()
    wrong: dict[str, str] = {}

    def send(case: schemathesis.Case, known: bool) -> None:
        if known and "job_id" in case.path_parameters:
            case.path_parameters["job_id"] = job_id
        request = requests.Request(**case.as_transport_kwargs(base_url="http://api")).prepare()
        headers = {name: value for name, value in request.headers.items() if name.lower() != "authorization"}
        if "/internal/" in case.path:
            headers |= master.headers
        encoded = {
            name: value if isinstance(value, bytes) else value.encode("latin-1") for name, value in headers.items()
        }
        began = time.monotonic()
        sent = api.http.request(request.method or "", request.url or "", headers=encoded, content=request.body)
        answer = asyncio.run_coroutine_threadsafe(sent, loop).result(timeout=60)
        counts[answer.status_code] += 1
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
    assert not any(status >= 500 for status in counts)
    assert counts[200] > 0
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

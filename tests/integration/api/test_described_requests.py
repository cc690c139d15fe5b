"""Requests made from the api's own description, right and wrong ones: no 5xx, and nothing but what is described.

What the description allows is taken, unless a rule of ``BEYOND_SCHEMAS`` refuses it; what it forbids is refused.
"""

from __future__ import annotations

import asyncio
import collections
import re
import time
import zlib
from collections.abc import Callable
from typing import Any

import httpx
import jsonschema
import pytest
import requests
import schemathesis
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st
from hypothesis.errors import Unsatisfiable
from schemathesis.checks import not_a_server_error
from schemathesis.core.failures import Failure, FailureGroup
from schemathesis.schemas import APIOperation
from schemathesis.specs.openapi.checks import (
    content_type_conformance,
    negative_data_rejection,
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
_REFUSED = (400, 406, 415, 422)
"""What a request is answered with that is wrong by itself, whatever the cluster has."""
BEYOND_SCHEMAS = {
    # what only the server knows
    "GET": ["the page_token is not one of this list with these filters"],
    "PUT /v1/bundles/": ["the body's digest is sha256:.*, not "],
    "PUT /v1/cluster/reservations/": ["cannot reserve [0-9]+ slots for "],
    "PATCH /v1/jobs/": ["[0-9]+ workers are more than the whole cluster"],
    # fields together, and what they mean
    "GET /v1/jobs/{job_id}/logs": ["offset does not go with tail or since"],
    "GET /v1/jobs/{job_id}/series": ["until is before since", "[0-9]+ names are too many"],
    "GET /v1/cluster/series": ["until is before since"],
    "GET /v1/events": ["this is a stream of server-sent events"],
    "GET /v1/jobs": ["ids names [0-9]+ jobs"],
    "POST /v1/jobs": [
        "there is no bundle sha256:",
        "--[a-z_]+ names the file .*, which is not in the model zoo",
        ".* does not define ",
        "the processes of this cluster are no pods|.* cannot be given to a process of this cluster",
        "the model code must come from exactly one place",
        "(a|an) .* job needs (it|a trained model)",
        "[0-9]+ is less than min_workers",
        "they are of training by AllReduceStrategy",
        "an update of [0-9]+ records .* cannot be cut into",
        "only training by AllReduceStrategy gives the same bits",
        "NCCL (adds in an order of its own|joins workers that have a whole device each)",
        "workers of AllReduceStrategy run the plain compiled step",
        "AllReduceStrategy has no parameter servers",
        "it means nothing in a?synchronous mode",
        "asynchronous mode applies each gradient at once",
        "gradients of synchronous training are not late",
        "local updates between pulls are asynchronous by nature",
        "synchronous training (is strictly in order|reads every row)",
        "(a|an) .* job (changes no rows|writes no predictions)",
        "[0-9]+ rows do not even hold one minibatch",
        ".* is not what the ending of the output says",
        "there is nothing to evaluate on",
        "the best model is that of an evaluation, and there is nothing",
        ".* is no script$",
        ".* is no amount of it that a process can have",
        "read_only=.* is neither true nor false",
        ".* is no volume$",
        ".* is there twice$",
    ],
    "POST /v1/scheduler/what-if": [
        "the question asks for no change",
        "min_workers [0-9]+ is above max_workers",
        ".* is taken$",
    ],
    "POST /v1/tokens": ["a token is either of a namespace or of the cluster"],
    "PUT /v1/namespaces/": [
        "Value error, guaranteed_slots [0-9]+ are above max_slots",
        "[0-9]+ slots would be guaranteed in all, and the cluster has",
        "the data root .* holds the cluster's own data directory",
        "Value error, a source is",  # a password among the options of an address
    ],
    "DELETE /internal/jobs/{job_id}/checkpoints/": ["the request has no epoch"],
}
"""Rules that JSON schema cannot say, by the beginning of a route: of fields together, or of what the server has."""
TAKEN_IN_PART = re.compile(r"POST /internal/jobs/\{job_id\}/(heartbeat|state|events|processes)")
"""Reports of many items, of which those that cannot be taken are left out and said; long texts are shortened."""
_MODES = (schemathesis.GenerationMode.POSITIVE, schemathesis.GenerationMode.NEGATIVE)


@schemathesis.serializer("application/zip")
def _as_bytes(_context: Any, value: Any) -> bytes:
    data = getattr(value, "data", value)
    return data if isinstance(data, bytes) else str(data).encode("utf-8", "replace")


async def test_some_requests_of_each_route(api: Api) -> None:
    await _try_all(api, lambda operation: 3)


@pytest.mark.slow
@pytest.mark.timeout(3600)
async def test_many_requests_of_each_route(api: Api) -> None:
    counts = await _try_all(api, _by_what_varies)
    by_status = collections.Counter[int]()
    for (_, status), number in counts.items():
        by_status[status] += number
    print("requests by status:", dict(sorted(by_status.items())))
    assert by_status.total() >= 20_000
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


def _by_what_varies(operation: APIOperation) -> int:
    """The more fields a request has, the more of them are tried."""
    if operation.path == "/v1/sql":
        return 40  # each begins a process
    fields = sum(1 for _ in operation.iter_parameters())
    fields += sum(str(body.definition).count("'type'") for body in operation.body)
    return min(100 + 20 * fields, 600)


async def _try_all(api: Api, number_of: Callable[[APIOperation], int]) -> collections.Counter[tuple[str, int]]:
    """Sends requests of each kind to each route; returns how often each status came from each.

    Args:
        api: takes them.
        number_of: how many are right, and how many wrong, of each route.
    """
    jobs = _Jobs(api)
    await jobs.ensure()
    loop = asyncio.get_running_loop()
    counts: collections.Counter[tuple[str, int]] = collections.Counter()
    wrong: dict[str, str] = {}
    bundle = await api.upload()
    described = _without_login(api.app.openapi())
    bodies = _validators(described)

    async def exchange(case: schemathesis.Case, request: requests.PreparedRequest, headers: Any) -> httpx.Response:
        answer = await api.http.request(
            request.method or "", request.url or "", headers=headers, content=request.body
        )
        await jobs.note(case, answer)
        return answer

    def send(case: schemathesis.Case, known: bool) -> None:
        right = case.meta is not None and case.meta.generation.mode.is_positive
        if known:
            jobs.name_in(case)
        if known and right and (case.method, case.path) == ("POST", "/v1/jobs"):
            case.body = _some_fields(case.body, bundle)
        request = requests.Request(**case.as_transport_kwargs(base_url="http://api")).prepare()
        if len(request.url or "") > 60_000:
            return  # which httpx does not send
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
        route = f"{case.method} {case.path}"
        checks = list(_CHECKS)
        validator = bodies.get(route)
        fits = validator is None or validator.is_valid(case.body)
        if right and fits and answer.status_code in _REFUSED:
            for told in _unexpected(route, answer.json()):
                wrong.setdefault(f"{route} refuses what is described: {told}", str(case.body))
        elif (
            not right and not (validator and fits) and answer.status_code < 400 and not TAKEN_IN_PART.fullmatch(route)
        ):
            checks.append(negative_data_rejection)
        try:
            case.validate_response(answer, checks=checks)
        except (Failure, FailureGroup) as failure:
            found = getattr(failure, "exceptions", (failure,))
            for one in found:
                wrong.setdefault(
                    f"{case.method} {case.operation.path}: {type(one).__name__}: {answer.status_code}", str(one)
                )

    schema = schemathesis.openapi.from_dict(described)
    for found in schema.get_all_operations():
        operation = found.ok()
        number = number_of(operation)
        for mode in _MODES:
            try:
                await asyncio.to_thread(_examples(operation.as_strategy(generation_mode=mode), send, number))
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


def _without_login(described: dict[str, Any]) -> dict[str, Any]:
    """The description without its tokens, which the requests have anyway."""
    components = {name: one for name, one in described["components"].items() if name != "securitySchemes"}
    paths = {
        path: {
            method: {name: one for name, one in operation.items() if name != "security"}
            for method, operation in methods.items()
        }
        for path, methods in described["paths"].items()
    }
    return {**described, "components": components, "paths": paths}


def _validators(described: dict[str, Any]) -> dict[str, jsonschema.Draft202012Validator]:
    """By route, what tells whether a body is right."""
    found = {}
    for path, methods in described["paths"].items():
        for method, operation in methods.items():
            content = operation.get("requestBody", {}).get("content", {})
            if "application/json" in content:
                schema = {"components": described["components"], "allOf": [content["application/json"]["schema"]]}
                found[f"{method.upper()} {path}"] = jsonschema.Draft202012Validator(schema)
    return found


def _some_fields(body: dict[str, Any], bundle: str) -> dict[str, Any]:
    """A few of a specification's fields, beside a model that is there: all of them together never fit."""
    kept = {name: value for name, value in body.items() if not zlib.crc32(f"{name} {value}".encode()) % 7}
    kept.pop("model_zoo", None)
    return {**kept, "model_def": "model.custom_model", "model_bundle": bundle, "training_data": "/data"}


def _unexpected(route: str, problem: dict[str, Any]) -> list[str]:
    """What was said of a request that is as described, and is none of ``BEYOND_SCHEMAS``."""
    told = problem.get("problems") or [{"field": problem["code"], "message": problem["detail"]}]
    if route == "POST /v1/sql":  # the language of statements is none of JSON
        told = [one for one in told if one["field"] != "statement" and "statement" not in one["message"]]
    words = "|".join(word for name, rules in BEYOND_SCHEMAS.items() if route.startswith(name) for word in rules)
    return [
        f"{one['field'][:60]}: {one['message'][:200]}" for one in told if not re.match(words or "$", one["message"])
    ]

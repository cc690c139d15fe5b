"""The OpenAPI description is whole; and random requests that follow it, never a 5xx."""

from __future__ import annotations

import asyncio
import re
from typing import Any

import pytest
from hypothesis import HealthCheck, Phase, given, settings
from hypothesis import strategies as st

from elasticdl_api.web.auth import OPEN_PATHS
from tests.integration.api.conftest import Api

pytestmark = pytest.mark.integration
_METHODS = ("get", "head", "post", "put", "patch", "delete")


def _operations(api: Api) -> list[tuple[str, str, dict[str, Any]]]:
    schema = api.app.openapi()
    return [(m, path, ops[m]) for path, ops in schema["paths"].items() for m in _METHODS if m in ops]


async def test_openapi_is_complete(api: Api) -> None:
    schema = api.app.openapi()
    for method, path, operation in _operations(api):
        case = f"{method} {path}"
        assert operation.get("summary"), case
        declared = set(operation["responses"])
        if path not in OPEN_PATHS:
            assert {"401", "403", "500", "503"} <= declared, case
        for status, response in operation["responses"].items():
            if status.startswith("4"):
                assert list(response["content"]) == ["application/problem+json"], f"{case} {status}"
    for name, field in schema["components"]["schemas"]["JobSpec"]["properties"].items():
        assert field.get("description"), name
    assert schema["components"]["schemas"]["JobSpec"]["additionalProperties"] is False
    references = re.findall(r"#/components/schemas/(\w+)", str(schema))
    assert set(references) <= set(schema["components"]["schemas"])


_JSON = st.recursive(
    st.none() | st.booleans() | st.integers(-(2**70), 2**70) | st.floats() | st.text(max_size=20),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=10), inner, max_size=3),
    max_leaves=6,
)


def _value(schema: dict[str, Any], components: dict[str, Any]) -> st.SearchStrategy[Any]:
    """Values that fit a schema, and some that do not."""
    if "$ref" in schema:
        return _value(components[schema["$ref"].rsplit("/", 1)[1]], components)
    if "anyOf" in schema:
        return st.one_of(*(_value(item, components) for item in schema["anyOf"]))
    if "enum" in schema:
        return st.sampled_from(schema["enum"]) | _JSON
    if schema.get("type") == "object" and "properties" in schema:
        properties = {name: _value(item, components) for name, item in schema["properties"].items()}
        required = {name: properties.pop(name) for name in schema.get("required", ())}
        return st.fixed_dictionaries(required, optional=properties) | _JSON
    kinds: dict[str, st.SearchStrategy[Any]] = {
        "string": st.sampled_from(["", "a", "a.b", "x" * 300, "\0", "sha256:" + "0" * 64]) | st.text(max_size=30),
        "integer": st.integers(-2, 5) | st.integers(-(2**70), 2**70),
        "number": st.floats(),
        "boolean": st.booleans(),
        "array": st.lists(_value(schema["items"], components) if "items" in schema else _JSON, max_size=3),
        "object": st.dictionaries(st.text(max_size=10), _JSON, max_size=3),
        "null": st.none(),
    }
    return kinds.get(schema.get("type", ""), _JSON) | _JSON


async def test_random_requests_never_fail_the_server(api: Api) -> None:
    import json
    from urllib.parse import quote, urlencode

    job_id, master = await api.running()
    schema = api.app.openapi()
    components = schema["components"]["schemas"]
    operations = [item for item in _operations(api) if item[1] not in OPEN_PATHS]
    loop = asyncio.get_running_loop()
    statuses: set[int] = set()

    async def send(method: str, url: str, headers: dict[str, str], body: bytes | None) -> tuple[int, str]:
        answer = await api.http.request(method, url, headers=headers, content=body)
        statuses.add(answer.status_code)
        if answer.status_code >= 400 and method != "head":
            assert answer.json()["code"], answer.text
        return answer.status_code, answer.text

    @settings(
        max_examples=300,
        deadline=None,
        derandomize=True,
        database=None,
        phases=(Phase.generate,),
        suppress_health_check=list(HealthCheck),
    )
    @given(st.data())
    def requests(data: st.DataObject) -> None:
        method, path, operation = data.draw(st.sampled_from(operations))
        headers = dict(master.headers) if path.startswith("/internal/") else {}
        query: dict[str, str] = {}
        url = path
        for parameter in operation.get("parameters", ()):
            value = data.draw(_value(parameter["schema"], components))
            text = value if isinstance(value, str) else json.dumps(value)
            text = text.encode("utf-8", "replace").decode()
            if parameter["in"] == "path":
                known = job_id if parameter["name"] == "job_id" and data.draw(st.booleans()) else text
                url = url.replace("{" + parameter["name"] + "}", quote(known, safe="") or "x")
            elif data.draw(st.booleans()):
                if parameter["in"] == "query":
                    query[parameter["name"]] = text
                elif text.isascii() and text.isprintable():
                    headers[parameter["name"]] = text
        url = re.sub(r"\{.*?\}", quote(data.draw(st.text(min_size=1, max_size=20)).encode("utf-8", "replace")), url)
        body: bytes | None = None
        if "requestBody" in operation:
            content = operation["requestBody"]["content"].get("application/json", {"schema": {}})
            value = data.draw(_value(content["schema"], components))
            if isinstance(value, dict) and "epoch" in value and data.draw(st.booleans()):
                value["epoch"] = master.epoch
            body = json.dumps(value).encode()
            headers["Content-Type"] = "application/json"
        future = asyncio.run_coroutine_threadsafe(
            send(method, f"{url}?{urlencode(query)}" if query else url, headers, body), loop
        )
        status, text = future.result(timeout=60)
        no_agent = status == 503 and "there is no agent" in text  # and here is none
        assert status < 500 or no_agent, (method, url, query, headers, body, text)

    # Streams of living jobs would not end by themselves.
    await master.post("/state", to="SUCCEEDED", reason="over")
    await asyncio.to_thread(requests)
    assert {404, 422} <= statuses
    assert statuses & {200, 201, 204}

"""The description of the api, checked as a linter would; and its reference page, which needs nobody else."""

from __future__ import annotations

import gzip
import re
from collections import Counter
from collections.abc import Iterator
from typing import Any

import pytest
from jsonschema import Draft202012Validator

from elasticdl_api.openapi import operation_id
from elasticdl_api.web.auth import OPEN_PATHS
from tests.integration.api.conftest import Api

pytestmark = pytest.mark.integration
_METHODS = ("get", "put", "post", "patch", "delete")
_BOUNDED_BY = {
    "string": ("maxLength", "pattern", "format", "enum", "const"),
    "integer": ("maximum",),
    "number": ("maximum",),
}


def _operations(schema: dict[str, Any]) -> Iterator[tuple[str, str, dict[str, Any]]]:
    for path, operations in schema["paths"].items():
        for method, operation in operations.items():
            assert method in _METHODS, (method, path)
            yield method, path, operation


def _alternatives(schema: dict[str, Any]) -> Iterator[dict[str, Any]]:
    for one in schema.get("anyOf", [schema]):
        yield one
        if one.get("type") == "array":
            yield from _alternatives(one["items"])


async def test_every_operation_is_described(api: Api) -> None:
    schema = api.app.openapi()
    names = Counter(operation["operationId"] for _, _, operation in _operations(schema))
    assert [name for name, number in names.items() if number > 1] == []
    for method, path, operation in _operations(schema):
        case = f"{method} {path}"
        assert re.fullmatch(r"[a-z0-9_]+", operation["operationId"]), case
        assert operation["tags"], case
        assert 3 < len(operation["summary"]) < 80, case
        assert operation.get("description"), case
        found = set(re.findall(r"\{(\w+)\}", path))
        assert found == {one["name"] for one in operation.get("parameters", ()) if one["in"] == "path"}, case


async def test_every_refusal_is_declared(api: Api) -> None:
    for method, path, operation in _operations(api.app.openapi()):
        if path in OPEN_PATHS:
            continue
        wanted = {"401", "403", "422", "429", "500", "503"}
        wanted |= {"400", "408", "413", "415"} if "requestBody" in operation else set()
        wanted |= {"404"} if "{job_id}" in path and not path.startswith("/internal/") else set()
        assert wanted <= set(operation["responses"]), f"{method} {path}"
        for status, response in operation["responses"].items():
            assert response["description"], f"{method} {path} {status}"
            if status >= "400":
                assert list(response["content"]) == ["application/problem+json"], f"{method} {path} {status}"


async def test_every_parameter_has_a_description_and_bounds(api: Api) -> None:
    for method, path, operation in _operations(api.app.openapi()):
        if path.startswith("/internal/"):
            continue
        for parameter in operation.get("parameters", ()):
            case = f"{method} {path} {parameter['name']}"
            assert parameter.get("description") or parameter["schema"].get("description"), case
            for one in _alternatives(parameter["schema"]):
                bounds = _BOUNDED_BY.get(one.get("type", ""))
                # What names an object in a path is not there if it is too long.
                if bounds and parameter["in"] != "path":
                    assert any(name in one for name in bounds), f"{case}: {one}"


async def test_schemas_are_schemas_with_descriptions_and_true_examples(api: Api) -> None:
    schema = api.app.openapi()
    components = schema["components"]["schemas"]
    assert schema["openapi"].startswith("3.1")
    for name, one in components.items():
        Draft202012Validator.check_schema(one)
        assert one.get("description") or "enum" in one, name
        whole = {**one, "components": schema["components"]}
        for example in [*one.get("examples", ()), *([one["example"]] if "example" in one else [])]:
            assert list(Draft202012Validator(whole).iter_errors(example)) == [], name
        for field, inner in one.get("properties", {}).items():
            whole = {**inner, "components": schema["components"]}
            for example in inner.get("examples", ()):
                assert list(Draft202012Validator(whole).iter_errors(example)) == [], f"{name}.{field}"
    used = set(re.findall(r"#/components/schemas/(\w+)", str(schema)))
    assert used <= set(components)


async def test_answers_fit_their_description(api: Api) -> None:
    """Each GET that needs no more than a job is asked for, and its answer held against its schema."""
    job_id, master = await api.running(labels={"team": "a"})
    await master.heartbeat({"progress": {"records_done": 1}}, losses=[{"model_version": 1, "loss": 0.5}])
    await master.post("/evaluations", number=0, model_version=2, training_epoch=0, metrics={"accuracy": 0.9})
    await master.post("/artifacts", name="model.keras", path="model.keras", size=5, sha256="ab")
    await api.http.put("/cluster/reservations/x", json={"slots": 1})
    schema = api.app.openapi()
    asked = 0
    for method, path, operation in _operations(schema):
        content = operation["responses"].get("200", {}).get("content", {}).get("application/json")
        if method != "get" or content is None or path.startswith("/internal/"):
            continue
        url = path.replace("{job_id}", job_id).replace("{name}", "x")
        answer = await api.http.get(url)
        if answer.status_code == 404:
            continue
        assert answer.status_code == 200, f"{url} {answer.text}"
        whole = {**content["schema"], "components": schema["components"]}
        assert [error.message for error in Draft202012Validator(whole).iter_errors(answer.json())] == [], url
        for name, at in _times(answer.json()):
            assert re.fullmatch(r"\d{4}-\d\d-\d\dT\d\d:\d\d:\d\d\.\d{6}Z", at), f"{url} {name}: {at}"
        asked += 1
    assert asked > 12


def _times(value: Any, name: str = "") -> Iterator[tuple[str, str]]:
    if isinstance(value, dict):
        for key, inner in value.items():
            if key not in ("spec", "status", "manifest", "detail", "snapshot", "plan"):
                yield from _times(inner, key)
    elif isinstance(value, list):
        for inner in value:
            yield from _times(inner, name)
    elif isinstance(value, str) and (name == "at" or name.endswith("_at")):
        yield name, value


@pytest.mark.parametrize(
    ("method", "path", "name"),
    [
        ("get", "/jobs/{job_id}/artifacts/{name:path}", "get_jobs_by_job_id_artifacts_by_name"),
        ("post", "/scheduler/what-if", "post_scheduler_what_if"),
        ("get", "/jobs", "get_jobs"),
    ],
)
def test_operation_ids_stay(method: str, path: str, name: str) -> None:
    assert operation_id(method, path) == name


async def test_the_reference_comes_from_here_and_runs_no_inline_script(api: Api) -> None:
    page = await api.http.get("/docs", headers={"Authorization": ""})
    assert (page.status_code, page.headers["content-type"]) == (200, "text/html; charset=utf-8")
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\bon\w+=|\bstyle=|https?:", page.text) == []
    files = re.findall(r'(?:src|href)="(/[^"]+)"', page.text)
    assert len(files) == 4
    for path in files:
        assert path in OPEN_PATHS
        for coding in ("gzip", "identity"):
            headers = {"Authorization": "", "Accept-Encoding": coding}
            async with api.http.stream("GET", path, headers=headers) as answer:
                raw = b"".join([piece async for piece in answer.aiter_raw()])
            assert answer.status_code == 200, path
            body = gzip.decompress(raw) if answer.headers.get("content-encoding") == "gzip" else raw
            assert len(body) > 100, path
            again = await api.http.get(path, headers={**headers, "If-None-Match": answer.headers["etag"]})
            assert again.status_code == 304, path

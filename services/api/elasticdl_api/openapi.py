"""The description of the api: what FastAPI knows of the routes, and what all of them share."""

from __future__ import annotations

import http
import re
from collections.abc import Mapping
from typing import Any

from fastapi import FastAPI
from fastapi.openapi.utils import get_openapi

from elasticdl_api.schemas import jobs as schemas
from elasticdl_api.schemas import scheduling as scheduling_schemas
from elasticdl_api.web import problems
from elasticdl_api.web.auth import OPEN_PATHS
from elasticdl_api.web.route_scopes import rules_of
from elasticdl_api.web.versions import has_version, versioned

_WITH_BODY = (400, 408, 413, 415)
"""What any request with a body can be refused with."""
_PROBLEM = {problems.MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}}


def describe(app: FastAPI) -> dict[str, Any]:
    """The description of an application, made once."""
    if app.openapi_schema is None:
        schema = get_openapi(title=app.title, version=app.version, description=app.description, routes=app.routes)
        _add_components(schema.setdefault("components", {}))
        for path, operations in schema["paths"].items():
            for method, operation in operations.items():
                _complete(method, path, operation)
        for unused in ("HTTPValidationError", "ValidationError"):
            schema["components"]["schemas"].pop(unused, None)
        schema["paths"] = {versioned(path): operations for path, operations in schema["paths"].items()}
        app.openapi_schema = schema
    return app.openapi_schema


def operation_id(method: str, path: str) -> str:
    """A name that stays as long as the route does: ``get_jobs_by_job_id_events``."""
    words = re.sub(r"\{(\w+)(:\w+)?\}", r"by_\1", path)
    return "_".join([method, *re.findall(r"\w+", words.replace("-", "_"))])


def _add_components(components: dict[str, Any]) -> None:
    components.setdefault("schemas", {})["JobSpec"] = schemas.spec_schema()
    components["schemas"]["JobChanges"] = schemas.JobChanges.model_json_schema()
    question = scheduling_schemas.WhatIf.model_json_schema(ref_template="#/components/schemas/{model}")
    components["schemas"] |= question.pop("$defs") | {"WhatIf": question}
    components["securitySchemes"] = {
        "user": {"type": "http", "scheme": "bearer", "description": "The admin token, or one of a namespace."},
        "master": {"type": "http", "scheme": "bearer", "description": "The job token of a master."},
    }


def _complete(method: str, path: str, operation: dict[str, Any]) -> None:
    """Adds what is true of every route of its kind."""
    operation["operationId"] = operation_id(method, path)
    responses = operation["responses"]
    if path not in OPEN_PATHS:
        operation["security"] = [_security(method.upper(), path)]
        operation["x-of-the-cluster"] = any(rule.cluster for rule in rules_of(method.upper(), path))
        for status in (422, *(_WITH_BODY if "requestBody" in operation else ())):
            responses.setdefault(str(status), {"description": http.HTTPStatus(status).phrase, "content": _PROBLEM})
    if has_version(path):
        operation["x-alias"] = path
        if method == "get":
            responses["304"] = {"description": "It is what If-None-Match names"}
    _problems_only(responses)
    operation["responses"] = dict(sorted(responses.items()))


def _security(method: str, path: str) -> dict[str, list[str]]:
    """The scheme that opens a route, and what a token needs there."""
    if path.startswith("/internal/"):
        return {"master": []}
    return {"user": sorted({str(rule.scope) for rule in rules_of(method, path)})}


def _problems_only(responses: Mapping[str, dict[str, Any]]) -> None:
    """FastAPI declares its own shape of 422, which this api never sends."""
    for status, response in responses.items():
        content = response.get("content", {})
        if status == "422" and problems.MEDIA_TYPE not in content:
            response["content"] = _PROBLEM
        elif problems.MEDIA_TYPE in content:
            response["content"] = {problems.MEDIA_TYPE: content[problems.MEDIA_TYPE]}

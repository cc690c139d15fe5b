"""Turns what went wrong over HTTP into the exceptions of ``elasticdl_core.errors``."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from elasticdl.client.messages import NoResponse, Request, Response
from elasticdl_core.errors import (
    ConflictError,
    DataError,
    ElasticDLError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    Problem,
    SpecError,
    UnauthenticatedError,
    UnavailableError,
    UserCodeError,
)

_BY_CODE: Mapping[str, type[ElasticDLError]] = {
    kind.code: kind
    for kind in (
        ConflictError,
        DataError,
        FencedError,
        InvalidInputError,
        NotFoundError,
        PermissionDeniedError,
        UnauthenticatedError,
        UnavailableError,
        UserCodeError,
    )
}
_BY_STATUS: Mapping[int, type[ElasticDLError]] = {
    400: InvalidInputError,
    401: UnauthenticatedError,
    403: PermissionDeniedError,
    404: NotFoundError,
    408: UnavailableError,
    409: ConflictError,
    412: ConflictError,
    413: InvalidInputError,
    415: InvalidInputError,
    422: InvalidInputError,
    429: UnavailableError,
    502: UnavailableError,
    503: UnavailableError,
    504: UnavailableError,
}
_FIXES: Mapping[type[ElasticDLError], str] = {
    UnauthenticatedError: "give the cluster's token: set ELASTICDL_TOKEN, or run where `elasticdl up` was run",
    UnavailableError: "wait a moment and try again; `elasticdl status` tells how the cluster is",
}


def error_of(response: Response, request: Request) -> ElasticDLError:
    """The exception that an error response stands for: by its problem code, else by its HTTP status."""
    problem = _problem(response)
    code = problem.get("code")
    listed = problem.get("problems")
    if code == SpecError.code and isinstance(listed, list) and all(isinstance(item, dict) for item in listed):
        return SpecError([_listed(item) for item in listed])
    kind = _BY_CODE.get(str(code)) or _BY_STATUS.get(response.status, ElasticDLError)
    message = str(problem.get("detail") or problem.get("title") or "")
    if not message:
        text = response.body[:300].decode("utf-8", "replace").strip()
        message = f"{request.method} {request.path} gave HTTP {response.status}" + (f": {text}" if text else "")
    fix = str(problem.get("fix") or _FIXES.get(kind, ""))
    if kind is UserCodeError:
        return UserCodeError(message, fix=fix, traceback=str(problem.get("traceback") or ""))
    return kind(message, fix=fix)


def unreachable(failure: NoResponse, url: str) -> UnavailableError:
    """The exception for a request that got no response."""
    return UnavailableError(
        f"the API at {url} does not answer: {failure.message}",
        fix="start a cluster with `elasticdl up`, or set ELASTICDL_API_URL to one that runs",
    )


def _problem(response: Response) -> Mapping[str, Any]:
    if "json" not in response.headers.get("content-type", ""):
        return {}
    try:
        problem = json.loads(response.body)
    except ValueError:
        return {}
    return problem if isinstance(problem, dict) else {}


def _listed(item: Mapping[str, Any]) -> Problem:
    return Problem(str(item.get("field", "")), str(item.get("message", "")), str(item.get("fix", "")))

"""Errors over HTTP: problem details (RFC 9457), from one table.

Every problem has ``type``, ``title``, ``status``, ``detail``, ``code``, ``fix`` and ``request_id``; a refused
specification has ``problems`` too, one entry a field, and a refused statement the ``position`` of what is wrong.
"""

from __future__ import annotations

import http
from typing import Any

import structlog
from fastapi import FastAPI, Request
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse
from pydantic import BaseModel, Field
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect
from starlette.responses import Response

from elasticdl_api.web.methods import allowed_methods
from elasticdl_api.web.request_ids import HEADER, current_request_id
from elasticdl_api.web.safe_headers import add_headers
from elasticdl_core.errors import (
    ConflictError,
    ElasticDLError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    SpecError,
    StatementError,
    UnauthenticatedError,
    UnavailableError,
    UserCodeError,
)

MEDIA_TYPE = "application/problem+json"
RETRY_AFTER_S = 2
_log = structlog.get_logger(__name__)


class LeaseHeldError(ConflictError):
    """Another holder's lease lives."""

    code = "held"


class IdempotencyError(ConflictError):
    """The key was used with another body."""

    code = "idempotency_conflict"


class PreconditionFailedError(ConflictError):
    """The object changed since the caller read it."""

    code = "precondition_failed"


class MalformedError(InvalidInputError):
    """The body is not what its type says."""

    code = "malformed"


class TooLargeError(InvalidInputError):
    """The body is larger than allowed."""

    code = "too_large"


class TooSlowError(InvalidInputError):
    """The body did not come in time."""

    code = "too_slow"


class MediaTypeError(InvalidInputError):
    """The body is of a type that the route does not take."""

    code = "unsupported_media_type"


class NotAcceptableError(InvalidInputError):
    """The caller takes no media type that the route can give."""

    code = "not_acceptable"


class TooManyRequestsError(UnavailableError):
    """The caller asks more often, or has more streams open, than it may.

    Args:
        message: what happened.
        fix: what to do next.
        retry_after_s: seconds after which it may ask again.
    """

    code = "too_many_requests"

    def __init__(self, message: str, *, fix: str, retry_after_s: int) -> None:
        super().__init__(message, fix=fix)
        self.retry_after_s = retry_after_s


_STATUS: tuple[tuple[type[ElasticDLError], int], ...] = (
    (TooLargeError, 413),
    (TooSlowError, 408),
    (MediaTypeError, 415),
    (NotAcceptableError, 406),
    (MalformedError, 400),
    (PreconditionFailedError, 412),
    (InvalidInputError, 422),
    (NotFoundError, 404),
    (FencedError, 409),
    (ConflictError, 409),
    (UnauthenticatedError, 401),
    (PermissionDeniedError, 403),
    (TooManyRequestsError, 429),
    (UnavailableError, 503),
)


class FieldProblem(BaseModel):
    """One thing that is wrong with the request."""

    field: str = Field(description="The field, or its place in the request.", examples=["minibatch_size"])
    message: str = Field(description="The fault of the field.", examples=["'64' is not a whole number"])
    fix: str = Field(description="The remedy: what to give instead.", examples=["give a whole number"])


class StatementPlace(BaseModel):
    """The place of what is wrong in a statement; both count from 1."""

    line: int = Field(examples=[2])
    column: int = Field(examples=[10])


class ProblemDetails(BaseModel):
    """Why a request failed, and what to do about it (RFC 9457)."""

    type: str = Field(description="A name of this kind of problem.", examples=["urn:elasticdl:problem:not_found"])
    title: str = Field(description="The status in words.", examples=["Not Found"])
    status: int = Field(description="The HTTP status.", examples=[404])
    detail: str = Field(description="The failure, and its place.", examples=["there is no job digits-x7k2p9"])
    code: str = Field(description="The kind of problem, for programs.", examples=["not_found"])
    fix: str = Field(description="The next step.", examples=["list the jobs: `elasticdl jobs list`, or GET /jobs"])
    problems: list[FieldProblem] | None = Field(default=None, description="All that is wrong, field by field.")
    position: StatementPlace | None = Field(default=None, description="Of what is wrong in a statement.")
    request_id: str = Field(
        default="", description="Names the request in the server's log.", examples=["5f0c1b2a3d4e4c6f"]
    )
    traceback: str | None = Field(default=None, description="The user's part of a traceback, for model code.")


def status_of(error: ElasticDLError) -> int:
    """The HTTP status that stands for an exception."""
    return next((status for kind, status in _STATUS if isinstance(error, kind)), 500)


def problem_response(error: ElasticDLError) -> JSONResponse:
    """The response that stands for an exception."""
    extra: dict[str, Any] = {}
    if isinstance(error, SpecError):
        extra["problems"] = [{"field": p.field, "message": p.message, "fix": p.fix} for p in error.problems]
    if isinstance(error, StatementError):
        extra["position"] = {"line": error.line, "column": error.column}
    if isinstance(error, UserCodeError) and error.traceback:
        extra["traceback"] = error.traceback
    response = _response(status_of(error), error.code, error.message, error.fix, extra)
    if isinstance(error, TooManyRequestsError):
        response.headers["Retry-After"] = str(error.retry_after_s)
    return response


def install(app: FastAPI) -> None:
    """Makes every failure of the application a problem."""
    app.add_exception_handler(ElasticDLError, _on_error)
    app.add_exception_handler(RequestValidationError, _on_validation)
    app.add_exception_handler(HTTPException, _on_http)
    app.add_exception_handler(ClientDisconnect, _on_disconnect)
    app.add_exception_handler(Exception, _on_unexpected)


async def _on_error(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, ElasticDLError)
    return problem_response(error)


async def _on_validation(_request: Request, error: Exception) -> JSONResponse:
    assert isinstance(error, RequestValidationError)
    problems = []
    malformed = False
    for item in error.errors():
        place = [str(part) for part in item["loc"]]
        malformed = malformed or item["type"] == "json_invalid"
        problems.append({"field": ".".join(place[1:]) or place[0], "message": item["msg"], "fix": _fix_of(item)})
    detail = "; ".join(f"{p['field']}: {p['message']}" for p in problems)
    status, code = (400, "malformed") if malformed else (422, "invalid_input")
    return _response(status, code, detail, "correct the named parts of the request", {"problems": problems})


def _fix_of(item: dict[str, Any]) -> str:
    if item["type"] == "missing":
        return "give it"
    if item["type"] == "extra_forbidden":
        return "remove it; the API reference at /docs lists what there is"
    return "see the API reference at /docs"


async def _on_http(request: Request, error: Exception) -> Response:
    assert isinstance(error, HTTPException)
    allowed = allowed_methods(request) if error.status_code == 405 else ""
    if allowed and request.method == "OPTIONS":
        return Response(status_code=204, headers={"Allow": allowed})
    fixes = {
        404: "the API reference at /docs lists all paths",
        405: "use a method that the Allow header names",
        400: "send a well-formed request",
    }
    codes = {400: "malformed", 404: "not_found", 405: "method_not_allowed"}
    detail = {
        404: f"there is nothing at {request.url.path}",
        405: f"{request.url.path} does not take {request.method}",
    }.get(error.status_code, str(error.detail))
    response = _response(
        error.status_code, codes.get(error.status_code, "http"), detail, fixes.get(error.status_code, ""), {}
    )
    response.headers.update(error.headers or {})
    if allowed:
        response.headers["Allow"] = allowed
    return response


async def _on_disconnect(request: Request, _error: Exception) -> JSONResponse:
    _log.info("the client left before its request had ended", method=request.method, path=request.url.path)
    return _response(400, "malformed", "the request was not ended", "send it again", {})


async def _on_unexpected(request: Request, error: Exception) -> JSONResponse:
    _log.error("request failed", method=request.method, path=request.url.path, exc_info=error)
    response = _response(
        500, "internal", f"the server failed: {type(error).__name__}", "report it with the server's log", {}
    )
    add_headers(response.headers, status=response.status_code)  # no middleware sees this answer
    return response


def _response(status: int, code: str, detail: str, fix: str, extra: dict[str, Any]) -> JSONResponse:
    headers = {HEADER: current_request_id()} if current_request_id() else {}
    if status == 401:
        headers["WWW-Authenticate"] = 'Bearer realm="elasticdl"'
    if status == 503:
        headers["Retry-After"] = str(RETRY_AFTER_S)
    content = problem_content(status, code, detail, fix)
    return JSONResponse({**content, **extra}, status_code=status, headers=headers, media_type=MEDIA_TYPE)


def problem_content(status: int, code: str, detail: str, fix: str) -> dict[str, Any]:
    """The content of every problem."""
    return {
        "type": f"urn:elasticdl:problem:{code}",
        "title": http.HTTPStatus(status).phrase,
        "status": status,
        "detail": _printable(detail),
        "code": code,
        "fix": _printable(fix),
        "request_id": current_request_id(),
    }


def _printable(text: str) -> str:
    return text.encode("utf-8", "replace").decode()


def declared(*statuses: int) -> dict[int | str, dict[str, Any]]:
    """The error responses of a route for OpenAPI: those named, and those that every route can give."""
    return {
        status: {
            "model": ProblemDetails,
            "description": http.HTTPStatus(status).phrase,
            "content": {MEDIA_TYPE: {"schema": {"$ref": "#/components/schemas/ProblemDetails"}}},
        }
        for status in sorted({*statuses, 401, 403, 429, 500, 503})
    }

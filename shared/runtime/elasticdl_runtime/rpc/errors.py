"""The one table between our exceptions and gRPC status codes, in both directions."""

from __future__ import annotations

import json
from urllib.parse import quote

import grpc
import structlog

from elasticdl_core.errors import (
    ConflictError,
    DataError,
    ElasticDLError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    PermissionDeniedError,
    UnauthenticatedError,
    UnavailableError,
    UserCodeError,
)

_TABLE: tuple[tuple[type[ElasticDLError], grpc.StatusCode], ...] = (
    (FencedError, grpc.StatusCode.ABORTED),
    (UserCodeError, grpc.StatusCode.INVALID_ARGUMENT),
    (DataError, grpc.StatusCode.INVALID_ARGUMENT),
    (InvalidInputError, grpc.StatusCode.INVALID_ARGUMENT),
    (NotFoundError, grpc.StatusCode.NOT_FOUND),
    (ConflictError, grpc.StatusCode.FAILED_PRECONDITION),
    (UnauthenticatedError, grpc.StatusCode.UNAUTHENTICATED),
    (PermissionDeniedError, grpc.StatusCode.PERMISSION_DENIED),
    (UnavailableError, grpc.StatusCode.UNAVAILABLE),
)
_BACK = tuple((kind, status) for kind, status in _TABLE if kind not in (UserCodeError, DataError))
_NUMBERED = {status.value[0]: status for status in grpc.StatusCode}
_log = structlog.get_logger(__name__)
_MOST = 6000
"""Bytes of details, as they are sent; gRPC refuses metadata of more than 8 KiB."""
_SHORT = 500
"""Details of so many characters are never too long, whatever they are sent as."""
_TRANSIENT = {
    grpc.StatusCode.UNAVAILABLE,
    grpc.StatusCode.DEADLINE_EXCEEDED,
    grpc.StatusCode.RESOURCE_EXHAUSTED,
    grpc.StatusCode.CANCELLED,
}


def to_status(error: ElasticDLError) -> tuple[grpc.StatusCode, str]:
    """The status and the details that stand for an exception on the wire."""
    details = _details(error.message, error.fix)
    for kind, status in _TABLE:
        if isinstance(error, kind):
            return status, details
    return grpc.StatusCode.INTERNAL, details


def _details(message: str, fix: str) -> str:
    """A message and a fix as details; shortened where gRPC would drop the status for the length of its details."""
    while True:
        details = json.dumps({"message": message, "fix": fix})
        if len(details) <= _SHORT or len(quote(details)) <= _MOST:
            return details
        message, fix = _halved(message), _halved(fix)


def _halved(text: str) -> str:
    return text if len(text) < _SHORT // 20 else f"{text[: len(text) // 2]}..."


def answer_to(error: Exception, method: str) -> tuple[grpc.StatusCode, str]:
    """The status and the details that answer a call whose servicer raised; what nobody expects is logged."""
    if isinstance(error, ElasticDLError):
        return to_status(error)
    _log.error("rpc failed", method=method, exc_info=error)
    return grpc.StatusCode.INTERNAL, _details(f"{method}: {type(error).__name__}: {error}", "see the server's log")


def from_status(error: grpc.aio.AioRpcError, method: str) -> ElasticDLError:
    """The exception that stands for a failed call."""
    return from_code(error.code(), error.details() or "", method)


def from_number(number: int, details: str, method: str) -> ElasticDLError:
    """The exception that stands for a status, by its number, and its details."""
    return from_code(_NUMBERED.get(number, grpc.StatusCode.UNKNOWN), details, method)


def from_code(status: grpc.StatusCode, details: str, method: str) -> ElasticDLError:
    """The exception that stands for a status and its details."""
    try:
        data = json.loads(details)
        message, fix = str(data["message"]), str(data["fix"])
    except (ValueError, KeyError, TypeError):
        message, fix = f"{method}: {status.name.lower()}: {details}", ""
    if status in _TRANSIENT:
        return UnavailableError(message, fix=fix or "it is tried again")
    for kind, code in _BACK:
        if code is status:
            return kind(message, fix=fix)
    return ElasticDLError(message, fix=fix)

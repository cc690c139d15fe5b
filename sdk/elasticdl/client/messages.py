"""One HTTP exchange, as data: the request, and the response or why there is none."""

from __future__ import annotations

import os
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request.

    Attributes:
        method: the HTTP method.
        path: path below the API's address, with a leading slash.
        params: query parameters; a list repeats its name.
        json: the JSON body, if any.
        content: the raw body, if any.
        headers: headers beyond those that every request has.
        idempotent: whether doing it twice is the same as doing it once, so that it may be tried again.
        read_timeout_s: longest silence that is waited out, in seconds.
    """

    method: str
    path: str
    params: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    json: Any = None
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    idempotent: bool = True
    read_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Response:
    """A response.

    Attributes:
        status: the HTTP status.
        headers: its headers, names in lower case.
        body: the body; empty while it is still being streamed.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class NoResponse:
    """No response came, or it broke off.

    Attributes:
        message: what went wrong.
        sent: whether the server may have seen the request.
    """

    message: str
    sent: bool


def plain(value: Any) -> Any:
    """A value as JSON data: paths as texts, scalars and arrays of NumPy and its like as numbers and lists."""
    if isinstance(value, os.PathLike):
        return os.fspath(value)
    if hasattr(value, "dtype") and hasattr(value, "tolist"):
        value = value.tolist()
    if isinstance(value, Mapping):
        return {key: plain(item) for key, item in value.items()}
    return [plain(item) for item in value] if isinstance(value, list | tuple) else value

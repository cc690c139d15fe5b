"""JSON that Postgres can hold: strict on what users send, forgiving on what our own processes report."""

from __future__ import annotations

import json
import math
import re
from dataclasses import dataclass
from typing import Any

from fastapi import Request

from elasticdl_api.web.problems import MalformedError, MediaTypeError, TooLargeError
from elasticdl_core.json_numbers import to_json

BODY_LIMIT = 1 << 20
BIGINT = 2**63 - 1
SHOWN_DEPTH = 70
"""Objects and arrays within each other that a value of the database is shown with."""
_TOKEN = re.compile(rb'"(?:[^"\\]++|\\.)*+(?:"|\\?\Z)|[\[\]{},:]', re.DOTALL)
"""A string, also one without an end, or what gives JSON its shape."""


@dataclass(frozen=True)
class JsonBounds:
    """Bounds on a JSON text.

    Attributes:
        depth: objects and arrays within each other.
        values: values in all, keys included.
    """

    depth: int
    values: int


def check_shape(data: bytes | bytearray, bounds: JsonBounds) -> None:
    """Looks at the bytes of a JSON text before it is parsed; whether it is JSON at all is for the parser.

    Raises:
        MalformedError: it is nested too deeply, or has too many values.
    """
    depth = 0
    for tokens, found in enumerate(_TOKEN.finditer(data), 1):
        first = data[found.start()]
        if first in b"[{":
            depth += 1
            if depth > bounds.depth:
                raise MalformedError(
                    f"the body is nested more than {bounds.depth} levels deep", fix="send flatter JSON"
                )
        elif first in b"]}":
            depth -= 1
        if tokens > 4 * bounds.values:
            # A value has a comma or a colon, perhaps a bracket or two, and may be a string.
            raise MalformedError(f"the body has more than {bounds.values} values", fix="send less")


async def read_json(request: Request, *, limit: int = BODY_LIMIT) -> Any:
    """Reads a JSON body, strictly.

    Raises:
        MediaTypeError: the body is not declared as JSON.
        TooLargeError: it is larger than ``limit`` bytes.
        MalformedError: it is not JSON, or has a value that JSON or the database does not know.
    """
    media_type = request.headers.get("content-type", "").partition(";")[0].strip().lower()
    if media_type != "application/json":
        raise MediaTypeError(
            f"the body is declared as {media_type or 'nothing'}", fix="send 'Content-Type: application/json'"
        )
    body = bytearray()
    async for piece in request.stream():
        body += piece
        if len(body) > limit:
            raise TooLargeError(f"the body is larger than {limit} bytes", fix="send less")
    return parse_json(bytes(body))


def parse_json(data: bytes) -> Any:
    """Parses strict JSON in UTF-8 that a ``jsonb`` column can hold.

    Raises:
        MalformedError: it is not that.
    """
    try:
        value = json.loads(data.decode("utf-8"), parse_constant=_refuse_constant, object_pairs_hook=_unique)
        _check(value)
    except UnicodeDecodeError:
        raise MalformedError("the body is not UTF-8", fix="send JSON in UTF-8") from None
    except RecursionError:
        raise MalformedError("the body is nested too deeply", fix="send flatter JSON") from None
    except ValueError as error:
        raise MalformedError(f"the body is not JSON: {error}", fix="send a JSON object") from None
    return value


def _refuse_constant(name: str) -> Any:
    raise ValueError(f"{name} is no JSON value")


def _unique(pairs: list[tuple[str, Any]]) -> dict[str, Any]:
    result: dict[str, Any] = {}
    for key, value in pairs:
        if key in result:
            raise ValueError(f"the key {key!r} occurs twice")
        result[key] = value
    return result


def _check(value: Any) -> None:
    if isinstance(value, str):
        if "\0" in value or any("\ud800" <= char <= "\udfff" for char in value):
            raise ValueError("a string holds a NUL or a lone surrogate")
    elif isinstance(value, float):
        if not math.isfinite(value):
            raise ValueError("a number is too large")
    elif isinstance(value, int) and abs(value) > BIGINT:
        raise ValueError("a whole number is too large")
    elif isinstance(value, dict):
        for key, item in value.items():
            _check(key)
            _check(item)
    elif isinstance(value, list):
        for item in value:
            _check(item)


def prune(value: Any, depth: int = SHOWN_DEPTH) -> Any:
    """A value of the database as it can be shown: what is nested more deeply than any door lets in is left out.

    Whoever shows it goes through it level by level, and one row that is too deep would break a list of many. What is
    not too deep, as nearly all is, is given back itself.
    """
    return _cut(value, depth) if _is_deeper(value, depth) else value


def _is_deeper(value: Any, depth: int) -> bool:
    if not isinstance(value, dict | list):
        return False
    items = value.values() if isinstance(value, dict) else value
    return depth <= 0 or any(_is_deeper(item, depth - 1) for item in items)


def _cut(value: Any, depth: int) -> Any:
    if isinstance(value, dict):
        return {key: _cut(item, depth - 1) for key, item in value.items()} if depth else "..."
    if isinstance(value, list):
        return [_cut(item, depth - 1) for item in value] if depth else "..."
    return value


def clean(value: Any) -> Any:
    """The value with what JSON or Postgres cannot hold replaced: NaN and infinities by strings, NULs dropped."""
    if isinstance(value, str):
        return value.replace("\0", "").encode("utf-8", "replace").decode()
    if isinstance(value, float):
        return to_json(value)
    if isinstance(value, dict):
        return {clean(str(key)): clean(item) for key, item in value.items()}
    if isinstance(value, list | tuple):
        return [clean(item) for item in value]
    return value

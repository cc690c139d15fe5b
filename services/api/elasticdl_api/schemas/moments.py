"""One way to write times: RFC 3339 in UTC with a Z, to the microsecond, everywhere."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated

from pydantic import PlainSerializer, WithJsonSchema


def moment_text(at: datetime) -> str:
    """A time as the api writes it, ``2026-01-31T12:00:00.000000Z``."""
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


Moment = Annotated[
    datetime,
    PlainSerializer(moment_text, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": ["2026-01-31T12:00:00.000000Z"]}),
]

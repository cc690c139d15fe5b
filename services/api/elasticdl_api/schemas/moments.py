"""One way to write times: RFC 3339 in UTC with a Z, to the microsecond, everywhere."""

from __future__ import annotations

from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import PlainSerializer, WithJsonSchema
from sqlalchemy import func


def moment_text(at: datetime) -> str:
    """A time as the api writes it, ``2026-01-31T12:00:00.000000Z``."""
    return at.astimezone(UTC).isoformat(timespec="microseconds").replace("+00:00", "Z")


def moment_sql(column: Any) -> Any:
    """The same, written by Postgres."""
    return func.to_char(func.timezone("UTC", column), 'YYYY-MM-DD"T"HH24:MI:SS.US"Z"')


Moment = Annotated[
    datetime,
    PlainSerializer(moment_text, return_type=str, when_used="json"),
    WithJsonSchema({"type": "string", "format": "date-time", "examples": ["2026-01-31T12:00:00.000000Z"]}),
]

"""One way to write times: RFC 3339 in UTC with a Z, to the microsecond; what is read may have another zone."""

from __future__ import annotations

import re
from datetime import UTC, datetime
from typing import Annotated, Any

from pydantic import BeforeValidator, PlainSerializer, WithJsonSchema
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


_YEAR = r"(19[7-9][0-9]|[2-8][0-9]{3}|9[0-8][0-9]{2}|99[0-8][0-9]|999[0-8])"
_GIVEN = (
    rf"^{_YEAR}-[0-9]{{2}}-[0-9]{{2}}[Tt][0-9]{{2}}:[0-9]{{2}}:[0-9]{{2}}(\.[0-9]+)?([Zz]|[+-][0-9]{{2}}:[0-9]{{2}})$"
)


def _with_zone(value: Any) -> Any:
    if isinstance(value, str) and not re.fullmatch(_GIVEN, value):
        raise ValueError("it is no time with a zone, from 1970 on; write it as 2026-01-31T12:00:00Z")
    return value


GivenMoment = Annotated[
    datetime,
    BeforeValidator(_with_zone),
    WithJsonSchema({"type": "string", "format": "date-time", "pattern": _GIVEN}),
]
"""A time in a request's query."""

"""How logs look, and the variable that says so: apart from what writes them, for the command line's sake."""

from __future__ import annotations

import enum

FORMAT_VARIABLE = "ELASTICDL_LOG_FORMAT"


class LogFormat(enum.StrEnum):
    """How lines look."""

    TEXT = "text"
    JSON = "json"

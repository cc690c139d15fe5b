"""Formats of logs, and their variable: apart from what writes them, for the command line's sake."""

from __future__ import annotations

import enum

FORMAT_VARIABLE = "ELASTICDL_LOG_FORMAT"


class LogFormat(enum.StrEnum):
    """Formats of lines."""

    TEXT = "text"
    JSON = "json"

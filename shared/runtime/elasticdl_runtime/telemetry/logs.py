"""Structured logs: one line an event on stderr, as text for people or as JSON for machines.

Each line says of which process it is, and what the thread or task that wrote it works on. What the user's code prints
is not touched.
"""

from __future__ import annotations

import logging
import os
import re
import sys
from collections.abc import Callable, MutableMapping
from typing import Any

import structlog

from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime.telemetry import work
from elasticdl_runtime.telemetry.log_format import FORMAT_VARIABLE, LogFormat

LEVEL_VARIABLE = "ELASTICDL_LOG_LEVEL"
_HIDDEN = "***"
_SECRET_NAMES = re.compile(r"(^|_)(token|secret|password|authorization|job_token|cookie)$")
_URL_PASSWORD = re.compile(r"(\b[a-z][a-z0-9+.-]*://[^\s:/@]*):[^\s@/]+@")
_BEARER = re.compile(r"\b([Bb]earer) [\w.~+/=-]{8,}")
_Line = MutableMapping[str, Any]


_FORMATS = {**{str(one): one for one in LogFormat}, "plain": LogFormat.TEXT}
"""By what the variable says; ``plain`` is what earlier versions called text."""
_handlers: list[logging.Handler] = []


def configure_logs(**bound: object) -> None:
    """Sets up structlog and the standard library's logging for this process.

    ``ELASTICDL_LOG_FORMAT`` is ``text`` (default) or ``json``; ``ELASTICDL_LOG_LEVEL`` a level's name.

    Args:
        bound: what every line of this process carries, e.g. ``role="master", job="digits-x7k2p9"``.

    Raises:
        SystemExit: a variable has a value that is unknown.
    """
    try:
        level = _level("INFO")
        formatter = _configure_structlog(bound, level)
    except InvalidInputError as error:
        print(f"error: {error}", file=sys.stderr)
        raise SystemExit(64) from None
    _take_standard_logging(formatter, max(level, logging.WARNING))


def configure_local_logs() -> None:
    """Sets up structlog for a local run, which reports what matters by itself: its log has warnings by default.

    The standard library's logging is left to the module, as it would be without us.

    Raises:
        InvalidInputError: a variable has a value that is unknown.
    """
    _configure_structlog({}, _level("WARNING"))


def _configure_structlog(bound: dict[str, object], level: int) -> logging.Formatter:
    chosen = _format()
    beginning: list[Callable[[Any, str, _Line], _Line]] = [
        _of_process(bound),
        _of_work,
        structlog.processors.add_log_level,
        structlog.processors.TimeStamper(fmt="iso", utc=True),
        structlog.processors.format_exc_info,
        _without_secrets,
    ]
    renderer: Any = structlog.processors.JSONRenderer(default=str)
    if chosen is LogFormat.TEXT:
        renderer = structlog.dev.ConsoleRenderer(colors=False)
    structlog.configure(
        processors=[structlog.contextvars.merge_contextvars, *beginning, renderer],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    return structlog.stdlib.ProcessorFormatter(
        foreign_pre_chain=[structlog.stdlib.add_logger_name, *beginning],
        processors=[structlog.stdlib.ProcessorFormatter.remove_processors_meta, renderer],
    )


def _take_standard_logging(formatter: logging.Formatter, level: int) -> None:
    """Formats libraries' logs alike, unless their destination was chosen already."""
    root = logging.getLogger()
    for ours in _handlers:
        root.removeHandler(ours)
    _handlers.clear()
    if root.handlers:
        return
    handler = logging.StreamHandler(sys.stderr)
    handler.setFormatter(formatter)
    root.addHandler(handler)
    root.setLevel(level)
    _handlers.append(handler)


def _level(default: str) -> int:
    given = os.environ.get(LEVEL_VARIABLE) or default
    known = logging.getLevelNamesMapping()
    if given.upper() not in known:
        raise InvalidInputError(f"{LEVEL_VARIABLE}: {given!r} is no level", fix=f"give one of {', '.join(known)}")
    return known[given.upper()]


def _format() -> LogFormat:
    given = os.environ.get(FORMAT_VARIABLE) or LogFormat.TEXT
    if given not in _FORMATS:
        raise InvalidInputError(f"{FORMAT_VARIABLE}: {given!r} is unknown", fix="give text or json")
    return _FORMATS[given]


def _of_process(bound: dict[str, object]) -> Callable[[Any, str, _Line], _Line]:
    # Not by context variables: threads begin with none.
    return lambda _logger, _method, line: {**bound, **line}


def _of_work(_logger: Any, _method: str, line: _Line) -> _Line:
    return {**work.present(), **line}


def _without_secrets(_logger: Any, _method: str, line: _Line) -> _Line:
    for name, value in line.items():
        if isinstance(value, str):
            hidden = bool(value) and _SECRET_NAMES.search(name) is not None
            line[name] = (
                _HIDDEN if hidden else _BEARER.sub(rf"\1 {_HIDDEN}", _URL_PASSWORD.sub(rf"\1:{_HIDDEN}@", value))
            )
    return line

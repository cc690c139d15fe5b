"""Structured logs: one line an event on stderr, JSON for machines or plain for people."""

from __future__ import annotations

import logging
import os
import sys

import structlog


def configure_logs(**bound: object) -> None:
    """Sets up structlog and the standard library's logging for this process.

    ``ELASTICDL_LOG_FORMAT`` is ``json`` (default) or ``plain``; ``ELASTICDL_LOG_LEVEL`` a level's name.

    Args:
        bound: key-value pairs that every line carries, e.g. ``service="master", job="digits-x7k2p9"``.
    """
    level = logging.getLevelNamesMapping().get(os.environ.get("ELASTICDL_LOG_LEVEL", "INFO").upper(), logging.INFO)
    plain = os.environ.get("ELASTICDL_LOG_FORMAT", "json") == "plain"
    renderer = structlog.dev.ConsoleRenderer(colors=False) if plain else structlog.processors.JSONRenderer()
    structlog.configure(
        processors=[
            structlog.contextvars.merge_contextvars,
            structlog.processors.add_log_level,
            structlog.processors.TimeStamper(fmt="iso", utc=True),
            structlog.processors.format_exc_info,
            renderer,
        ],
        wrapper_class=structlog.make_filtering_bound_logger(level),
        logger_factory=structlog.WriteLoggerFactory(file=sys.stderr),
        cache_logger_on_first_use=False,
    )
    structlog.contextvars.bind_contextvars(**bound)
    logging.basicConfig(
        level=max(level, logging.WARNING), stream=sys.stderr, format="%(levelname)s %(name)s: %(message)s"
    )

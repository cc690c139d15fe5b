"""Loggers for older model modules: the standard library's."""

from __future__ import annotations

import logging

__all__ = ["default_logger", "get_logger"]


def get_logger(name: str, level: str | int = "INFO") -> logging.Logger:
    """A logger of a name, at a level."""
    logger = logging.getLogger(name)
    logger.setLevel(level)
    return logger


default_logger = get_logger("elasticdl")

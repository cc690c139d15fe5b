"""Processes of the api for what tenants sent: they are handed no secret, and answer on their standard output."""

from __future__ import annotations

import os
import subprocess
import sys
from typing import Any

_ENVIRONMENT = ("LD_LIBRARY_PATH",)
"""Variables that an interpreter may need to start."""


def command_of(module: str, *arguments: str) -> list[str]:
    """The command of a module: neither the environment nor the present directory has a say in what is imported."""
    return [sys.executable, "-E", "-P", "-X", "utf8", "-m", module, *arguments]


def options() -> dict[str, Any]:
    """The options of ``subprocess.Popen`` and of its twin in asyncio."""
    return {
        "stdin": subprocess.PIPE,
        "stdout": subprocess.PIPE,
        "stderr": subprocess.DEVNULL,
        "cwd": "/",
        "env": {name: os.environ[name] for name in _ENVIRONMENT if name in os.environ},
        "start_new_session": True,
    }

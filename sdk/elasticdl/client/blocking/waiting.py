"""The two ways in which a client waits: for a while, and for work on this machine's disk or processor."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import ParamSpec, TypeVar

P = ParamSpec("P")
T = TypeVar("T")

sleep = time.sleep
now = time.monotonic


def run_blocking(function: Callable[P, T], *args: P.args, **kwargs: P.kwargs) -> T:
    """Runs something that blocks; gives what it returns and raises what it raises."""
    return function(*args, **kwargs)

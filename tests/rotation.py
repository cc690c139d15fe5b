"""Cases that take turns: of a family of alike cases some run at each commit, others at the next.

The number of the commit, counted from the first, says whose turn it is, so that the same commit runs the same cases.
``TESTS_ROTATION`` overrides it: a number, or ``none`` for what runs at each commit. ``./dev slow`` runs all.
"""

from __future__ import annotations

import os
import random
import subprocess
import zlib
from collections import Counter
from collections.abc import Sequence
from pathlib import Path
from typing import TypeVar

import pytest

TURNS = 5
VARIABLE = "TESTS_ROTATION"
ORDER = "TESTS_ORDER"
"""The seed of the order in which ``./dev steady`` runs the tests."""
T = TypeVar("T")


def decide() -> str:
    """The rotation of this run; it is kept in the environment, so that all of its processes have the same."""
    return os.environ.setdefault(VARIABLE, str(_commits()))


def number() -> int | None:
    """The number of the rotation; None where nothing rotates in."""
    chosen = decide()
    return None if chosen == "none" else int(chosen)


def share(name: str, cases: Sequence[T], most: int) -> list[T]:
    """Some of many cases, so many at most; each has its turn before one comes again."""
    mixed = sorted(cases, key=lambda case: zlib.crc32(f"{name} {case}".encode()))
    turns = -(-len(mixed) // most) or 1
    return mixed[(number() or 0) % turns :: turns]


def mark(items: Sequence[pytest.Item], whole: bool) -> None:
    """Marks as slow the cases of ``@pytest.mark.rotates`` that have no turn now, or, for the slow suites, all."""
    seen: Counter[str] = Counter()
    now = number()
    for item in items:
        marker = item.get_closest_marker("rotates")
        if marker is None or item.get_closest_marker("slow"):
            continue
        family = f"{item.path.name} {marker.kwargs.get('family', item.nodeid.partition('[')[0])}"
        turns = marker.kwargs.get("turns", TURNS)
        place = marker.kwargs.get("place", zlib.crc32(family.encode()) + seen[family])
        seen[family] += 1
        if whole or now is None or (place - now) % turns:
            item.add_marker(pytest.mark.slow)


def shuffle(items: list[pytest.Item], seed: str) -> None:
    """Puts files, and the tests of each, into an order that follows from a seed."""
    draw = random.Random(seed)
    files: dict[Path, list[pytest.Item]] = {}
    for item in items:
        files.setdefault(item.path, []).append(item)
    groups = list(files.values())
    draw.shuffle(groups)
    for group in groups:
        draw.shuffle(group)
    items[:] = [item for group in groups for item in group]


def _commits() -> int:
    """How many commits there are up to this one; a number of its own where the history is cut, 0 without git."""
    if not (head := _git("rev-parse", "HEAD")):
        return 0
    if _git("rev-parse", "--is-shallow-repository") == "true":
        return zlib.crc32(head.encode())
    return int(_git("rev-list", "--count", "HEAD") or zlib.crc32(head.encode()))


def _git(*arguments: str) -> str:
    # Also in another user's folder, where git would say nothing, and the same cases would have all turns.
    command = ["git", "-c", "safe.directory=*", "-C", str(Path(__file__).parent), *arguments]
    try:
        return subprocess.run(command, capture_output=True, text=True, timeout=30, check=False).stdout.strip()
    except (OSError, subprocess.TimeoutExpired):
        return ""

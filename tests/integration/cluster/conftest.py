"""Data directories with short paths, and what a cluster leaves behind."""

from __future__ import annotations

import os
import shutil
import tempfile
from collections.abc import Iterator
from pathlib import Path

import psutil
import pytest

from tests.data_apart import remove_data_apart


@pytest.fixture
def folder() -> Iterator[Path]:
    """A folder with a short path: a unix socket's path has little room."""
    made = Path(tempfile.mkdtemp(prefix="edl-"))
    yield made
    remove_data_apart(f"{made}/")
    shutil.rmtree(made)


def processes_of(folder: Path) -> list[psutil.Process]:
    """All living processes that work in a folder or name it on their command line."""
    found = []
    for process in psutil.process_iter():
        try:
            mine = process.pid != os.getpid() and process.status() != psutil.STATUS_ZOMBIE
            words = [process.cwd(), *process.cmdline()]
        except psutil.Error:
            continue
        if mine and any(str(folder) in word for word in words):
            found.append(process)
    return found

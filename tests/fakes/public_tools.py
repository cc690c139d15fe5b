"""Tools of others that a test runs, installed into a folder of their own and no part of the development extra."""

from __future__ import annotations

import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path

import pytest

_TIMEOUT_S = 600


def install(folder: Path, *packages: str) -> dict[str, str]:
    """Installs packages beside those of the tests, and gives the environment in which Python finds them.

    The test is skipped where pip cannot reach its index.
    """
    command = [sys.executable, "-m", "pip", "install", "--quiet", "--disable-pip-version-check"]
    done = subprocess.run(
        [*command, "--target", str(folder), *packages],
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    if done.returncode:
        pytest.skip(f"pip cannot install {' '.join(packages)}: {done.stderr.strip()[-300:]}")
    path = os.pathsep.join((str(folder / "bin"), os.environ.get("PATH", "")))
    return {**os.environ, "PYTHONPATH": str(folder), "PATH": path}


def run(environment: Mapping[str, str], folder: Path, *arguments: str) -> str:
    """Runs Python in a folder; what it printed, after it has succeeded."""
    done = subprocess.run(
        [sys.executable, *arguments],
        cwd=folder,
        env=environment,
        capture_output=True,
        text=True,
        timeout=_TIMEOUT_S,
        check=False,
    )
    assert done.returncode == 0, f"{done.stdout[-4000:]}\n{done.stderr[-4000:]}"
    return done.stdout

"""Docker Engine and Compose, where this machine has them."""

from __future__ import annotations

import functools
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path

DEADLINE_S = 120.0


def run(
    *command: str, cwd: Path | None = None, env: Mapping[str, str] | None = None, timeout: float = DEADLINE_S
) -> subprocess.CompletedProcess[str]:
    """Runs a command to its end; what it printed and its code are in what is returned."""
    return subprocess.run(command, cwd=cwd, env=env, capture_output=True, text=True, timeout=timeout, check=False)


@functools.cache
def compose() -> tuple[str, ...]:
    """The command of Compose; nothing where there is none."""
    for command in (("docker", "compose"), ("docker-compose",)):
        if shutil.which(command[0]) and run(*command, "version").returncode == 0:
            return command
    return ()


@functools.cache
def lacking() -> str:
    """Why nothing can be run in containers here; nothing where it can be."""
    if not shutil.which("docker"):
        return "there is no docker"
    told = run("docker", "info", "--format", "{{.ServerVersion}}")
    if told.returncode:
        return f"no Docker engine answers: {told.stderr.strip()[-200:]}"
    return "" if compose() else "there is no Docker Compose"

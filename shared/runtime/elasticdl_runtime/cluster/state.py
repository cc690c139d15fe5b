"""The state of a cluster on disk, and the lock that keeps a second one away."""

from __future__ import annotations

import dataclasses
import fcntl
import json
import os
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import psutil

from elasticdl_runtime import durable
from elasticdl_runtime.cluster.paths import DataDirectory

_SAME_START_S = 1.0


@dataclass(slots=True)
class ComponentState:
    """One component.

    Attributes:
        name: e.g. ``postgres``.
        state: waiting, starting, running, restarting, stopped, or external.
        pid: its process, 0 when there is none.
        detail: version, address, or why it was restarted.
        restarts: how often it was restarted since the cluster came up.
    """

    name: str
    state: str = "waiting"
    pid: int = 0
    detail: str = ""
    restarts: int = 0


@dataclass(slots=True)
class ClusterState:
    """A running cluster, as in ``cluster.json``.

    Attributes:
        pid: the supervisor.
        pid_started: when it started, in seconds since the epoch; with the pid it names a process for ever.
        api_url: base URL of the API.
        slots: worker slots of this machine.
        data_dir: the data directory.
        run_dir: the run directory.
        version: version of ElasticDL.
        ready: whether everything is up.
        components: all components.
        ca_file: what the API is verified by under https; empty for the certificates that the machine trusts.
    """

    pid: int
    pid_started: float
    api_url: str
    slots: int
    data_dir: str
    run_dir: str
    version: str
    ready: bool = False
    components: dict[str, ComponentState] = field(default_factory=dict)
    ca_file: str = ""

    def write(self, path: Path) -> None:
        """Replaces the file."""
        durable.write(path, json.dumps(dataclasses.asdict(self), indent=2), 0o600)

    @classmethod
    def read(cls, path: Path) -> ClusterState | None:
        """Reads the file; None if there is none, or none that can be read."""
        try:
            data: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
            components = {name: ComponentState(**item) for name, item in data.pop("components").items()}
            return cls(**data, components=components)
        except (OSError, ValueError, KeyError, TypeError, AttributeError):
            return None

    @classmethod
    def running(cls, directory: DataDirectory) -> ClusterState | None:
        """The cluster that runs with this data directory, or None when none does."""
        state = cls.read(directory.state)
        return state if state is not None and state.alive() else None

    def alive(self) -> bool:
        """Whether the supervisor that wrote this runs still; a pid that was used again does not count."""
        try:
            process = psutil.Process(self.pid)
            if process.status() == psutil.STATUS_ZOMBIE:
                return False
            return abs(process.create_time() - self.pid_started) < _SAME_START_S
        except psutil.Error:
            return False


class DataLock:
    """The exclusive lock on a data directory; the kernel gives it back when its holder dies.

    Args:
        path: the lock's file; its folder exists.
    """

    def __init__(self, path: Path) -> None:
        self._path = path
        self._fd = -1

    def acquire(self) -> bool:
        """Takes the lock; returns False when another process has it."""
        self._fd = os.open(self._path, os.O_RDWR | os.O_CREAT | os.O_CLOEXEC, 0o600)
        try:
            fcntl.flock(self._fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            os.close(self._fd)
            self._fd = -1
            return False
        return True

    def release(self) -> None:
        """Gives the lock back."""
        if self._fd >= 0:
            os.close(self._fd)
            self._fd = -1

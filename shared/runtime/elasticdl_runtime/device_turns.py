"""Turns of a device that several processes share: one computes while the others read, pull and push.

A turn is an exclusive lock of a file that all who share the device may read: the kernel lets go of it with the
process, however that ends. A second file keeps the order: who has waited longest for the turn holds it, so that one
who lets go of the turn and wants it back at once comes after. Nobody waits for ever, as the others may be somebody
else's: a neighbour that keeps the turn costs time, never the work.
"""

from __future__ import annotations

import contextlib
import fcntl
import os
import threading
import time
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from pathlib import Path

import structlog

from elasticdl_core.devices import HIDING

NAME_VARIABLE = "ELASTICDL_DEVICE"
"""Names of the devices that a process holds, such as ``gpu0``."""
SHARE_VARIABLE = "ELASTICDL_DEVICE_SHARE"
"""How much of them, such as ``0.5``."""
MEMORY_VARIABLE = "ELASTICDL_DEVICE_MEMORY_MIB"
"""The part of the device's memory that goes with a share, where that is known."""
TURN_VARIABLE = "ELASTICDL_DEVICE_TURN"
"""The file by which those that share the device take turns."""
PATIENCE_S = 10.0
"""After so long without its turn a process computes beside its neighbour."""
_SOONEST_S, _LATEST_S = 0.0002, 0.002
_log = structlog.get_logger(__name__)


class DeviceTurn:
    """This process's turns of the device that it shares; one thread holds it at a time, others wait.

    Args:
        file: the file of the turn; the one that keeps the order lies beside it.
        patience_s: longest time to wait.

    Attributes:
        taken: how often it was this process's turn.
        missed: how often it was waited for in vain.
    """

    def __init__(self, file: Path, patience_s: float = PATIENCE_S) -> None:
        self.taken = self.missed = 0
        self._patience_s = patience_s
        self._thread = threading.RLock()
        self._depth = 0
        self._turn = os.open(file, os.O_RDONLY | os.O_CLOEXEC)
        self._next = os.open(file.with_name(f"{file.name}.next"), os.O_RDONLY | os.O_CLOEXEC)

    @contextlib.contextmanager
    def held(self) -> Iterator[None]:
        """Holds the turn meanwhile; a thread that holds it already keeps it."""
        with self._thread:
            self._depth += 1
            mine = self._depth == 1 and self._acquire()
            try:
                yield
            finally:
                self._depth -= 1
                if mine:
                    fcntl.flock(self._turn, fcntl.LOCK_UN)

    def close(self) -> None:
        """Lets go of the files."""
        os.close(self._turn)
        os.close(self._next)

    def _acquire(self) -> bool:
        until = time.monotonic() + self._patience_s
        got = False
        if _lock(self._next, until):
            try:
                got = _lock(self._turn, until)
            finally:
                fcntl.flock(self._next, fcntl.LOCK_UN)
        if got:
            self.taken += 1
            return True
        if not self.missed:
            _log.warning("no turn of the device in time; computing beside its other users", seconds=self._patience_s)
        self.missed += 1
        return False


def _lock(fd: int, until: float) -> bool:
    """Locks a file; False if that was not possible until then."""
    pause = _SOONEST_S
    while True:
        try:
            fcntl.flock(fd, fcntl.LOCK_EX | fcntl.LOCK_NB)
            return True
        except BlockingIOError:
            if time.monotonic() >= until:
                return False
        time.sleep(pause)
        pause = min(2 * pause, _LATEST_S)


def open_turn(variables: Mapping[str, str] = os.environ) -> DeviceTurn | None:
    """The turns that this process was told to take; None for none."""
    file = variables.get(TURN_VARIABLE, "")
    return DeviceTurn(Path(file)) if file else None


@dataclass(frozen=True, slots=True)
class DeviceGrant:
    """The devices granted to a process.

    Attributes:
        names: of the devices, such as ``gpu0`` or ``gpu0,gpu1``; empty if it was given none.
        share: of the one device that it sees; 1 for all that it sees.
        memory_mib: the memory that goes with the share; 0 where nobody knows.
        declared: whether the administrator said that there are such devices, and nobody looked for them.
    """

    names: str = ""
    share: float = 1.0
    memory_mib: int = 0
    declared: bool = False


def told_grant(variables: Mapping[str, str] = os.environ) -> DeviceGrant:
    """The grant that this process was told."""
    names, share = variables.get(NAME_VARIABLE, ""), variables.get(SHARE_VARIABLE, "")
    memory = variables.get(MEMORY_VARIABLE, "")
    return DeviceGrant(
        names,
        min(float(share), 1.0) if share else 1.0,
        int(memory) if memory else 0,
        bool(names) and not variables.get(HIDING[0]),
    )

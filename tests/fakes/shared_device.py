"""A device that this process shares, as the agent tells of one: who looks at its turn sees whether it is held."""

from __future__ import annotations

import fcntl
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import pytest

from elasticdl_runtime.device_turns import TURN_VARIABLE
from elasticdl_worker.device import own_turn


class SharedDevice:
    """The file of a device's turns.

    Args:
        file: the file.
    """

    def __init__(self, file: Path) -> None:
        self._file = file

    def is_taken(self) -> bool:
        """Whether somebody has the turn."""
        with self._file.open() as turn:
            try:
                fcntl.flock(turn, fcntl.LOCK_EX | fcntl.LOCK_NB)
            except BlockingIOError:
                return True
        return False


@contextmanager
def shared_device(folder: Path) -> Iterator[SharedDevice]:
    """Tells this process that it shares a device."""
    file = folder / "gpu0.turn"
    for one in (file, folder / f"{file.name}.next"):
        one.touch()
    with pytest.MonkeyPatch.context() as patch:
        patch.setenv(TURN_VARIABLE, str(file))
        own_turn.cache_clear()
        try:
            yield SharedDevice(file)
        finally:
            turn = own_turn()
            own_turn.cache_clear()
            if turn is not None:
                turn.close()

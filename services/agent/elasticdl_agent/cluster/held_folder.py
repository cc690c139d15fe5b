"""A folder that several processes use, and that the last of them may remove."""

from __future__ import annotations

import fcntl
import os
import shutil
from collections.abc import Callable
from pathlib import Path


class HeldFolder:
    """A folder that stays while this process holds it; blocking.

    Args:
        folder: the folder.
        make: makes it where it is not there.
    """

    def __init__(self, folder: Path, make: Callable[[Path], None]) -> None:
        self.folder = folder
        while True:
            if not folder.is_dir():
                make(folder)
            try:
                self._held = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
            except FileNotFoundError:
                continue
            fcntl.flock(self._held, fcntl.LOCK_SH)  # waits for one that removes it
            if folder.is_dir() and os.path.samestat(os.fstat(self._held), folder.stat()):
                return
            os.close(self._held)

    def release(self, *, remove: bool) -> bool:
        """Lets go of it.

        Args:
            remove: remove it if nobody else holds it.

        Returns:
            Whether it was removed.
        """
        try:
            if not remove:
                return False
            fcntl.flock(self._held, fcntl.LOCK_EX | fcntl.LOCK_NB)
            shutil.rmtree(self.folder, ignore_errors=True)
            return True
        except BlockingIOError:
            return False
        finally:
            os.close(self._held)

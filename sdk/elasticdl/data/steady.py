"""Files of stores that are read steadily: what fails or comes short is asked for again, from where it ended."""

from __future__ import annotations

import contextlib
import io
import os
from collections.abc import Callable
from typing import Any, TypeVar

from elasticdl_core.backoff import Backoff
from elasticdl_core.errors import DataError, ElasticDLError

Result = TypeVar("Result")
TRIES = 5
_PAUSES = Backoff(first_s=0.2, longest_s=5.0)
_FINAL = (FileNotFoundError, PermissionError, IsADirectoryError, NotImplementedError, ElasticDLError)
"""What another try does not change."""


class StoreError(DataError):
    """A store that does not give part of a file.

    Args:
        path: the file.
        reason: what the store raised the last time.
    """

    def __init__(self, path: str, reason: Exception) -> None:
        super().__init__(f"{path}: cannot be read: {reason}", fix="check the path, the network and the credentials")
        self.reason = reason


def tried(work: Callable[[], Result]) -> Result:
    """The result of some work, tried a few times.

    Raises:
        Exception: what the last try raised, or one that another try would not change.
    """
    return _PAUSES.retry(work, TRIES, _FINAL)  # a remote store may raise anything


class SteadyFile(io.RawIOBase):
    """A file of a store, opened anew where it fails; an answer that is shorter than the file is a failure.

    Args:
        path: for errors.
        reopen: opens it.
        state: tells which file an open one is, or None; it has to stay the same.

    Attributes:
        details: what the store says of the file, if it does.
    """

    def __init__(self, path: str, reopen: Callable[[], Any], state: Callable[[Any], object]) -> None:
        super().__init__()
        self._path = path
        self._reopen = reopen
        self._state = state
        self._file: Any = tried(reopen)
        self.details = getattr(self._file, "details", None)
        size = self.details.get("size") if isinstance(self.details, dict) else None
        self._size: int | None = size if isinstance(size, int) else None
        self._at = 0

    def readable(self) -> bool:
        """It is."""
        return True

    def seekable(self) -> bool:
        """It is."""
        return True

    def tell(self) -> int:
        """The next byte."""
        return self._at

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Goes to a byte."""
        if whence == io.SEEK_SET:
            self._at = offset
        elif whence == io.SEEK_CUR:
            self._at += offset
        else:
            end = self._size if self._size is not None else self._file.seek(0, os.SEEK_END)
            self._at = end + offset
        return self._at

    def read(self, size: int | None = -1) -> bytes:
        """The next bytes; fewer only at the end of the file.

        Raises:
            StoreError: the store does not give them, however often it is asked.
        """
        try:
            found = tried(lambda: self._part(-1 if size is None else size))
        except _FINAL:
            raise
        except Exception as error:
            raise StoreError(self._path, error) from error
        self._at += len(found)
        return found

    def readall(self) -> bytes:
        """All further bytes."""
        return self.read()

    def readinto(self, buffer: Any) -> int:
        """Reads into a buffer."""
        found = self.read(len(buffer))
        buffer[: len(found)] = found
        return len(found)

    def _part(self, size: int) -> bytes:
        try:
            if self._file is None:
                self._file = self._reopen()
                before, now = self._state(self), self._state(self._file)
                if before != now:
                    raise DataError(
                        f"{self._path}: was changed while it is being read: it was {before}, it is {now}",
                        fix="submit the job again, and give files that are written later names of their own",
                    )
            self._file.seek(self._at)
            data = bytes(self._file.read(size))
            if self._size is not None:
                wanted = max(0, self._size - self._at)
                wanted = min(wanted, size) if size >= 0 else wanted
                if len(data) < wanted:
                    raise OSError(f"the store gave {len(data)} of {wanted} bytes from byte {self._at} on")
            return data
        except Exception:
            broken, self._file = self._file, None
            with contextlib.suppress(Exception):  # it is broken
                broken.close()
            raise

    def close(self) -> None:
        """Closes the file."""
        if self._file is not None and not self.closed:
            self._file.close()
        super().close()

"""Opens files that somebody else may have put there: no link is followed, and nothing but a regular file is opened.

A worker runs a tenant's code and can make what it likes where it may write: links to secrets, pipes that block who
opens them, second names of files that are not its own. Whoever reads in a job's directory opens by these functions,
from a directory that is trusted itself. What writes logs is the agent's shim, which imports nothing of ours.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path, PurePosixPath

_READ = os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_WRITE = os.O_RDWR | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC | os.O_NOCTTY
_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC


def open_regular(base: Path, relative: str, *, writing: bool = False) -> int:
    """Opens a regular file below ``base``, one path component at a time; never blocks.

    Args:
        base: an existing directory that is trusted itself.
        relative: path below it, with ``/``.
        writing: whether for writing as well as for reading.

    Returns:
        A file descriptor; the caller closes it.

    Raises:
        FileNotFoundError: there is no such file, or it is none: a link, a pipe, a socket, a device, a directory, or
            one of several names of a file.
    """
    descriptor = open_below(base, relative, _WRITE if writing else _READ)
    if not is_plain(descriptor):
        os.close(descriptor)
        raise FileNotFoundError(f"{relative!r} is not a plain file")
    return descriptor


def open_below(base: Path, relative: str, flags: int = _READ) -> int:
    """Opens what ``relative`` names below ``base``; it may be a directory, but no link leads there.

    Args:
        base: an existing directory that is trusted itself.
        relative: path below it, with ``/``.
        flags: of the last part; for reading by default.

    Raises:
        FileNotFoundError: there is nothing of that name, or the path leaves ``base`` or leads through a link.
    """
    parts = PurePosixPath(relative).parts
    if not parts or any(part in ("..", "/", ".") or "\0" in part for part in parts):
        raise FileNotFoundError(f"{relative!r} is no path below a directory")
    try:
        current = os.open(base, _FOLDER)
        for number, part in enumerate(parts):
            last = number == len(parts) - 1
            try:
                following = os.open(part, flags if last else _FOLDER | os.O_NOFOLLOW, dir_fd=current)
            finally:
                os.close(current)
            current = following
    except (OSError, ValueError) as error:
        raise FileNotFoundError(f"{relative!r} cannot be opened: {error}") from None
    return current


def open_plain(name: str, folder: int) -> int:
    """Opens a regular file in an open directory for reading; never blocks.

    Raises:
        FileNotFoundError: there is none, or it is not a plain file.
    """
    try:
        descriptor = os.open(name, _READ, dir_fd=folder)
    except (OSError, ValueError) as error:
        raise FileNotFoundError(f"{name!r} cannot be opened: {error}") from None
    if not is_plain(descriptor):
        os.close(descriptor)
        raise FileNotFoundError(f"{name!r} is not a plain file")
    return descriptor


def read_regular(base: Path, relative: str, limit: int) -> bytes:
    """The content of a regular file below ``base``.

    Args:
        base: an existing directory that is trusted itself.
        relative: path below it, with ``/``.
        limit: the most bytes that it may have.

    Raises:
        FileNotFoundError: as ``open_regular``.
        OSError: it is larger, or cannot be read.
    """
    with os.fdopen(open_regular(base, relative), "rb") as file:
        data = file.read(limit + 1)
    if len(data) > limit:
        raise OSError(f"{relative!r} has more than {limit} bytes")
    return data


def is_plain(descriptor: int) -> bool:
    """Whether an open file is a regular one that has no other name."""
    found = os.fstat(descriptor)
    return stat.S_ISREG(found.st_mode) and found.st_nlink <= 1

"""The reach of a job at the time of use: what a path really leads to, all links followed, when it is opened.

Roots are compared as they are: whoever makes a ``PathPolicy`` puts the real places of its roots into it, for a folder
of a job may have become a link since.
"""

from __future__ import annotations

import os
import stat
from pathlib import Path

from elasticdl_core.errors import DataError, PermissionDeniedError
from elasticdl_core.path_policy import PathPolicy, is_url, outside, refusal, remedy


class OutOfReachError(PermissionDeniedError):
    """A path leads out of what the job may touch."""

    code = "out_of_reach"


_DESCRIPTORS = Path("/proc/self/fd")


def require_reach(path: str | os.PathLike[str], reach: PathPolicy | None, *, writing: bool = False) -> Path:
    """The real place of a path, if a job may touch it.

    Args:
        path: an absolute path; what does not exist yet is judged by the folders above it.
        reach: what the job may touch; None for everything.
        writing: whether it is to be written.

    Returns:
        The path without links; as it was given where the job may touch everything.

    Raises:
        OutOfReachError: it leads elsewhere; whether it exists is not told.
    """
    if reach is None:
        return Path(path)
    try:
        real = Path(path).resolve()
    except (OSError, ValueError, RuntimeError):
        raise _refused(path, reach, writing) from None
    if not reach.allows(str(real), writing=writing):
        raise _refused(path, reach, writing)
    return real


def require_place(place: str, reach: PathPolicy | None, *, writing: bool = False) -> str:
    """As ``require_reach``, of a place that may be a URL of a store as well, which is judged by its text.

    Raises:
        OutOfReachError: it leads elsewhere.
    """
    if not is_url(place):
        return str(require_reach(place, reach, writing=writing))
    if reach is not None and not reach.allows(place, writing=writing):
        raise _refused(place, reach, writing)
    return place


def open_within(path: str | os.PathLike[str], reach: PathPolicy | None, *, folders: bool = False) -> int:
    """Opens a regular file for reading, and then asks what was opened: no link can be changed in between.

    Args:
        path: the file.
        reach: what the job may touch; None for everything.
        folders: whether a folder is taken as well.

    Returns:
        A file descriptor; the caller closes it.

    Raises:
        OutOfReachError: what was opened is not the job's to read.
        OSError: it cannot be opened.
    """
    if reach is not None:
        require_reach(path, reach)
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | os.O_NONBLOCK | os.O_NOCTTY)
    try:
        mode = os.fstat(descriptor).st_mode
        if not (stat.S_ISREG(mode) or (folders and stat.S_ISDIR(mode))):
            raise OSError(22, "is not a regular file", os.fspath(path))
        if reach is not None and not reach.allows(str(real_path(descriptor, path))):
            raise _refused(path, reach, False)
        os.set_blocking(descriptor, True)
    except BaseException:
        os.close(descriptor)
        raise
    return descriptor


def real_path(descriptor: int, path: str | os.PathLike[str]) -> Path:
    """The real path of an open file; without ``/proc`` that to which its path leads, if it is still the same file."""
    try:
        return Path(os.readlink(_DESCRIPTORS / str(descriptor)))  # noqa: PTH115 - not a path of ours to resolve
    except OSError:
        real = Path(path).resolve()
        if not os.path.samestat(os.fstat(descriptor), real.stat()):
            raise OSError(116, "changed while it was opened", os.fspath(path)) from None
        return real


def require_data(place: str, reach: PathPolicy | None) -> None:
    """Refuses a path, glob or URL of data that a job may not read; links are followed as far as there is no wildcard.

    Raises:
        DataError: it may not.
    """
    if reach is None:
        return
    wrong = outside(place, reach)
    if wrong:
        raise DataError(wrong, fix=remedy((*reach.read, *reach.write)))


def _refused(path: str | os.PathLike[str], reach: PathPolicy, writing: bool) -> OutOfReachError:
    roots = reach.write if writing else (*reach.read, *reach.write)
    return OutOfReachError(refusal(os.fspath(path)), fix=remedy(roots))

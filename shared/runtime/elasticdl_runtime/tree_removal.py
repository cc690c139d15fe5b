"""Removes folders that somebody else has filled: however deep, however many files, whatever their modes."""

from __future__ import annotations

import contextlib
import os
import secrets
import stat
from collections.abc import Callable
from pathlib import Path

_FOLDER = os.O_RDONLY | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC
_AT_ONCE = 10_000
"""Names of a folder that are held in memory."""


def remove_tree(path: Path) -> OSError | None:
    """Removes a folder with all that is in it, or a single file; no link is followed.

    Folders are moved up to the top one by one before they are emptied, so neither paths nor the stack grow with their
    depth, and what a tenant moves about meanwhile leads nowhere else. What is on another file system, or cannot be
    removed, stays. It may take long: call it in a thread.

    Returns:
        What kept something from being removed, the first of it; None if all has gone, or nothing was there.
    """
    try:
        parent = os.open(path.parent, os.O_RDONLY | os.O_DIRECTORY | os.O_CLOEXEC)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    try:
        return _remove(parent, path.name)
    finally:
        os.close(parent)


def _remove(parent: int, name: str) -> OSError | None:
    try:
        if not stat.S_ISDIR(os.stat(name, dir_fd=parent, follow_symlinks=False).st_mode):
            os.unlink(name, dir_fd=parent)
            return None
        top = _open_folder(name, parent)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    try:
        failed = _empty(top, lambda inner: _empty_folder(inner, top))
    finally:
        os.close(top)
    if failed is None:
        try:
            os.rmdir(name, dir_fd=parent)
        except OSError as error:
            return error
    return failed


def _empty(folder: int, of_folder: Callable[[str], OSError | None]) -> OSError | None:
    """Removes the files of a folder, and does with each folder in it what is said."""
    failed: OSError | None = None
    stuck: set[str] = set()
    while names := _some_names(folder, stuck):
        for name, is_folder in names:
            kept = of_folder(name) if is_folder else _unlink(name, folder)
            if kept is not None:
                failed = failed or kept
                stuck.add(name)
    return failed


def _empty_folder(name: str, top: int) -> OSError | None:
    """Removes the files of a folder at the top, moves its folders up there, and removes it."""
    try:
        folder = _open_folder(name, top)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    try:
        failed = _empty(folder, lambda inner: _move_up(inner, folder, top))
    finally:
        os.close(folder)
    if failed is not None:
        return failed
    try:
        os.rmdir(name, dir_fd=top)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    return None


def _some_names(folder: int, without: set[str]) -> list[tuple[str, bool]]:
    """Some entries of a folder, and whether they are folders."""
    found = []
    with os.scandir(folder) as entries:
        for entry in entries:
            if entry.name not in without:
                found.append((entry.name, entry.is_dir(follow_symlinks=False)))
                if len(found) == _AT_ONCE:
                    break
    return found


def _unlink(name: str, folder: int) -> OSError | None:
    try:
        os.unlink(name, dir_fd=folder)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    return None


def _move_up(name: str, folder: int, top: int) -> OSError | None:
    try:
        with contextlib.suppress(PermissionError):  # moved or not, it is tried as it is
            os.close(_open_folder(name, folder))  # to be moved it must be writable itself
        os.rename(name, f".removed-{secrets.token_hex(12)}", src_dir_fd=folder, dst_dir_fd=top)
    except FileNotFoundError:
        return None
    except OSError as error:
        return error
    return None


def _open_folder(name: str, parent: int) -> int:
    """Opens a folder, with the rights to empty it."""
    descriptor = os.open(name, os.O_PATH | os.O_DIRECTORY | os.O_NOFOLLOW | os.O_CLOEXEC, dir_fd=parent)
    try:
        if os.fstat(descriptor).st_mode & 0o700 != 0o700:
            with contextlib.suppress(PermissionError, FileNotFoundError):  # or there is no /proc
                os.chmod(f"/proc/self/fd/{descriptor}", 0o700)  # noqa: PTH101 - of the open folder, whatever has its name now
        return os.open(".", _FOLDER, dir_fd=descriptor)
    finally:
        os.close(descriptor)

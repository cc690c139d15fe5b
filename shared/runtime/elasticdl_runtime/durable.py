"""Files and folders that are there whole, under their names, or not at all: also after a power cut.

A file survives a power cut only if its content *and* the folder that has its name were synced. Whatever the product
finishes, it finishes here: written under a temporary name in the same folder, fsync, rename, fsync of the folder.
"""

from __future__ import annotations

import contextlib
import errno
import os
import shutil
from collections.abc import Iterator
from pathlib import Path
from typing import BinaryIO

_NAME_CHARS = 50
_NO_SYNC = {errno.EINVAL, errno.ENOTSUP}
"""What file systems answer that cannot sync a folder."""


@contextlib.contextmanager
def writing(path: Path, mode: int | None = None) -> Iterator[BinaryIO]:
    """A new file that takes the place of ``path`` when the block ends, and is removed if it raises.

    Args:
        path: the file; its folder exists.
        mode: of the new file, whatever the umask; None for what the umask leaves of 0666.

    Yields:
        The file, empty, under a temporary name; nobody else writes to it.

    Raises:
        OSError: the disk does not allow it; the file of before stands as it was.
    """
    fresh = _beside(path)
    fd = os.open(
        fresh, os.O_RDWR | os.O_CREAT | os.O_EXCL | os.O_NOFOLLOW | os.O_CLOEXEC, 0o666 if mode is None else 0
    )
    try:
        with os.fdopen(fd, "w+b") as file:
            if mode is not None:
                os.fchmod(file.fileno(), mode)
            yield file
            file.flush()
            os.fsync(file.fileno())
        move(fresh, path)
    finally:
        fresh.unlink(missing_ok=True)


def write(path: Path, content: bytes | str, mode: int | None = None) -> None:
    """Replaces a file's content; see ``writing``. Text is written as UTF-8."""
    with writing(path, mode) as file:
        file.write(content.encode() if isinstance(content, str) else content)


def place(written: Path, target: Path) -> None:
    """Gives a file, or a folder with all that is in it, its final name, once all of it is on the disk.

    Args:
        written: what was written and closed, on the same file system.
        target: its name. A file there is replaced, an empty folder by a folder as well.

    Raises:
        OSError: the disk does not allow it, or there is a folder with something in it.
    """
    sync_tree(written)
    move(written, target)


def place_new(written: Path, target: Path) -> None:
    """As ``place``, of a file, but replaces nothing.

    Raises:
        FileExistsError: there is something of that name.
    """
    sync_tree(written)
    os.link(written, target)
    written.unlink()
    sync_folder(target.parent)


def link(synced: Path, target: Path) -> None:
    """Gives a file that is on the disk already one more name, unless that is taken.

    Raises:
        FileNotFoundError: there is no such file.
    """
    try:
        os.link(synced, target)
    except FileExistsError:
        return
    sync_folder(target.parent)


def swap(written: Path, target: Path) -> None:
    """As ``place``, but replaces whatever is there, also a folder: that is moved aside first, and removed after."""
    sync_tree(written)
    aside = _beside(target)
    if target.is_dir() or (target.exists() and written.is_dir()):
        target.replace(aside)
    move(written, target)
    if aside.is_dir():
        shutil.rmtree(aside, ignore_errors=True)
    else:
        aside.unlink(missing_ok=True)


def move(synced: Path, target: Path) -> None:
    """Gives what is on the disk already its final name; see ``place``."""
    synced.replace(target)
    sync_folder(target.parent)


def make_folder(path: Path, mode: int = 0o777) -> None:
    """Makes a folder, with the folders above it that are missing, so that they stay; one that is there is taken."""
    missing = []
    folder = path.absolute()
    while not folder.is_dir():
        missing.append(folder)
        folder = folder.parent
    path.mkdir(mode=mode, parents=True, exist_ok=True)
    for made in missing:
        sync_folder(made.parent)


def sync_tree(path: Path) -> None:
    """Syncs a file, or a folder with all that is in it; no link is followed."""
    folders = [path] if path.is_dir() and not path.is_symlink() else []
    if not folders:
        _sync(path)
    while folders:
        folder = folders.pop()
        with os.scandir(folder) as entries:
            for entry in entries:
                if entry.is_dir(follow_symlinks=False):
                    folders.append(Path(entry.path))
                elif entry.is_file(follow_symlinks=False):
                    _sync(Path(entry.path))
        sync_folder(folder)


def sync_folder(folder: Path) -> None:
    """Makes the names in a folder stay.

    A folder that may be written and not read (a drop box) cannot be opened, and some file systems sync none: there
    the names are as safe as they can be.
    """
    try:
        _sync(folder, os.O_DIRECTORY)
    except PermissionError:
        return
    except OSError as error:
        if error.errno not in _NO_SYNC:
            raise


def _sync(path: Path, flags: int = 0) -> None:
    descriptor = os.open(path, os.O_RDONLY | os.O_CLOEXEC | flags)
    try:
        os.fsync(descriptor)
    finally:
        os.close(descriptor)


def _beside(path: Path) -> Path:
    """A hidden name in the same folder that is nobody's, of at most 255 bytes."""
    return path.with_name(f".{path.name[:_NAME_CHARS]}.{os.urandom(6).hex()}.tmp")

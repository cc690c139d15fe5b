"""A disk that loses what was not synced, for as far as a power cut can be had without one."""

from __future__ import annotations

import os
import shutil
from pathlib import Path

import pytest


class PowerCut:
    """Notes what is synced below a folder from now on; ``strike`` takes away the rest.

    A name stays if its folder was synced since it stands for that file, content if the file was synced since it was
    written. What was there before stays.

    Args:
        root: the folder.
        monkeypatch: of the test.
    """

    def __init__(self, root: Path, monkeypatch: pytest.MonkeyPatch) -> None:
        self._root = root
        self._names: dict[int, dict[str, int]] = {}
        self._contents: dict[int, tuple[int, int]] = {}
        for folder, _, files in os.walk(root):
            self._note(os.open(folder, os.O_RDONLY), close=True)
            for name in files:
                self._note(os.open(Path(folder, name), os.O_RDONLY), close=True)
        really = os.fsync

        def fsync(file: int) -> None:
            really(file)
            self._note(file)

        monkeypatch.setattr(os, "fsync", fsync)

    def strike(self) -> None:
        """Removes names that were not synced, and empties files that were not."""
        folders = [self._root]
        while folders:
            folder = folders.pop()
            kept = self._names.get(folder.stat().st_ino, {})
            for path in folder.iterdir():
                inode = path.lstat().st_ino
                if kept.get(path.name) != inode:
                    shutil.rmtree(path) if path.is_dir() else path.unlink()
                elif path.is_dir():
                    folders.append(path)
                elif self._contents.get(inode) != (path.stat().st_size, path.stat().st_mtime_ns):
                    path.write_bytes(b"")

    def _note(self, file: int, *, close: bool = False) -> None:
        found = os.fstat(file)
        if os.path.isdir(file):  # noqa: PTH112 - a descriptor
            with os.scandir(file) as entries:
                self._names[found.st_ino] = {entry.name: entry.inode() for entry in entries}
        else:
            self._contents[found.st_ino] = (found.st_size, found.st_mtime_ns)
        if close:
            os.close(file)

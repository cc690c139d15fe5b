"""Disk use below a folder, in bytes that it takes there."""

from __future__ import annotations

import errno
import os
from collections.abc import Iterable
from dataclasses import dataclass
from pathlib import Path

BLOCK = 512
"""Bytes of a block, as ``st_blocks`` counts them."""
MOST_FILES = 1_000_000
_HIDDEN = (errno.ENAMETOOLONG, errno.EACCES)
"""What is there says this, and cannot be looked at."""


@dataclass(frozen=True, slots=True)
class DiskUse:
    """The measured use.

    Attributes:
        bytes: of all files together, each once, however many names it has.
        files: how many files and folders.
        whole: whether all was seen: there were not too many of them, and none lay too deep.
    """

    bytes: int
    files: int
    whole: bool


def measure(roots: Iterable[Path], most_files: int = MOST_FILES) -> DiskUse:
    """Measures what lies below some folders; no link is followed, and what goes meanwhile is passed over."""
    total, files, whole = 0, 0, True
    seen: set[tuple[int, int]] = set()
    left = [str(root) for root in roots]
    while left:
        try:
            with os.scandir(left.pop()) as entries:
                for entry in entries:
                    files += 1
                    if files > most_files:
                        return DiskUse(total, files, False)
                    try:
                        found = entry.stat(follow_symlinks=False)
                    except OSError as error:
                        whole = whole and error.errno not in _HIDDEN
                        continue
                    if entry.is_dir(follow_symlinks=False):
                        left.append(entry.path)
                    elif found.st_nlink > 1:
                        if (found.st_dev, found.st_ino) in seen:
                            continue
                        seen.add((found.st_dev, found.st_ino))
                    total += found.st_blocks * BLOCK
        except OSError as error:
            whole = whole and error.errno not in _HIDDEN
    return DiskUse(total, files, whole)

"""Copies files that somebody else wrote, and sees that they are what is said of them."""

from __future__ import annotations

import hashlib
import os
from pathlib import Path

from elasticdl_runtime.safe_files import open_regular

_PIECE = 1 << 20


def copy_verified(base: Path, relative: str, target: Path, size: int, sha256: str) -> bool:
    """Copies a plain file below a folder to a new one, which is fsynced; returns whether it is what it should be.

    Args:
        base: an existing folder that is trusted itself.
        relative: path below it.
        target: the new file.
        size: that it must have, in bytes.
        sha256: that it must have, in hexadecimal.

    Raises:
        FileNotFoundError: there is no such plain file.
        OSError: the disk does not allow it.
    """
    digest, copied = hashlib.sha256(), 0
    source = os.fdopen(open_regular(base, relative), "rb")
    with source, target.open("xb") as file:
        while (piece := source.read(_PIECE)) and copied <= size:
            copied += len(piece)
            digest.update(piece)
            file.write(piece)
        file.flush()
        os.fsync(file.fileno())
    return (copied, digest.hexdigest()) == (size, sha256)

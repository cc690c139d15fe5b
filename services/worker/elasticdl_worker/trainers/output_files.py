"""The files that a job writes, as they are reported to the master: exported models, predictions."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TypedDict


class OutputFile(TypedDict):
    """A file.

    Attributes:
        name: relative to the folder of the output.
        path: absolute.
        sha256: 64 hex digits.
        size: in bytes.
    """

    name: str
    path: str
    sha256: str
    size: int


def describe_file(path: Path, name: str) -> OutputFile:
    """Describes a file, with its checksum.

    Args:
        path: of the file.
        name: what it is called in the output.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": name, "path": str(path.resolve()), "sha256": digest, "size": path.stat().st_size}

"""The files that a job writes, as they are reported to the master: exported models, predictions."""

from __future__ import annotations

import hashlib
from pathlib import Path
from typing import TypedDict

from elasticdl_core.well_formed import as_name, is_name


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


def _free_name(folder: Path, name: str) -> str:
    while (folder / name).exists():
        name = f"{name}~"
    return name


def describe_file(path: Path, name: str) -> OutputFile:
    """Describes a file, with its checksum.

    Args:
        path: of the file.
        name: what it is called in the output.
    """
    with path.open("rb") as file:
        digest = hashlib.file_digest(file, "sha256").hexdigest()
    return {"name": name, "path": str(path.resolve()), "sha256": digest, "size": path.stat().st_size}


def describe_folder(folder: Path) -> list[OutputFile]:
    """Describes all files in a folder and the folders in it; links are no files.

    Those whose names nobody could list or fetch, which are not Unicode or have control characters, are renamed: as
    URLs have them.
    """
    for path in sorted(folder.rglob("*"), key=lambda one: len(one.parts), reverse=True):
        if not is_name(path.name):
            path.rename(path.with_name(_free_name(path.parent, as_name(path.name))))
    files = sorted(path for path in folder.rglob("*") if path.is_file() and not path.is_symlink())
    return [describe_file(path, path.relative_to(folder).as_posix()) for path in files]

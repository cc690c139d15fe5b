"""The files that a job writes, as they are reported to the master: exported models, predictions."""

from __future__ import annotations

import contextlib
import hashlib
import tempfile
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import TypedDict

from elasticdl_core.path_policy import is_url, join_place
from elasticdl_core.well_formed import as_name, is_name
from elasticdl_runtime.object_store import ObjectStore


class OutputFile(TypedDict):
    """A file.

    Attributes:
        name: relative to the folder of the output.
        path: absolute, or a URL.
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


@contextlib.contextmanager
def output_folder(output: str | Path) -> Iterator[Path]:
    """The folder in which files of an output are made: that output, or one of temporary files if it is a URL."""
    if not is_url(str(output)):
        yield Path(output)
        return
    with tempfile.TemporaryDirectory(prefix="elasticdl-output-") as folder:
        yield Path(folder)


def delivered(files: Sequence[OutputFile], output: str | Path) -> list[OutputFile]:
    """Files as they are where they shall be: those of an output that is a URL are put there.

    Of a folder among them, such as a saved model, what an earlier one left beside them is removed.

    Args:
        files: as they were made in ``output_folder``.
        output: the folder, or its URL.

    Raises:
        ElasticDLError: the store does not take them.
    """
    url = str(output)
    if not is_url(url):
        return list(files)
    store = ObjectStore(url)
    for file in files:
        store.put(file["name"], Path(file["path"]))
    names = {file["name"] for file in files}
    if folders := tuple({f"{name.partition('/')[0]}/" for name in names if "/" in name}):
        store.delete(name for name in store.sizes() if name.startswith(folders) and name not in names)
    return [{**file, "path": join_place(url, file["name"])} for file in files]


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

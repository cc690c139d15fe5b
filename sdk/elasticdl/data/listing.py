"""Tells which names are data, and lists the files below a folder of a store: all of them, or an error.

fsspec's own ``find`` and ``glob`` leave out folders that cannot be listed and go on, so that part of the data would
be trained on without a word. Here each folder is listed by itself, unless the store has a listing of its own.
"""

from __future__ import annotations

import fnmatch
from collections.abc import Iterable, Iterator, Sequence
from typing import Any

from elasticdl.data.steady import tried
from elasticdl_core.errors import DataError

#: Files in a directory that are never data: hidden ones, markers such as ``_SUCCESS``, our own indexes, and copies
#: that editors and downloads leave beside the data, which would be trained on twice.
_IGNORED_PREFIXES = (".", "_")
_IGNORED_SUFFIXES = (".idx", ".crc", ".tmp", "~", ".bak", ".orig", ".part", ".partial", ".crdownload", ".swp")
_LAKES = {"_delta_log": "Delta Lake", ".hoodie": "Apache Hudi"}
"""By a name in its folder, the kind of a table whose files also hold rows that it has no more."""
_GLOB_CHARACTERS = frozenset("*?[")


def is_data_name(name: str) -> bool:
    """Whether a file or folder below one that is named as data is data, too."""
    return not name.startswith(_IGNORED_PREFIXES) and not name.endswith(_IGNORED_SUFFIXES)


def refuse_lake(folder: str, names: Iterable[str]) -> None:
    """Refuses a folder whose log says which of its files count: deleted rows would be read, too.

    Args:
        folder: the folder, for the error.
        names: of what is in it.

    Raises:
        DataError: it is a table of Delta Lake or Apache Hudi.
    """
    for kind in (_LAKES[name] for name in names if name in _LAKES):
        raise DataError(
            f"{folder}: is a table of {kind}, whose files also hold rows that were changed or deleted",
            fix="write its rows to a folder of Parquet files and give that; or name its files by a pattern such as "
            "'table/*.parquet' if none of its rows was ever changed or deleted",
        )


def is_pattern(path: str) -> bool:
    """Whether a path has wildcards."""
    return bool(_GLOB_CHARACTERS & set(path))


def files_of(fs: Any, path: str) -> Iterator[str]:
    """The files of a store that a path names, in the order of their names.

    Args:
        fs: an fsspec file system.
        path: a file, a folder, or a pattern, as the file system names it.

    Raises:
        Exception: whatever the store raises; that a folder was left out is never passed over.
    """
    fs.invalidate_cache()  # of what was there when something was listed before
    if is_pattern(path):
        parts = path.split("/")
        literal = next(number for number, part in enumerate(parts) if is_pattern(part))
        yield from _matching(fs, "/".join(parts[:literal]), parts[literal:])
    elif tried(lambda: fs.isdir(path)):
        yield from _below(fs, path.rstrip("/"))
    else:
        tried(lambda: fs.info(path))
        yield path


def _entries(fs: Any, folder: str) -> list[tuple[str, str, bool]]:
    """The entries of a folder: path, name, and whether it is a folder itself."""
    found = (
        (str(one["name"]).rstrip("/"), one["type"] == "directory")
        for one in tried(lambda: fs.ls(folder, detail=True))
    )
    return sorted(
        (path, path.rsplit("/", 1)[-1], inside) for path, inside in found if path.strip("/") != folder.strip("/")
    )


def _below(fs: Any, folder: str) -> Iterator[str]:
    if _lists_all(fs):
        base = len(folder.strip("/"))
        found = {
            path: path.strip("/")[base:].strip("/").split("/") for path in sorted(tried(lambda: fs.find(folder)))
        }
        refuse_lake(folder, (name for names in found.values() for name in names))
        yield from (path for path, names in found.items() if all(map(is_data_name, names)))
        return
    entries = _entries(fs, folder)
    refuse_lake(folder, (name for _, name, _ in entries))
    for path, name, inside in entries:
        if is_data_name(name):
            yield from _below(fs, path) if inside else (path,)


def _lists_all(fs: Any) -> bool:
    """Whether a store lists what is below a folder by requests of its own, which fail as a whole."""
    from fsspec.asyn import AsyncFileSystem
    from fsspec.spec import AbstractFileSystem

    if isinstance(fs, AsyncFileSystem):
        return type(fs)._find is not AsyncFileSystem._find
    return type(fs).find is not AbstractFileSystem.find


def _matching(fs: Any, folder: str, parts: Sequence[str]) -> Iterator[str]:
    """The files below a folder that the parts of a pattern match, one part for each level."""
    part, rest = parts[0], parts[1:]
    if part == "**":  # any number of folders, and none
        deeper = [path for path, name, inside in _entries(fs, folder) if inside and is_data_name(name)]
        found = set(_matching(fs, folder, rest or ("*",)))
        yield from sorted(found.union(*(_matching(fs, path, parts) for path in deeper)))
        return
    if not is_pattern(part):
        path = f"{folder}/{part}"
        try:
            inside = tried(lambda: fs.info(path))["type"] == "directory"
        except FileNotFoundError:
            return
        matched = [(path, inside)]
    else:
        matched = [
            (path, inside)
            for path, name, inside in _entries(fs, folder)
            if fnmatch.fnmatchcase(name, part) and (not name.startswith(".") or part.startswith("."))
        ]
    for path, inside in matched:
        if rest and inside:
            yield from _matching(fs, path, rest)
        elif not rest and not inside:
            yield path

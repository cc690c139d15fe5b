"""Samples in tar archives, as WebDataset has them: files that follow each other, of one name up to its first dot.

``tarfile`` takes a header that it cannot read, and a file that ends early, for the end of the archive. Here it is
blocks of zeros, as the format says, and nothing else behind them.
"""

from __future__ import annotations

import io
import re
import tarfile
from collections.abc import Iterator
from typing import BinaryIO

import numpy as np

from elasticdl.data import files
from elasticdl.data.errors import CorruptDataError, DataError
from elasticdl.data.offset_index import OffsetCollector, OffsetIndex

_BLOCK = tarfile.BLOCKSIZE
_MEMBER = re.compile(r"((?:.*/)?[^./][^./]*)\.([^/]+)", re.DOTALL)
_READ_BYTES = 1 << 20


def build_index(path: str) -> OffsetIndex:
    """Finds where samples begin by hopping from header to header; what the files hold is not read.

    Args:
        path: the archive, local or an fsspec URL.

    Raises:
        CorruptDataError: the archive is damaged or cut off.
        DataError: it is missing or unreadable, or its files make no samples.
    """
    starts, collector, keys = list[int](), OffsetCollector(), set[str]()
    last, endings, end = "", set[str](), 0
    with files.open_for_reading(path) as file:
        for member in _members(file, path):
            key, ending = _split(member, path)
            if key != last:
                if key in keys:
                    raise DataError(
                        f"{path}: byte {member.offset}: {member.name}: other files of the sample {key!r} come "
                        f"earlier, and {last!r} between them",
                        fix="write the files of a sample one after the other: tar --sort=name -cf data.tar folder",
                    )
                keys.add(key)
                starts.append(member.offset)
                last, endings = key, set()
            if ending in endings:
                raise DataError(
                    f"{path}: byte {member.offset}: {member.name}: the sample {key!r} has two files .{ending}",
                    fix="give the files of a sample endings of their own",
                )
            endings.add(ending)
            end = member.offset_data + -(-member.size // _BLOCK) * _BLOCK
    collector.add(np.asarray(starts, np.int64))
    return collector.index(end)


def parse(data: bytes, path: str) -> list[tuple[str, dict[str, bytes]]]:
    """The samples in the bytes of some: the key of each, and what its files hold, by their endings.

    Args:
        data: headers and contents of whole samples.
        path: the archive, for errors.
    """
    samples: list[tuple[str, dict[str, bytes]]] = []
    for member in _members(io.BytesIO(data + bytes(2 * _BLOCK)), path):
        key, ending = _split(member, path)
        if not samples or samples[-1][0] != key:
            samples.append((key, {}))
        samples[-1][1][ending] = data[member.offset_data : member.offset_data + member.size]
    return samples


def _members(file: BinaryIO, path: str) -> Iterator[tarfile.TarInfo]:
    """The files in an archive, from the first to the last one."""
    at = 0
    try:
        with tarfile.open(fileobj=file, mode="r:") as archive:
            while (member := archive.next()) is not None:
                archive.members.clear()  # type: ignore[attr-defined]  # it keeps all
                at = archive.offset
                if _is_data(member):
                    yield member
            at = archive.offset
            _require_end(file, path, at)
    except (tarfile.TarError, EOFError) as error:
        raise _damaged(path, at, f"is no tar archive from here on: {error}") from error


def _is_data(member: tarfile.TarInfo) -> bool:
    """Whether a member of an archive counts: it is no folder, not hidden and not about the archive itself."""
    name = member.name.rpartition("/")[2]
    return not member.isdir() and not name.startswith(".") and not re.fullmatch("__.*__", member.name)


def _split(member: tarfile.TarInfo, path: str) -> tuple[str, str]:
    """The key of the sample that a file is of, and the file's ending in small letters."""
    if not member.isreg():
        raise DataError(
            f"{path}: byte {member.offset}: {member.name} is a link or a device: the archive does not have its bytes",
            fix="write files in place of links: tar --dereference --hard-dereference --sort=name -cf data.tar folder",
        )
    found = _MEMBER.fullmatch(member.name)
    if found is None:
        raise DataError(
            f"{path}: byte {member.offset}: {member.name} has no ending, by which a sample would know it",
            fix="leave it out of the archive, or name it as KEY.ENDING, e.g. 000017.jpg beside 000017.cls",
        )
    return found[1], found[2].lower()


def _require_end(file: BinaryIO, path: str, at: int) -> None:
    """Refuses an archive that does not end where its files do."""
    file.seek(at)
    rest = file.read(_BLOCK)
    if len(rest) < _BLOCK:
        raise _damaged(path, at, "the archive ends here without its end mark: it was cut off")
    while rest:
        if rest.count(0) < len(rest):
            what = "the header of a file is damaged" if len(rest) == _BLOCK else "the archive goes on after its end"
            raise _damaged(path, at, f"{what}, so that further files cannot be found")
        rest = file.read(_READ_BYTES)


def _damaged(path: str, at: int, reason: str) -> CorruptDataError:
    fix = "write it anew, as one archive (tar --concatenate joins several), or restore it from its source"
    return CorruptDataError(reason, path=path, offset=at, fix=fix)

"""Parts shared by the writers of record files: opening the file, and refusing what is no record."""

from __future__ import annotations

from pathlib import Path
from typing import BinaryIO

from elasticdl.data.errors import DataError


def open_new(path: str | Path | BinaryIO) -> BinaryIO:
    """The file to write to, made anew; an open binary file is taken as it is.

    Raises:
        DataError: the file cannot be made.
    """
    if not isinstance(path, str | Path):
        return path
    try:
        return Path(path).open("wb")
    except OSError as error:
        raise DataError(f"{path}: cannot be written: {error.strerror}", fix="check the folder") from error


def checked_record(record: bytes, format_name: str) -> bytes:
    """The record as ``bytes``.

    Raises:
        DataError: it is something else.
    """
    if not isinstance(record, bytes | bytearray | memoryview):
        raise DataError(
            f"a {format_name} record is bytes, not {type(record).__name__}",
            fix="serialise the record first, e.g. example.SerializeToString()",
        )
    return bytes(record)

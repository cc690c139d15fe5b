"""The errors of reading and writing data.

elasticdl_core.errors.DataError   a data source is missing, unreadable, truncated or corrupt
├── CorruptDataError              bytes that are not what the format says: file, offset, chunk or record
└── ReaderParamsError             a reader parameter that is unknown or has an impossible value
"""

from __future__ import annotations

from elasticdl_core.errors import DataError

__all__ = ["CorruptDataError", "DataError", "ReaderParamsError"]

_RESTORE = "restore the file from its source, or read past the damage with the reader parameter on_corrupt=skip"


class CorruptDataError(DataError):
    """A file whose bytes do not follow its format.

    Args:
        reason: what is wrong, in words.
        path: the file.
        offset: byte offset in the file at which the damaged part begins.
        chunk: number of the RecordIO chunk, counted from 0, where there is one.
        record: index of the record in the file, counted from 0, where it is known.
        fix: what to do; by default, restore the file or skip.
    """

    code = "corrupt_data"

    def __init__(
        self,
        reason: str,
        *,
        path: str,
        offset: int,
        chunk: int | None = None,
        record: int | None = None,
        fix: str = _RESTORE,
    ) -> None:
        place = f"{path}: byte {offset}"
        if chunk is not None:
            place += f", chunk {chunk}"
        if record is not None:
            place += f", record {record}"
        super().__init__(f"{place}: {reason}", fix=fix)
        self.reason = reason
        self.path = path
        self.offset = offset
        self.chunk = chunk
        self.record = record


class ReaderParamsError(DataError):
    """A reader parameter is unknown or has a value that cannot work."""

    code = "reader_params"

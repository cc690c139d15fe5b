"""The base of the readers of text files, whose records are lines or, with quotes, several of them."""

from __future__ import annotations

from array import array
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO

import numpy as np

from elasticdl.data import csv_index
from elasticdl.data.csv_index import Dialect, RecordFinder
from elasticdl.data.errors import CorruptDataError
from elasticdl.data.file_reader import BoundedCache
from elasticdl.data.offset_index import OffsetIndex
from elasticdl.data.offset_reader import OffsetFileReader

_PIECE_BYTES = 2 << 20
_KNOWN_STRIDES = 16_384
"""Strides of the index whose records' places are remembered, for a million records: some 10 MB."""


class LineFileReader(OffsetFileReader):
    """Finds records in text by what ends them.

    Attributes:
        with_header: whether the first record of a file is none.
    """

    _dialect: Dialect
    _encoding: str = "utf-8"
    with_header = False

    def __init__(
        self,
        data_origin: str,
        records_per_task: int | None = None,
        reader_params: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(data_origin, records_per_task, reader_params)
        self._starts: BoundedCache[array[int]] = BoundedCache(max_weight=_KNOWN_STRIDES)

    def _index_settings(self) -> dict[str, Any]:
        return {"kind": self.kind, "dialect": repr(self._dialect), "header": self.with_header}

    def _build_index(self, path: str) -> OffsetIndex:
        return csv_index.build_index(path, self._dialect, with_header=self.with_header)

    def _read_pieces(self, file: BinaryIO, path: str, start: int, end: int) -> Iterator[tuple[bytes, int, int, int]]:
        """The bytes of a range in pieces, each with its offset, its first record and the one past its last."""
        index = self.index_of(path)
        for low, high in self._pieces(index, start, end):
            first_byte = self._offset(file, path, index, low)
            last_byte = self._offset(file, path, index, high)
            file.seek(first_byte)
            yield file.read(last_byte - first_byte), first_byte, low, high

    def _offset(self, file: BinaryIO, path: str, index: OffsetIndex, record: int) -> int:
        """The byte offset of a record, or of the end of the last one."""
        stride, number = divmod(record, index.stride)
        if record >= index.records:
            return index.end
        if number == 0:
            return int(index.offsets[stride])
        return self._starts.get((path, stride), lambda: self._starts_in(file, path, index, stride))[number]

    def _starts_in(self, file: BinaryIO, path: str, index: OffsetIndex, stride: int) -> array[int]:
        """The byte offsets of the records between two indexed ones."""
        first_byte, last_byte, number = index.byte_range(stride * index.stride, stride * index.stride + 1)
        file.seek(first_byte)
        finder = RecordFinder(self._dialect, path, first_byte)
        starts = finder.feed(file.read(last_byte - first_byte)).tolist()
        last = finder.finish()
        if last is not None:
            starts.append(last)
        self._check_count(len(starts), min(index.stride, index.records - number), path, first_byte, last_byte)
        return array("q", starts)

    def _pieces(self, index: OffsetIndex, start: int, end: int) -> Iterator[tuple[int, int]]:
        """Cuts a range at indexed records into pieces of about 2 MiB."""
        while start < end:
            low = start // index.stride
            limit = index.offsets[low] + _PIECE_BYTES
            high = max(low + 1, int(np.searchsorted(index.offsets, limit)))
            following = min(high * index.stride, end)
            yield start, following
            start = following

    def _check_count(self, found: int, expected: int, path: str, start: int, end: int) -> None:
        if found != expected:
            raise CorruptDataError(
                f"holds {found} records up to byte {end}, its index says {expected}",
                path=path, offset=start,
                fix="end lines with \\n or \\r\\n, not with \\r alone; do not change files while a job reads them",
            )  # fmt: skip

    def _decode(self, data: bytes, path: str, base: int, number: int) -> str:
        try:
            return data.decode(self._encoding, errors="surrogateescape" if self._skip else "strict")
        except UnicodeDecodeError as error:
            before = csv_index.RecordFinder(self._dialect, path, base).feed(data[: error.start])
            raise CorruptDataError(
                f"byte 0x{data[error.start]:02x} is not {self._encoding}",
                path=path, offset=base + error.start, record=number + len(before),
                fix="set the parameter encoding (e.g. encoding=latin-1), or skip such records with on_corrupt=skip",
            ) from error  # fmt: skip

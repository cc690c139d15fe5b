"""Finds where the records of a CSV file begin, in one pass over big blocks, with quoted newlines taken into account.

A record ends at a newline that is outside quotes, that is, after an even number of quote characters. numpy counts
both for a whole block at once. Blank lines are no records. Quotes may only open at the start of a field, as RFC 4180
has it: a stray one would turn the rest of the file inside out, so it is refused by place.
"""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import dataclass
from typing import BinaryIO

import numpy as np
import numpy.typing as npt

from elasticdl.data import files
from elasticdl.data.errors import CorruptDataError, DataError
from elasticdl.data.offset_index import OffsetCollector, OffsetIndex

_NEWLINE = 0x0A
_RETURN = 0x0D
BLOCK_BYTES = 8 << 20
BYTE_ORDER_MARK = b"\xef\xbb\xbf"
_UTF16_MARKS = (b"\xff\xfe", b"\xfe\xff")


@dataclass(frozen=True)
class Dialect:
    """The division of a file into fields and records.

    Attributes:
        sep: the separator, one byte.
        quote: the quote character, one byte, or empty where quotes are plain characters.
        skip_spaces: spaces between a separator and a field are no part of the field.
    """

    sep: bytes = b","
    quote: bytes = b'"'
    skip_spaces: bool = False


class RecordFinder:
    """Finds the starts of records in consecutive blocks.

    Args:
        dialect: how fields and records are separated.
        path: the file's name for errors.
        offset: byte offset in the file of the first block.
    """

    def __init__(self, dialect: Dialect, path: str, offset: int) -> None:
        self._dialect = dialect
        self._path = path
        self._position = offset
        self._line_start = offset
        self._previous = b"\n"
        self._quoted = False
        self._quote_at = offset

    def feed(self, block: bytes) -> npt.NDArray[np.int64]:
        """The start offsets in the file of the records that end in this block.

        Raises:
            CorruptDataError: a quote inside an unquoted field.
        """
        if not block:
            return np.empty(0, dtype=np.int64)
        data = np.frombuffer(block, dtype=np.uint8)
        self._check_returns(block, data)
        newlines = np.flatnonzero(data == _NEWLINE)
        newlines = self._outside_quotes(block, data, newlines)
        starts = np.empty(len(newlines), dtype=np.int64)
        if len(newlines):
            starts[0] = self._line_start
            starts[1:] = newlines[:-1] + (self._position + 1)
            before = data[newlines - 1]  # for a newline at 0 this is the last byte, put right below
            if newlines[0] == 0:
                before[0] = self._previous[0]
            lengths = newlines + self._position - starts
            blank = (lengths == 0) | ((lengths == 1) & (before == _RETURN))
            self._line_start = self._position + int(newlines[-1]) + 1
            starts = starts[~blank]
        self._position += len(block)
        self._previous = block[-1:]
        return starts

    def finish(self) -> int | None:
        """The start of a last record that no newline ends, if there is one.

        Raises:
            CorruptDataError: the file ends inside quotes.
        """
        if self._quoted:
            raise CorruptDataError(
                "a quote opens here and the file ends before it closes",
                path=self._path, offset=self._quote_at,
                fix="close the quote; if quotes are plain characters in this file, set the parameter quoting=false",
            )  # fmt: skip
        length = self._position - self._line_start
        blank = length == 0 or (length == 1 and self._previous == b"\r")
        return None if blank else self._line_start

    def _check_returns(self, block: bytes, data: npt.NDArray[np.uint8]) -> None:
        """Refuses a carriage return that ends a line by itself; one at the end of a block waits for the next one."""
        if self._previous == b"\r" and not self._quoted and block[0] != _NEWLINE:
            self._refuse_return(self._position - 1)
        if block.count(b"\r") == block.count(b"\r\n"):
            return
        alone = np.flatnonzero((data[:-1] == _RETURN) & (data[1:] != _NEWLINE))
        if self._dialect.quote:
            quotes = np.flatnonzero(data == self._dialect.quote[0])
            alone = alone[(np.searchsorted(quotes, alone) + self._quoted) % 2 == 0]
        if len(alone):
            self._refuse_return(self._position + int(alone[0]))

    def _refuse_return(self, offset: int) -> None:
        raise CorruptDataError(
            "a line ends with a carriage return alone",
            path=self._path, offset=offset,
            fix="end lines with \\n or \\r\\n, not with \\r alone (tr '\\r' '\\n' < OLD > NEW); quote fields "
            "that hold a carriage return",
        )  # fmt: skip

    def _outside_quotes(
        self, block: bytes, data: npt.NDArray[np.uint8], newlines: npt.NDArray[np.intp]
    ) -> npt.NDArray[np.intp]:
        """The newlines that end records, with the state of quoting carried on to the next block."""
        quote = self._dialect.quote
        count = block.count(quote) if quote else 0
        if not count:
            return newlines[:0] if self._quoted else newlines
        quotes = np.flatnonzero(data == quote[0])
        opening = quotes[1::2] if self._quoted else quotes[0::2]
        if len(opening):
            self._check_opening(data, opening)
            self._quote_at = self._position + int(opening[-1])
        inside = (np.searchsorted(quotes, newlines) + self._quoted) % 2 == 1
        self._quoted = (self._quoted + count) % 2 == 1
        outside: npt.NDArray[np.intp] = newlines[~inside]
        return outside

    def _check_opening(self, data: npt.NDArray[np.uint8], opening: npt.NDArray[np.intp]) -> None:
        before = data[opening - 1]
        if opening[0] == 0:
            before[0] = self._previous[0]
        # A quote before an opening one is the first half of a doubled quote inside a quoted field.
        allowed = self._dialect.sep + self._dialect.quote + b"\n\r" + (b" " if self._dialect.skip_spaces else b"")
        stray = np.flatnonzero(~np.isin(before, np.frombuffer(allowed, dtype=np.uint8)))
        if len(stray):
            raise CorruptDataError(
                "a quote inside a field that does not begin with one",
                path=self._path, offset=self._position + int(opening[stray[0]]),
                fix="quote the whole field and double the quotes in it. If spaces follow the separators, set the "
                "parameter skip_spaces=true; if quotes are plain characters in this file, quoting=false",
            )  # fmt: skip


def data_start(head: bytes, path: str) -> int:
    """The offset of the first byte after a byte order mark.

    Raises:
        DataError: the file is UTF-16 or compressed.
    """
    if head.startswith(_UTF16_MARKS):
        raise DataError(f"{path}: is UTF-16 text", fix="convert it: iconv -f UTF-16 -t UTF-8")
    if head.startswith(b"\x1f\x8b"):
        raise DataError(
            f"{path}: is compressed with gzip, so a worker cannot start at a record in its middle",
            fix="gunzip it, or convert it to RecordIO: elasticdl data convert",
        )
    return len(BYTE_ORDER_MARK) if head.startswith(BYTE_ORDER_MARK) else 0


def _starts(file: BinaryIO, path: str, dialect: Dialect, block_bytes: int) -> Iterator[npt.NDArray[np.int64]]:
    """The starts of the records of a file, a block at a time."""
    block = file.read(block_bytes)
    skipped = data_start(block, path)
    finder = RecordFinder(dialect, path, skipped)
    block = block[skipped:]
    while block:
        yield finder.feed(block)
        block = file.read(block_bytes)
    last = finder.finish()
    if last is not None:
        yield np.array([last], dtype=np.int64)


def build_index(path: str, dialect: Dialect, *, with_header: bool, block_bytes: int = BLOCK_BYTES) -> OffsetIndex:
    """Indexes a file in one pass.

    Args:
        path: the file, local or an fsspec URL.
        dialect: how fields and records are separated.
        with_header: the first record is a header and is not counted.
        block_bytes: bytes read at a time.

    Raises:
        CorruptDataError: quotes that do not match.
        DataError: the file is missing, unreadable, compressed or not in a byte-wise encoding.
    """
    collector, header = OffsetCollector(), with_header
    end = files.stamp(path).size
    with files.open_for_reading(path) as file:
        for starts in _starts(file, path, dialect, block_bytes):
            if header and len(starts):
                starts, header = starts[1:], False
            collector.add(starts)
    return collector.index(end)


def head_of(path: str, dialect: Dialect, records: int) -> bytes:
    """The bytes of the first few records of a file, the byte order mark left out.

    Raises:
        DataError: the file is missing, unreadable or not in a byte-wise encoding.
    """
    size = 64 << 10
    while True:
        with files.open_for_reading(path) as file:
            data = file.read(size)
        skipped = data_start(data, path)
        finder = RecordFinder(dialect, path, 0)
        starts = finder.feed(data[skipped:])
        if len(starts) > records:
            return data[skipped : skipped + int(starts[records])]
        if len(data) < size:
            return data[skipped:]
        size *= 8


def locate(data: bytes, dialect: Dialect, path: str, base: int, number: int) -> int:
    """The byte offset in the file of the record ``number`` of a piece of it that begins at ``base``."""
    starts = RecordFinder(dialect, path, base).feed(data + b"\n")
    return int(starts[number]) if number < len(starts) else base

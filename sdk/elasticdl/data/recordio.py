"""The RecordIO codec: chunks of records, each with a checksum and optionally compressed.

A file is a sequence of chunks and nothing else. A chunk is a header of 20 bytes and a payload:

======  ======  =====================================================================
offset  size    little-endian field
======  ======  =====================================================================
0       uint32  magic, ``0x01020304``
4       uint32  CRC-32 (IEEE 802.3, as zlib's) of the payload as stored (compressed)
8       uint32  compressor: 0 none, 1 snappy (framing format), 2 gzip
12      uint32  size of the stored payload in bytes
16      uint32  number of records
20              payload: for each record its length as uint32, then its bytes
======  ======  =====================================================================

The layout is that of https://github.com/wangkuiyi/recordio, so files go both ways. Because each header tells the
size of its chunk, an index of a file is built by hopping from header to header, reading no data.
"""

from __future__ import annotations

import bisect
import enum
import gzip
import itertools
import struct
import zlib
from array import array
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import dataclass
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import numpy as np

from elasticdl.data import files
from elasticdl.data.errors import CorruptDataError, DataError
from elasticdl.data.record_file import checked_record, open_new

MAGIC = 0x01020304
MAGIC_BYTES = struct.pack("<I", MAGIC)
HEADER = struct.Struct("<IIIII")
_LENGTH = struct.Struct("<I")
_MAX_UINT32 = 0xFFFFFFFF

#: Whoever reads a few records decodes their chunks: chunks of 128 KiB keep that cheap, and compress as well as larger
#: ones, since snappy compresses in frames of 64 KiB.
DEFAULT_CHUNK_BYTES = 1 << 17


class Compressor(enum.IntEnum):
    """Compressions of a chunk's payload; the numbers are those of the file format."""

    NONE = 0
    SNAPPY = 1
    GZIP = 2

    @classmethod
    def of(cls, value: Compressor | str | int) -> Compressor:
        """The compressor of a name (``none``, ``snappy``, ``gzip``) or number.

        Raises:
            DataError: there is none of that name.
        """
        try:
            return cls[value.upper()] if isinstance(value, str) else cls(value)
        except (KeyError, ValueError):
            raise DataError(
                f"there is no RecordIO compressor {value!r}", fix="use one of: none, snappy, gzip"
            ) from None


@dataclass(frozen=True, slots=True)
class Chunk:
    """The header of a chunk, and its position.

    Attributes:
        number: position in the file, counted from 0.
        offset: byte offset of the header.
        checksum: CRC-32 of the stored payload.
        compressor: how the payload is stored.
        size: bytes of the stored payload.
        first: index in the file of the chunk's first record.
        records: number of records.
    """

    number: int
    offset: int
    checksum: int
    compressor: Compressor
    size: int
    first: int
    records: int


def encode_chunk(records: Iterable[bytes], compressor: Compressor) -> bytes:
    """One chunk, header and payload.

    Raises:
        DataError: the chunk does not fit in the format's 32-bit sizes.
    """
    parts: list[bytes] = []
    count = 0
    for record in records:
        parts.append(_LENGTH.pack(len(record)))
        parts.append(record)
        count += 1
    payload = _compress(b"".join(parts), compressor)
    if len(payload) > _MAX_UINT32:
        raise DataError(
            f"a RecordIO chunk of {len(payload)} bytes is over 4 GiB", fix="write smaller chunks or records"
        )
    return HEADER.pack(MAGIC, zlib.crc32(payload), compressor, len(payload), count) + payload


def _compress(data: bytes, compressor: Compressor) -> bytes:
    if compressor is Compressor.NONE:
        return data
    if compressor is Compressor.GZIP:
        return gzip.compress(data, compresslevel=6, mtime=0)  # no time: the same records give the same bytes
    import cramjam

    return bytes(cramjam.snappy.compress(data))


def _decompress(data: bytes, compressor: Compressor) -> bytes:
    """The payload as written; raises ValueError when the data does not decompress."""
    if compressor is Compressor.NONE:
        return data
    if compressor is Compressor.GZIP:
        try:
            return gzip.decompress(data)
        except (OSError, EOFError, zlib.error) as error:
            raise ValueError(str(error)) from error
    import cramjam

    try:
        return bytes(cramjam.snappy.decompress(data)) if data else b""
    except cramjam.DecompressionError as error:
        raise ValueError(str(error)) from error


def parse_header(header: bytes, *, path: str, offset: int, number: int, first: int) -> Chunk:
    """Reads a header of 20 bytes.

    Raises:
        CorruptDataError: too short, another magic, or a compressor that does not exist.
    """
    if len(header) < HEADER.size:
        raise CorruptDataError(
            f"the file ends inside a chunk header ({len(header)} of {HEADER.size} bytes)",
            path=path, offset=offset, chunk=number,
        )  # fmt: skip
    magic, checksum, compressor, size, records = HEADER.unpack(header)
    if magic != MAGIC:
        raise CorruptDataError(
            f"not a RecordIO chunk: the magic number is 0x{magic:08x}, not 0x{MAGIC:08x}",
            path=path, offset=offset, chunk=number,
        )  # fmt: skip
    if compressor not in Compressor._value2member_map_:
        raise CorruptDataError(f"there is no compressor {compressor}", path=path, offset=offset, chunk=number)
    return Chunk(number, offset, checksum, Compressor(compressor), size, first, records)


def decompress_payload(payload: bytes, chunk: Chunk, *, path: str) -> bytes:
    """Checks and decompresses the stored payload of a chunk.

    Raises:
        CorruptDataError: it is truncated, its checksum differs, or it does not decompress.
    """
    if len(payload) != chunk.size:
        reason = f"the file ends inside the chunk ({len(payload)} of {chunk.size} payload bytes)"
        raise corrupt_chunk(reason, chunk, path=path)
    checksum = zlib.crc32(payload)
    if checksum != chunk.checksum:
        reason = f"the checksum is 0x{checksum:08x}, the header says 0x{chunk.checksum:08x}"
        raise corrupt_chunk(reason, chunk, path=path)
    try:
        return _decompress(payload, chunk.compressor)
    except ValueError as error:
        reason = f"the {chunk.compressor.name.lower()} data does not decompress: {error}"
        raise corrupt_chunk(reason, chunk, path=path) from error


def corrupt_chunk(reason: str, chunk: Chunk, *, path: str) -> CorruptDataError:
    """The error that names a chunk."""
    return CorruptDataError(reason, path=path, offset=chunk.offset, chunk=chunk.number)


def record_places(data: bytes, chunk: Chunk, *, path: str) -> Sequence[int]:
    """Offsets of a decompressed payload's records, with their lengths before them, and of the last one's end.

    Records of equal length, such as arrays of numbers, need no look at each of them, and no memory.

    Raises:
        CorruptDataError: the records do not fill the payload exactly.
    """
    end = len(data)
    step = end // chunk.records if chunk.records else 0
    if step >= _LENGTH.size and step * chunk.records == end:
        lengths = np.ndarray((chunk.records,), "<u4", data, strides=(step,))
        if (lengths == step - _LENGTH.size).all():
            return range(0, end + 1, step)
    places = array("q", [0])
    position = 0
    unpack = _LENGTH.unpack_from
    for number in range(chunk.records):
        if position + 4 > end:
            raise corrupt_chunk(f"the payload ends after {number} of {chunk.records} records", chunk, path=path)
        (length,) = unpack(data, position)
        position += 4 + length
        if position > end:
            reason = f"record {number} of the chunk is {length} bytes long and passes its end"
            raise corrupt_chunk(reason, chunk, path=path)
        places.append(position)
    if position != end:
        raise corrupt_chunk(f"{end - position} bytes follow the last record of the chunk", chunk, path=path)
    return places


def split(data: bytes, places: Sequence[int], first: int = 0) -> list[bytes]:
    """The records of a part of a payload.

    Args:
        data: the part.
        places: where its records begin in the payload, and where the last one ends.
        first: where the part begins in the payload.
    """
    return [data[low + 4 - first : high - first] for low, high in itertools.pairwise(places)]


class Writer:
    """Writes a RecordIO file. Use it as a context manager, or call ``close``.

    Args:
        path: the file, made anew; or an open binary file, which stays open.
        max_chunk_bytes: a chunk is written once its records reach this many bytes, before compression.
        compressor: ``none``, ``snappy`` or ``gzip``.
        records_per_chunk: a chunk is written once it has this many records; no limit by default.

    Raises:
        DataError: the file cannot be made.
    """

    def __init__(
        self,
        path: str | Path | BinaryIO,
        max_chunk_bytes: int = DEFAULT_CHUNK_BYTES,
        compressor: Compressor | str | int = Compressor.SNAPPY,
        *,
        records_per_chunk: int | None = None,
    ) -> None:
        if max_chunk_bytes < 1 or (records_per_chunk is not None and records_per_chunk < 1):
            raise DataError("a RecordIO chunk holds at least one byte and one record", fix="give a size over 0")
        self._compressor = Compressor.of(compressor)
        self._max_bytes = max_chunk_bytes
        self._max_records = records_per_chunk
        self._records: list[bytes] = []
        self._bytes = 0
        self._owned = isinstance(path, str | Path)
        self._file: BinaryIO | None = open_new(path)

    def write(self, record: bytes) -> None:
        """Adds a record; an empty one counts too.

        Raises:
            DataError: the record is not ``bytes``, or the writer is closed.
        """
        if self._file is None:
            raise DataError("the RecordIO writer is closed", fix="write before close()")
        record = checked_record(record, "RecordIO")
        if self._records and self._bytes + len(record) + 4 > self._max_bytes:
            self.flush()
        self._records.append(record)
        self._bytes += len(record) + 4
        if len(self._records) == self._max_records:
            self.flush()

    def flush(self) -> None:
        """Writes the records so far as a chunk of their own."""
        if self._records and self._file is not None:
            self._file.write(encode_chunk(self._records, self._compressor))
            self._records.clear()
            self._bytes = 0

    def close(self) -> None:
        """Writes what is left and closes the file; closing twice is allowed."""
        if self._file is None:
            return
        try:
            self.flush()
        finally:
            file, self._file = self._file, None
            if self._owned:
                file.close()

    def __enter__(self) -> Writer:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


class Index:
    """The chunks of a file, found by hopping over the headers; no data is read or decompressed.

    Args:
        path: the file, local or an fsspec URL.
        tolerate_damage: keep the chunks before the first damaged header or truncated chunk instead of failing;
            ``damage`` then says what was found.

    Attributes:
        path: the file.
        chunks: the chunks in order.
        size: bytes of the file.
        damage: the error at which the index ended, or ``None``.

    Raises:
        CorruptDataError: a damaged header or a truncated file.
        DataError: the file is missing or unreadable.
    """

    def __init__(self, path: str | Path, *, tolerate_damage: bool = False) -> None:
        self.path = str(path)
        self.chunks: list[Chunk] = []
        self.size = files.stamp(self.path).size
        self.damage: CorruptDataError | None = None
        try:
            with files.open_for_reading(self.path, block_size=0) as file:
                self._hop(file)
        except CorruptDataError as error:
            if not tolerate_damage:
                raise
            self.damage = error
        self._firsts = [chunk.first for chunk in self.chunks]

    def _hop(self, file: BinaryIO) -> None:
        offset = first = 0
        while offset < self.size:
            file.seek(offset)
            number = len(self.chunks)
            header = file.read(HEADER.size)
            chunk = parse_header(header, path=self.path, offset=offset, number=number, first=first)
            end = offset + HEADER.size + chunk.size
            if end > self.size:
                raise CorruptDataError(
                    f"the file ends inside the chunk ({self.size - offset - HEADER.size} of {chunk.size} payload "
                    "bytes)", path=self.path, offset=offset, chunk=number,
                )  # fmt: skip
            self.chunks.append(chunk)
            first += chunk.records
            offset = end

    def num_records(self) -> int:
        """Number of records in the file."""
        return self.chunks[-1].first + self.chunks[-1].records if self.chunks else 0

    def position_of(self, number: int) -> int:
        """The index of the chunk that holds a record."""
        return bisect.bisect_right(self._firsts, number) - 1

    def covering(self, start: int, end: int) -> Iterator[Chunk]:
        """The chunks that hold records ``start`` to ``end``."""
        if start >= end:
            return
        position = max(bisect.bisect_right(self._firsts, start) - 1, 0)
        for number in range(position, len(self.chunks)):
            chunk = self.chunks[number]
            if chunk.first >= end:
                return
            if chunk.first + chunk.records > start:
                yield chunk

    def close(self) -> None:
        """Does nothing: an index holds no file open."""


def read_payload(file: BinaryIO, chunk: Chunk, *, path: str) -> bytes:
    """Reads, checks and decompresses one chunk of an open file.

    Raises:
        CorruptDataError: the payload is damaged.
    """
    file.seek(chunk.offset + HEADER.size)
    return decompress_payload(file.read(chunk.size), chunk, path=path)


def read_part(file: BinaryIO, chunk: Chunk, places: Sequence[int], *, path: str) -> list[bytes]:
    """Reads some records of an uncompressed chunk of an open file that was checked before.

    Args:
        file: the file.
        chunk: the chunk.
        places: where the records begin in the payload, and where the last one ends.
        path: the file's name for errors.

    Raises:
        CorruptDataError: the file has changed.
    """
    first, last = places[0], places[-1]
    file.seek(chunk.offset + HEADER.size + first)
    data = file.read(last - first)
    if len(data) != last - first or _LENGTH.unpack_from(data)[0] != places[1] - first - _LENGTH.size:
        raise corrupt_chunk("the chunk is not what it was when it was checked", chunk, path=path)
    return split(data, places, first)


def is_record(part: bytes, size: int) -> bool:
    """Whether some bytes are as many as they should be, and their length is that of one record."""
    return len(part) == size and bool(_LENGTH.unpack_from(part)[0] == size - _LENGTH.size)


def read_chunk(file: BinaryIO, chunk: Chunk, *, path: str) -> list[bytes]:
    """Reads, checks and decodes one chunk of an open file.

    Raises:
        CorruptDataError: the payload is damaged.
    """
    data = read_payload(file, chunk, path=path)
    return split(data, record_places(data, chunk, path=path))


class Scanner:
    """Reads a range of records of a file, one chunk at a time.

    Args:
        path: the file, local or an fsspec URL.
        start: index of the first record.
        len: number of records; -1 for all that follow.
        index: the file's index if it is at hand.

    Raises:
        CorruptDataError: the file is damaged.
        DataError: the file is missing or unreadable.
    """

    def __init__(self, path: str | Path, start: int = 0, len: int = -1, index: Index | None = None) -> None:
        self._path = str(path)
        self._index = index if index is not None else Index(path)
        total = self._index.num_records()
        self._start = max(start, 0)
        self._end = total if len < 0 else min(start + len, total)
        self._file: BinaryIO | None = files.open_for_reading(self._path)
        self._records = self._scan()

    def _scan(self) -> Iterator[bytes]:
        for chunk in self._index.covering(self._start, self._end):
            if self._file is None:
                return
            records = read_chunk(self._file, chunk, path=self._path)
            yield from records[max(self._start - chunk.first, 0) : self._end - chunk.first]

    def record(self) -> bytes | None:
        """The next record, or ``None`` after the last; an empty record is ``b""``."""
        return next(self._records, None)

    def __iter__(self) -> Iterator[bytes]:
        return self._records

    def close(self) -> None:
        """Closes the file; closing twice is allowed."""
        if self._file is not None:
            self._file.close()
            self._file = None

    def __enter__(self) -> Scanner:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

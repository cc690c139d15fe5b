"""The TFRecord codec: length-prefixed records with masked CRC-32C checksums. It needs no TensorFlow.

A file is a sequence of records: ``uint64 length, uint32 crc(length), data, uint32 crc(data)``, little-endian, where
``crc`` is CRC-32C (Castagnoli), rotated right by 15 bits plus ``0xa282ead8`` modulo 2**32, as
https://www.tensorflow.org/tutorials/load_data/tfrecord describes.
"""

from __future__ import annotations

import struct
from array import array
from collections.abc import Iterable, Iterator
from pathlib import Path
from types import TracebackType
from typing import BinaryIO

import google_crc32c
import numpy as np

from elasticdl.data import files
from elasticdl.data.errors import CorruptDataError, DataError
from elasticdl.data.offset_index import OffsetCollector, OffsetIndex
from elasticdl.data.record_file import checked_record, open_new

_HEADER = struct.Struct("<QI")
_LENGTH = struct.Struct("<Q")
_CRC = struct.Struct("<I")
_FRAME = _HEADER.size + _CRC.size
_BLOCK_BYTES = 1 << 20
#: After a record longer than this, the index fetches headers alone instead of whole blocks.
_LONG_RECORD = 64 << 10
_SHORT_BLOCK = 4 << 10
_COLLECTED = 1 << 16
#: Lengths whose checksum was seen to be right; bounded, as hostile files may have a new length in each record.
_KNOWN_HEADERS = 1 << 16
GZIP_MAGIC = b"\x1f\x8b"


def masked_crc32c(data: bytes) -> int:
    """The checksum of the format: CRC-32C, rotated and offset, so that it can itself be checksummed."""
    crc = int(google_crc32c.value(data))
    return (((crc >> 15) | (crc << 17)) + 0xA282EAD8) & 0xFFFFFFFF


def encode_record(record: bytes) -> bytes:
    """One record with its length and checksums."""
    length = _LENGTH.pack(len(record))
    return b"".join((length, _CRC.pack(masked_crc32c(length)), record, _CRC.pack(masked_crc32c(record))))


def looks_like_tfrecord(head: bytes) -> bool:
    """Whether the first 12 bytes of a file are a length with its right checksum."""
    if len(head) < _HEADER.size:
        return False
    return masked_crc32c(head[:8]) == int(_HEADER.unpack_from(head)[1])


class TFRecordWriter:
    """Writes a TFRecord file. Use it as a context manager, or call ``close``.

    Args:
        path: the file, made anew; or an open binary file, which stays open.

    Raises:
        DataError: the file cannot be made.
    """

    def __init__(self, path: str | Path | BinaryIO) -> None:
        self._owned = isinstance(path, str | Path)
        self._file: BinaryIO | None = open_new(path)

    def write(self, record: bytes) -> None:
        """Adds a record; an empty one counts too.

        Raises:
            DataError: the record is not ``bytes``, or the writer is closed.
        """
        if self._file is None:
            raise DataError("the TFRecord writer is closed", fix="write before close()")
        self._file.write(encode_record(checked_record(record, "TFRecord")))

    def close(self) -> None:
        """Closes the file; closing twice is allowed."""
        file, self._file = self._file, None
        if file is not None and self._owned:
            file.close()

    def __enter__(self) -> TFRecordWriter:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()


def refuse_compressed(head: bytes, path: str) -> None:
    """Refuses a gzip-compressed file: its records cannot be found without inflating all before them.

    Raises:
        DataError: the file begins as gzip does.
    """
    if head.startswith(GZIP_MAGIC) and not looks_like_tfrecord(head):
        raise DataError(
            f"{path}: is compressed with gzip, so a worker cannot start at a record in its middle",
            fix=f"gunzip it, or convert it to compressed RecordIO: "
            f"zcat {path} > data.tfrecord && elasticdl data convert data.tfrecord data.recordio --to recordio",
        )


def build_index(path: str, *, tolerate_damage: bool = False) -> OffsetIndex:
    """Finds where records begin by hopping from length to length; long records are not read.

    Args:
        path: the file, local or an fsspec URL.
        tolerate_damage: end the index at the first damaged length or truncated record instead of failing.

    Raises:
        CorruptDataError: a damaged length or a truncated file.
        DataError: the file is missing, unreadable or compressed.
    """
    size = files.stamp(path).size
    collector, found = OffsetCollector(), array("q")
    position = 0
    damage = ""
    with files.open_for_reading(path, block_size=0) as file:
        refuse_compressed(file.read(_HEADER.size), path)
        try:
            for position in _record_offsets(file, path, size):
                found.append(position)
                if len(found) == _COLLECTED:
                    collector.add(np.asarray(found, dtype=np.int64))
                    found = array("q")
            position = size
        except _Damage as error:
            if not tolerate_damage:
                record = collector.records + len(found)
                raise CorruptDataError(error.reason, path=path, offset=error.offset, record=record) from None
            position, damage = error.offset, error.reason
    collector.add(np.asarray(found, dtype=np.int64))
    return collector.index(position, damage)


class _Damage(Exception):
    def __init__(self, reason: str, offset: int) -> None:
        super().__init__(reason)
        self.reason = reason
        self.offset = offset


def _record_offsets(file: BinaryIO, path: str, size: int) -> Iterator[int]:
    """Yields the byte offset of each record after checking that its length is right and fits in the file."""
    known: dict[bytes, int] = {}
    position = 0
    block_bytes = _BLOCK_BYTES
    while position < size:
        file.seek(position)
        block = file.read(block_bytes)
        if len(block) < min(_HEADER.size, size - position):
            raise _Damage("the file became shorter while it was read", position)
        base, inside = position, 0
        limit = len(block) - _HEADER.size
        while inside <= limit:
            header = block[inside : inside + _HEADER.size]
            length = known.get(header)
            if length is None:
                length, checksum = _HEADER.unpack(header)
                if masked_crc32c(header[:8]) != checksum:
                    raise _Damage("the checksum of the record's length is wrong", base + inside)
                if len(known) < _KNOWN_HEADERS:
                    known[header] = length
            position = base + inside
            following = inside + length + _FRAME
            if base + following > size:
                raise _Damage(
                    f"the file ends inside a record of {length} bytes ({size - position - _HEADER.size} bytes follow "
                    "its length)", position,
                )  # fmt: skip
            yield position
            inside = following
            block_bytes = _SHORT_BLOCK if length > _LONG_RECORD else _BLOCK_BYTES
        position = base + inside
        if 0 < size - position < _HEADER.size:
            raise _Damage(f"the file ends inside a record's length ({size - position} of 12 bytes)", position)


def single_records(parts: Iterable[bytes]) -> list[bytes] | None:
    """The records of the bytes of single ones; None if one is not as it should be.

    The checksums of the lengths were looked at when the file was indexed.
    """
    records: list[bytes] = []
    length, unpack, crc32c = _LENGTH.unpack_from, _CRC.unpack_from, google_crc32c.value
    frame, head = _FRAME, _HEADER.size
    for part in parts:
        after = len(part) - 4
        if after < head or length(part)[0] + frame != after + 4:
            return None
        record = part[head:after]
        crc = crc32c(record)
        if ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF != unpack(part, after)[0]:
            return None
        records.append(record)
    return records


def scan(
    file: BinaryIO, path: str, index: OffsetIndex, start: int, end: int, *, skip: bool = False
) -> Iterator[list[bytes | None]]:
    """Reads records ``start`` to ``end`` in pieces of about 1 MiB, with all checksums verified.

    Args:
        file: the file, open.
        path: its name for errors.
        index: its index.
        start: index of the first record.
        end: one past the last record.
        skip: give ``None`` in the place of a record with a wrong checksum instead of failing.

    Raises:
        CorruptDataError: a record is damaged.
    """
    if start >= end:
        return
    first_byte, last_byte, number = index.byte_range(start, end)
    file.seek(first_byte)
    held, base = b"", first_byte
    known: dict[bytes, int] = {}
    while number < end:
        fresh = file.read(min(_BLOCK_BYTES, last_byte - base - len(held)))
        block = held + fresh if held else fresh
        records, inside, number = _parse(block, path, base, number, start, end, skip, known)
        if not fresh and number < end:
            raise CorruptDataError(
                "the file became shorter after it was indexed", path=path, offset=base, record=number
            )
        if records:
            yield records
        held, base = block[inside:], base + inside
        needed = _HEADER.unpack_from(held)[0] + _FRAME if len(held) >= _HEADER.size else 0
        if number < end and needed > len(held) + _BLOCK_BYTES:  # fetch a long record whole
            if base + needed > last_byte:
                raise CorruptDataError("the record's length is wrong", path=path, offset=base, record=number)
            held += file.read(needed - len(held) - 1)


def _parse(
    block: bytes,
    path: str,
    base: int,
    number: int,
    start: int,
    end: int,
    skip: bool,
    known: dict[bytes, int],
) -> tuple[list[bytes | None], int, int]:
    """The whole records in a block; returns them, the bytes used, and the number of the next record."""
    records: list[bytes | None] = []
    inside = 0
    size = len(block)
    crc32c, unpack = google_crc32c.value, _CRC.unpack_from
    while number < end and inside + _HEADER.size <= size:
        header = block[inside : inside + _HEADER.size]
        length = known.get(header)
        if length is None:
            length, checksum = _HEADER.unpack(header)
            if masked_crc32c(header[:8]) != checksum:
                reason = "the checksum of the record's length is wrong"
                raise CorruptDataError(reason, path=path, offset=base + inside, record=number)
            if len(known) < _KNOWN_HEADERS:
                known[header] = length
        after = inside + _HEADER.size + length
        if after + _CRC.size > size:
            break
        if number >= start:
            record = block[inside + _HEADER.size : after]
            crc = crc32c(record)  # masked in place: this loop is the reader's speed
            good = ((crc >> 15 | crc << 17) + 0xA282EAD8) & 0xFFFFFFFF == unpack(block, after)[0]
            if not good and not skip:
                raise CorruptDataError(
                    "the checksum of the record is wrong", path=path, offset=base + inside, record=number
                )
            records.append(record if good else None)
        inside = after + _CRC.size
        number += 1
    return records, inside, number

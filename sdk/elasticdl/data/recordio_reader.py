"""Reads RecordIO files."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, ClassVar, TypeAlias

from elasticdl.data import files, recordio
from elasticdl.data.errors import CorruptDataError, DataError
from elasticdl.data.file_reader import BoundedCache, FileDataReader
from elasticdl.data.reader import Metadata, Record, RecordSpec
from elasticdl.data.recordio import Chunk, Compressor
from elasticdl_core.mixed_order import Span

#: Decompressed payloads kept, so that the tasks of one chunk decompress it once. Chunks that are not compressed are
#: checked whole at first; later only the records that are wanted are read.
_PAYLOAD_BYTES = 64 << 20
#: What is kept of where records begin.
_PLACE_BYTES = 64 << 20
_Known: TypeAlias = tuple[int, int, int, Sequence[int], bytes]
"""Of a chunk: its first record, one past the last, where its payload begins, where records do in it, the payload."""


class RecordIODataReader(FileDataReader[recordio.Index]):
    """Reads RecordIO files; each record is ``bytes``.

    Args:
        data_origin: files, directories, globs or URLs, separated by commas.
        records_per_task: cut shards to at most this many records; by default a shard is a whole file.
        reader_params: ``on_corrupt``: ``fail`` (default) or ``skip``, which passes over a chunk that is damaged.
        data_dir: another name of ``data_origin``, which older model modules use.

    Raises:
        DataError: no data origin is given.
        ReaderParamsError: a parameter is unknown or has an impossible value.
    """

    kind: ClassVar[str] = "recordio"

    def __init__(
        self,
        data_origin: str | None = None,
        records_per_task: int | None = None,
        reader_params: Mapping[str, Any] | None = None,
        *,
        data_dir: str | None = None,
    ) -> None:
        origin = data_origin or data_dir
        if not origin:
            raise DataError("RecordIODataReader needs data", fix="give data_origin (or data_dir): a file or folder")
        super().__init__(origin, records_per_task, reader_params)
        self._payloads: BoundedCache[bytes] = BoundedCache(_PAYLOAD_BYTES, len)
        self._places: BoundedCache[Sequence[int]] = BoundedCache(
            _PLACE_BYTES, lambda places: 256 + (8 * len(places) if isinstance(places, array) else 0)
        )

        self._checked: dict[str, dict[int, _Known]] = {}
        self._checked_bytes = 0

    def _is_indexed(self, paths: Sequence[str]) -> bool:
        """Also whether what is compressed is kept once it is decompressed: if not, a record costs that of a chunk."""
        packed = [(path, one) for path in paths for one in self.index_of(path).chunks if one.compressor and one.size]
        stored = sum(chunk.size for _, chunk in packed)
        if not stored or stored > _PAYLOAD_BYTES:
            return not stored
        # As long as one chunk is for its size: whoever would know exactly had to decompress all.
        path, chunk = packed[len(packed) // 2]
        try:
            with self._open(path, 0) as file:
                unpacked = len(recordio.read_payload(file, chunk, path=path))
        except CorruptDataError:
            return False
        return stored * unpacked <= _PAYLOAD_BYTES * chunk.size

    @property
    def metadata(self) -> Metadata:
        """RecordIO knows nothing of what is in its records."""
        return Metadata(kind=self.kind)

    @property
    def records_kind(self) -> RecordSpec:
        """Bytes."""
        return RecordSpec("bytes")

    def _load_index(self, path: str) -> recordio.Index:
        index = recordio.Index(path, tolerate_damage=self._skip)
        if index.damage is not None:
            place = f"byte {index.damage.offset}, chunk {index.damage.chunk}"
            self._note_damage(path, f"{place}: {index.damage.reason}")
        return index

    def _count(self, index: recordio.Index) -> int:
        return index.num_records()

    def _pick(self, file: files.OpenFile, path: str, numbers: Sequence[int]) -> list[Record] | None:
        index, found = self.index_of(path), list[bytes]()
        part, is_record, checked = file.part, recordio.is_record, self._checked.setdefault(path, {})
        end = 0
        for number in numbers:
            if number >= end:
                at = index.position_of(number)
                try:
                    first, end, begin, places, data = checked.get(at) or self._known(file, path, index.chunks[at])
                except CorruptDataError:
                    return None
            low, high = places[number - first], places[number - first + 1]
            if data:
                found.append(data[low + 4 : high])
                continue
            record = part(begin + low, begin + high)
            if not is_record(record, high - low):
                return None
            found.append(record[4:])
        return found

    def _known(self, file: files.OpenFile, path: str, chunk: Chunk) -> _Known:
        """The index of a chunk for reading single records; kept for one that is not compressed."""
        key, begin = (path, chunk.number), chunk.offset + recordio.HEADER.size

        def read() -> bytes:
            payload = file.part(begin, begin + chunk.size)
            return recordio.decompress_payload(payload, chunk, path=path)

        packed = chunk.compressor is not Compressor.NONE
        data = self._payloads.get(key, read) if packed else read()
        places = self._places.get(key, lambda: recordio.record_places(data, chunk, path=path))
        known = (chunk.first, chunk.first + chunk.records, begin, places, data if packed else b"")
        size = 8 * len(places) if isinstance(places, array) else 0
        if not packed and self._checked_bytes + size <= _PLACE_BYTES:
            self._checked[path][chunk.number] = known
            self._checked_bytes += size + 256
        return known

    def _byte_spans(self, path: str, start: int, end: int) -> Iterator[Span]:
        for chunk in self.index_of(path).covering(start, end):
            key, begin = (path, chunk.number), chunk.offset + recordio.HEADER.size
            places = self._places.find(key)
            if chunk.compressor is not Compressor.NONE:
                if self._payloads.find(key) is None:
                    yield path, begin, begin + chunk.size
            elif places is None:
                yield path, begin, begin + chunk.size
            else:
                low, high = max(start - chunk.first, 0), min(end - chunk.first, chunk.records)
                yield path, begin + places[low], begin + places[high]

    def _scan(self, file: BinaryIO, path: str, start: int, end: int) -> Iterator[list[Record]]:
        for chunk in self.index_of(path).covering(start, end):
            low, high = max(start - chunk.first, 0), min(end - chunk.first, chunk.records)
            try:
                records = self._read(file, path, chunk, low, high)
            except CorruptDataError:
                if not self._skip:
                    raise
                self._count_skipped(high - low, path, chunk.first + low)
                continue
            yield records

    def _read(self, file: BinaryIO, path: str, chunk: Chunk, low: int, high: int) -> list[bytes]:
        """The records ``low`` to ``high`` of a chunk."""
        key = (path, chunk.number)
        packed = chunk.compressor is not Compressor.NONE
        known = self._places.find(key)
        if known is not None and not packed:
            return recordio.read_part(file, chunk, known[low : high + 1], path=path)
        read = functools.partial(recordio.read_payload, file, chunk, path=path)
        data = self._payloads.get(key, read) if packed else read()
        places = self._places.get(key, lambda: recordio.record_places(data, chunk, path=path))
        wanted = places[low : high + 1]
        return recordio.split(data, wanted)

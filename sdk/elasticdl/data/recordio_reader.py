"""Reads RecordIO files."""

from __future__ import annotations

import functools
from array import array
from collections.abc import Iterator, Mapping, Sequence
from typing import Any, BinaryIO, ClassVar

from elasticdl.data import recordio
from elasticdl.data.errors import CorruptDataError, DataError
from elasticdl.data.file_reader import BoundedCache, FileDataReader
from elasticdl.data.reader import Metadata, Record, RecordSpec
from elasticdl.data.recordio import Chunk, Compressor

#: Decompressed payloads kept, so that the tasks of one chunk decompress it once. Chunks that are not compressed are
#: checked whole at first; later only the records that are wanted are read.
_PAYLOAD_BYTES = 64 << 20
#: What is kept of where records begin.
_PLACE_BYTES = 32 << 20


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

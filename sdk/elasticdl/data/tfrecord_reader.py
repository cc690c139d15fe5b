"""Reads TFRecord files."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any, BinaryIO, ClassVar

from elasticdl.data import tfrecord
from elasticdl.data.offset_index import OffsetIndex
from elasticdl.data.offset_reader import OffsetFileReader
from elasticdl.data.reader import Metadata, Record, RecordSpec


class TFRecordDataReader(OffsetFileReader):
    """Reads TFRecord files; each record is ``bytes``.

    Args:
        data_origin: files, directories, globs or URLs, separated by commas.
        records_per_task: cut shards to at most this many records; by default a shard is a whole file.
        reader_params: ``on_corrupt``: ``fail`` (default) or ``skip``, which passes over a damaged record;
            ``index_cache``: a folder for indexes, or ``off``; by default the user's cache folder.

    Raises:
        ReaderParamsError: a parameter is unknown or has an impossible value.
    """

    kind: ClassVar[str] = "tfrecord"
    params: ClassVar[tuple[str, ...]] = ("index_cache",)

    @property
    def metadata(self) -> Metadata:
        """TFRecord knows nothing of what is in its records."""
        return Metadata(kind=self.kind)

    @property
    def records_kind(self) -> RecordSpec:
        """Bytes."""
        return RecordSpec("bytes")

    def _load_index(self, path: str) -> OffsetIndex:
        index = super()._load_index(path)
        self._note_damage(path, index.damage and f"byte {index.end}: {index.damage}")
        return index

    def _index_settings(self) -> dict[str, Any]:
        return {"kind": self.kind, "skip": self._skip}

    def _build_index(self, path: str) -> OffsetIndex:
        return tfrecord.build_index(path, tolerate_damage=self._skip)

    def _parse_singles(self, path: str, parts: list[bytes]) -> list[Record] | None:
        return tfrecord.single_records(parts)

    def _scan(self, file: BinaryIO, path: str, start: int, end: int) -> Iterator[list[Record]]:
        at = start
        for found in tfrecord.scan(file, path, self.index_of(path), start, end, skip=self._skip):
            records = [record for record in found if record is not None] if self._skip else found
            if len(records) < len(found):
                self._count_skipped(len(found) - len(records), path, at + found.index(None))
            at += len(found)
            yield records

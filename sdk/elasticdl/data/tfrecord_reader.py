"""Reads TFRecord files."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, ClassVar

from elasticdl.data import files, tfrecord
from elasticdl.data.file_reader import FileDataReader
from elasticdl.data.offset_index import IndexFolder, OffsetIndex
from elasticdl.data.params import take
from elasticdl.data.reader import Metadata, Record, RecordSpec


class TFRecordDataReader(FileDataReader[OffsetIndex]):
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

    def __init__(
        self,
        data_origin: str,
        records_per_task: int | None = None,
        reader_params: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(data_origin, records_per_task, reader_params)
        self._folder = IndexFolder.of(take(self.reader_params, "index_cache", (str, bool), None))

    @property
    def metadata(self) -> Metadata:
        """TFRecord knows nothing of what is in its records."""
        return Metadata(kind=self.kind)

    @property
    def records_kind(self) -> RecordSpec:
        """Bytes."""
        return RecordSpec("bytes")

    def _load_index(self, path: str) -> OffsetIndex:
        stamp = files.stamp(path)
        how = {"kind": self.kind, "skip": self._skip}
        index = self._folder.load(path, stamp, how)
        if index is None:
            index = tfrecord.build_index(path, tolerate_damage=self._skip)
            self._folder.save(path, stamp, how, index)
        self._note_damage(path, index.damage and f"byte {index.end}: {index.damage}")
        return index

    def _count(self, index: OffsetIndex) -> int:
        return index.records

    def _scan(self, file: BinaryIO, path: str, start: int, end: int) -> Iterator[list[Record]]:
        at = start
        for found in tfrecord.scan(file, path, self.index_of(path), start, end, skip=self._skip):
            records = [record for record in found if record is not None] if self._skip else found
            if len(records) < len(found):
                self._count_skipped(len(found) - len(records), path, at + found.index(None))
            at += len(found)
            yield records

"""The base of the readers of files whose index tells the byte offsets of records."""

from __future__ import annotations

import abc
import threading
from collections.abc import Iterator, Mapping, Sequence
from typing import Any

from elasticdl.data import files
from elasticdl.data.file_reader import FileDataReader
from elasticdl.data.offset_index import IndexFolder, OffsetIndex
from elasticdl.data.params import take
from elasticdl.data.reader import Record
from elasticdl_core.mixed_order import Span

_OFFSETS = 1 << 24
"""Records of all files whose offsets are kept one by one: 128 MiB. Of more, an offset for some at a time."""


class OffsetFileReader(FileDataReader[OffsetIndex]):
    """Reads records from files by their byte offsets; has the parameter ``index_cache``."""

    def __init__(
        self,
        data_origin: str,
        records_per_task: int | None = None,
        reader_params: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(data_origin, records_per_task, reader_params)
        self._folder = IndexFolder.of(take(self.reader_params, "index_cache", (str, bool), None))
        self._offsets = 0
        self._offsets_lock = threading.Lock()

    def _load_index(self, path: str) -> OffsetIndex:
        stamp, how = files.stamp(path), self._index_settings()
        index = self._folder.load(path, stamp, how)
        if index is None:
            index = self._build_index(path)
            self._folder.save(path, stamp, how, index)
        with self._offsets_lock:
            self._offsets += index.records
            return index.thinned() if index.stride == 1 and self._offsets > _OFFSETS else index

    def _is_indexed(self, paths: Sequence[str]) -> bool:
        return all(self.index_of(path).stride == 1 for path in paths)

    def _count(self, index: OffsetIndex) -> int:
        return index.records

    def _byte_spans(self, path: str, start: int, end: int) -> Iterator[Span]:
        yield path, *self.index_of(path).byte_range(start, end)[:2]

    def _pick(self, file: files.OpenFile, path: str, numbers: Sequence[int]) -> list[Record] | None:
        index = self.index_of(path)
        if index.stride > 1:
            return None
        starts, ends = index.places(numbers)
        return self._parse_singles(path, list(map(file.part, starts, ends)))

    @abc.abstractmethod
    def _index_settings(self) -> dict[str, Any]:
        """The settings that an index depends on."""

    @abc.abstractmethod
    def _build_index(self, path: str) -> OffsetIndex:
        """Indexes a file."""

    @abc.abstractmethod
    def _parse_singles(self, path: str, parts: list[bytes]) -> list[Record] | None:
        """Makes records of a file of the bytes of each; None if something is wrong with one."""

"""Reads text files line by line: each record is the bytes of a line, without its end."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, ClassVar

from elasticdl.data.csv_index import Dialect
from elasticdl.data.line_reader import LineFileReader
from elasticdl.data.reader import Metadata, Record, RecordSpec


class TextDataReader(LineFileReader):
    """Reads text files. Each line that is not empty is a record: its bytes, in whatever encoding they are.

    Args:
        data_origin: files, directories, globs or URLs, separated by commas.
        records_per_task: cut shards to at most this many lines; by default a shard is a whole file.
        reader_params: ``index_cache``: a folder for indexes, or ``off``; by default the user's cache folder.

    Raises:
        ReaderParamsError: a parameter is unknown or has an impossible value.
    """

    kind: ClassVar[str] = "text"
    params: ClassVar[tuple[str, ...]] = ("index_cache",)

    def __init__(
        self,
        data_origin: str,
        records_per_task: int | None = None,
        reader_params: Mapping[str, Any] | None = None,
    ) -> None:
        super().__init__(data_origin, records_per_task, reader_params)
        self._dialect = Dialect(b",", b"", False)  # without quotes a separator says nothing of lines

    @property
    def metadata(self) -> Metadata:
        """The kind alone."""
        return Metadata(kind=self.kind)

    @property
    def records_kind(self) -> RecordSpec:
        """Bytes."""
        return RecordSpec("bytes")

    def _parse_singles(self, path: str, parts: list[bytes]) -> list[Record] | None:
        return [part.rstrip(b"\r\n") for part in parts]

    def _scan(self, file: BinaryIO, path: str, start: int, end: int) -> Iterator[list[Record]]:
        for data, base, low, high in self._read_pieces(file, path, start, end):
            lines = [line for part in data.split(b"\n") if (line := part.rstrip(b"\r"))]
            self._check_count(len(lines), high - low, path, base, base + len(data))
            yield lines

"""Reads WebDataset archives: a record has the key of a sample, and what its files hold by their endings."""

from __future__ import annotations

import functools
import re
from collections.abc import Iterator, Mapping
from typing import Any, BinaryIO, ClassVar

from elasticdl.data import tar_samples
from elasticdl.data.columns import ColumnSpec, chosen_columns, nulls_policy, type_words
from elasticdl.data.errors import CorruptDataError, DataError, ReaderParamsError
from elasticdl.data.offset_index import OffsetIndex
from elasticdl.data.offset_reader import OffsetFileReader
from elasticdl.data.params import TRAINED_COLUMNS, take_names
from elasticdl.data.reader import Metadata, Record, RecordSpec

KEY = "__key__"
_NUMBERS = frozenset(("class", "cls", "cls2", "count", "id", "index", "inx"))
_TEXTS = frozenset(("json", "jsn", "text", "transcript", "txt"))
"""Endings that WebDataset's own decoders take for whole numbers and for text."""
_NUMBER = re.compile(r"\s*([+-]?\d{1,18})\s*", re.ASCII)
_PIECE_BYTES = 1 << 20


class WebDatasetReader(OffsetFileReader):
    """Reads samples.

    Args:
        data_origin: archives, directories, globs or URLs, separated by commas.
        records_per_task: cut shards to at most this many samples; by default a shard is a whole archive.
        reader_params: all optional.
            ``columns``: the endings to read, and ``__key__``; by default those of the first sample;
            ``nulls``: what a file becomes that a sample lacks: ``fail`` (default), ``default`` (0, ``""``, no
            bytes), or a value for each ending;
            ``index_cache``: a folder for indexes, or ``off``; by default the user's cache folder;
            ``trained_columns``: the endings that the model was trained on; jobs say it by themselves.
        predicting: samples need not have a label.

    Raises:
        ReaderParamsError: a parameter is unknown or has an impossible value.
        DataError: the data is missing or unreadable, or its files make no samples.
    """

    kind: ClassVar[str] = "webdataset"
    params: ClassVar[tuple[str, ...]] = ("columns", "nulls", "index_cache", TRAINED_COLUMNS)

    def __init__(
        self,
        data_origin: str,
        records_per_task: int | None = None,
        reader_params: Mapping[str, Any] | None = None,
        *,
        predicting: bool = False,
    ) -> None:
        super().__init__(data_origin, records_per_task, reader_params)
        if self._skip:
            raise ReaderParamsError(
                "on_corrupt=skip is not possible for webdataset archives, which have no checksums of samples",
                fix="leave it out, and restore damaged files from their source",
            )
        first = next((path for path in self.list_files() if self.count_records(path)), None)
        if first is None:
            raise DataError(f"{data_origin}: the files hold no record", fix="check how the data was written")
        with self._open(first) as file:
            (_, found), *_ = self._samples(file, first, 0, 1)
        wanted, trained = (take_names(self.reader_params, key) for key in ("columns", TRAINED_COLUMNS))
        chosen = chosen_columns(data_origin, [KEY, *found], wanted, trained, label=None, predicting=predicting)
        self._specs = {name: ColumnSpec(_dtype(name)) for name in chosen}
        self._nulls = nulls_policy(self.reader_params.get("nulls", "fail"), self._specs)

    @property
    def columns(self) -> list[str]:
        """The endings that a record has, in its order."""
        return list(self._specs)

    @functools.cached_property
    def metadata(self) -> Metadata:
        """The endings and their types."""
        return Metadata(self.columns, type_words(self._specs), self.kind)

    @functools.cached_property
    def records_kind(self) -> RecordSpec:
        """Dictionaries by the ending."""
        return RecordSpec("table", columns=self._specs)

    def _index_settings(self) -> dict[str, Any]:
        return {"kind": self.kind}

    def _build_index(self, path: str) -> OffsetIndex:
        return tar_samples.build_index(path)

    def _parse_singles(self, path: str, parts: list[bytes]) -> list[Record] | None:
        """None for what a scan will tell by its number."""
        try:
            found = tar_samples.parse(b"".join(parts), path)
            return [self._record(path, "", *one) for one in found] if len(found) == len(parts) else None
        except DataError:
            return None

    def _scan(self, file: BinaryIO, path: str, start: int, end: int) -> Iterator[list[Record]]:
        for first, last in _pieces(self.index_of(path), start, end):
            found = self._samples(file, path, first, last)
            yield [self._record(path, f"record {first + at}: ", *one) for at, one in enumerate(found)]

    def _samples(self, file: BinaryIO, path: str, first: int, last: int) -> list[tuple[str, dict[str, bytes]]]:
        """Some samples that follow each other."""
        index = self.index_of(path)
        low, high, number = index.byte_range(first, last)
        file.seek(low)
        data = file.read(high - low)
        found = tar_samples.parse(data, path) if len(data) == high - low else []
        if len(found) < last - number:
            raise CorruptDataError(
                "the archive is not as it was indexed", path=path, offset=low, record=first,
                fix="submit the job again, and restore damaged files from their source",
            )  # fmt: skip
        return found[first - number : last - number]

    def _record(self, path: str, where: str, key: str, found: Mapping[str, bytes]) -> Record:
        record: dict[str, Any] = {}
        for name, spec in self._specs.items():
            if name == KEY:
                record[name] = key
            elif name in found:
                record[name] = _value(f"{path}: {where}sample {key!r}", name, found[name], spec.dtype)
            elif self._nulls[name] == "fail":
                raise DataError(
                    f"{path}: {where}sample {key!r} has no file .{name}; it has .{', .'.join(found)}",
                    fix=f'name the endings that all have, columns=["{KEY}",...], or say what a missing file becomes: '
                    "nulls=default for 0, empty text and no bytes",
                )
            elif self._nulls[name] == "default":
                record[name] = {"int64": 0, "str": "", "bytes": b""}[spec.dtype]
            else:
                record[name] = self._nulls[name]
        return record


def _pieces(index: OffsetIndex, start: int, end: int) -> Iterator[tuple[int, int]]:
    """Cuts a range into such as are read at once: of many samples that are small, or of one."""
    while start < end:
        stop = start + 1
        while stop < end:
            low, high, _ = index.byte_range(start, stop + 1)
            if high - low > _PIECE_BYTES:
                break
            stop += 1
        yield start, stop
        start = stop


def _dtype(ending: str) -> str:
    """The type of what files of an ending hold, as WebDataset takes it."""
    return "int64" if ending in _NUMBERS else "str" if ending in _TEXTS or ending == KEY else "bytes"


def _value(where: str, name: str, data: bytes, dtype: str) -> Any:
    if dtype == "bytes":
        return data
    try:
        text = data.decode()
    except UnicodeDecodeError as error:
        raise DataError(f"{where}: .{name} is not UTF-8: {error}", fix="write it as UTF-8, or rename it") from None
    if dtype == "str":
        return text
    number = _NUMBER.fullmatch(text)
    if number is None:
        raise DataError(
            f"{where}: .{name} holds {text[:40]!r}, which is no whole number",
            fix="write the number of the class, or the name of the class as .txt",
        )
    return int(number[1])

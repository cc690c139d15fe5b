"""Adapts a user's reader to ``DataReader``: it has ``create_shards``, ``read_records`` and perhaps ``metadata``."""

from __future__ import annotations

import itertools
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from elasticdl.data.errors import DataError
from elasticdl.data.reader import DataReader, Feed, Metadata, Record, RecordSpec, Shard, ShardLike
from elasticdl_core.well_formed import is_name

_SHARDS_FIX = (
    "create_shards() gives Shard objects, (name, start, end) tuples, or a dict of name -> (start, record count)"
)


@dataclass(frozen=True)
class TaskView:
    """A shard as users' readers know a task: ``task.name`` or ``task.shard_name``, or ``task.shard.name``.

    Attributes:
        name: the unit that the reader knows.
        start: index of the first record.
        end: one past the index of the last record.
    """

    name: str
    start: int
    end: int

    @property
    def shard_name(self) -> str:
        """The same as ``name``."""
        return self.name

    @property
    def shard(self) -> TaskView:
        """The same object, for readers that write ``task.shard.start``."""
        return self


class CustomDataReader(DataReader):
    """Wraps a user's reader object.

    ``create_shards()`` may return shards in any of these forms:

    - an iterable of ``Shard`` objects, or of ``(name, start, end)`` tuples;
    - a dict of ``name -> (start, record count)``;
    - an iterable of ``(name, start, record count)`` tuples: readers that derive from the original's
      ``AbstractDataReader``, and others whose tuples can be nothing else.

    Tuples of a reader that does not derive from it are refused if they can be read both ways.

    Args:
        reader: the user's object.

    Raises:
        DataError: a needed method is missing.
    """

    def __init__(self, reader: Any) -> None:
        missing = [name for name in ("create_shards", "read_records") if not callable(getattr(reader, name, None))]
        if missing:
            raise DataError(
                f"the custom data reader {type(reader).__name__} has no method {' and no '.join(missing)}",
                fix="a reader has create_shards(), read_records(task) and, if it can, the property metadata",
            )
        self.reader = reader

    def create_shards(self) -> Iterator[Shard]:
        """The user's shards, in our form.

        Raises:
            DataError: they are in no known form, or there are none.
        """
        count = 0
        for shard in _shards(self.reader.create_shards(), getattr(self.reader, "shards_hold_counts", None)):
            if not is_name(shard.name):
                raise DataError(
                    f"the custom data reader {type(self.reader).__name__} has a shard {shard.name!a}, whose name "
                    "is not Unicode or has control characters",
                    fix="name shards in plain text; Path.as_uri() writes any path so",
                )
            count += 1
            yield shard
        if not count:
            raise DataError(
                f"the custom data reader {type(self.reader).__name__} lists no shards",
                fix="let create_shards() give at least one; check the data path",
            )

    def read_records(self, shard: ShardLike) -> Iterator[Record]:
        """The records that the user's ``read_records(task)`` yields."""
        return iter(self.reader.read_records(TaskView(shard.name, shard.start, shard.end)))

    @property
    def reads_by_index(self) -> bool:
        """Whether the user's reader says so."""
        return bool(getattr(self.reader, "reads_by_index", False))

    def read_numbers(self, name: str, numbers: Sequence[int]) -> list[Record]:
        """The records that the user's ``read_numbers(name, numbers)`` gives, if it has one."""
        read = getattr(self.reader, "read_numbers", None)
        return list(read(name, numbers)) if callable(read) else super().read_numbers(name, numbers)

    @property
    def metadata(self) -> Metadata:
        """The metadata of the user's reader, as it is when it has ``column_names``; empty when it has none."""
        given = getattr(self.reader, "metadata", None)
        if given is None:
            return Metadata()
        if isinstance(given, Mapping):
            return Metadata(list(given.get("column_names") or []), dict(given.get("column_types") or {}))
        return given  # type: ignore[no-any-return]  # the user's feed knows what it is

    @property
    def records_kind(self) -> RecordSpec:
        """The kind of records that the user's reader declares; else they are looked at."""
        kind = getattr(self.reader, "records_kind", None)
        if isinstance(kind, RecordSpec):
            return kind
        return RecordSpec("python", output_types=getattr(self.reader, "records_output_types", None))

    def default_feed(self) -> Feed | None:
        """The user's default feed, if it has one."""
        feed = getattr(self.reader, "default_feed", None)
        return feed() if callable(feed) else None


def _shards(given: Any, counts: bool | None) -> Iterator[Shard]:
    """Shards in our form; ``counts`` says whether the third of a tuple is a count, None that nothing is known."""
    if isinstance(given, Mapping):
        for name, value in given.items():
            start, count = _two_numbers(name, value)
            yield _shard(name, start, start + count)
        return
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise DataError(f"create_shards() returned a {type(given).__name__}", fix=_SHARDS_FIX)
    items = iter(given)
    for item in items:
        if isinstance(item, Shard):
            yield item
        elif all(hasattr(item, field) for field in ("name", "start", "end")):
            yield _shard(*_three((item.name, item.start, item.end)))
        elif counts is None:
            yield from _infer_form([item, *items])
            return
        else:
            name, start, last = _three(item)
            yield _shard(name, start, start + last if counts else last)


def _infer_form(items: list[Any]) -> list[Shard]:
    """The shards of tuples of which it is not known whether they end with an end or with a count."""
    tuples = [(item.name, item.start, item.end) if isinstance(item, Shard) else _three(item) for item in items]
    known = [isinstance(item, Shard) for item in items]
    as_ends = [(name, start, last) for name, start, last in tuples]
    as_counts = [
        (name, start, last if fixed else start + last)
        for (name, start, last), fixed in zip(tuples, known, strict=True)
    ]
    if as_ends == as_counts or not _disjoint(as_counts):
        return [_shard(*one) for one in as_ends]
    if not _disjoint(as_ends):
        return [_shard(*one) for one in as_counts]
    item, end, count = next((i, e, c) for i, e, c in zip(items, as_ends, as_counts, strict=True) if e != c)
    raise DataError(
        f"create_shards() gave {item!r}, which may mean the records {end[1]} to {end[2]} (name, start, end) or "
        f"{count[1]} to {count[2]} (name, start, count)",
        fix="give Shard(name, start, end) objects (from elasticdl.data import Shard) or a dict of name -> "
        "(start, count); a reader with counts may derive from "
        "elasticdl.python.data.reader.data_reader.AbstractDataReader",
    )


def _disjoint(ranges: list[tuple[Any, int, int]]) -> bool:
    """Whether all ranges hold records, and no record is in two of them."""
    if not all(start < end for _, start, end in ranges):
        return False
    ordered = sorted(ranges, key=lambda one: (str(one[0]), one[1]))
    return all(a[0] != b[0] or a[2] <= b[1] for a, b in itertools.pairwise(ordered))


def _shard(name: Any, start: int, end: int) -> Shard:
    if not isinstance(name, str) or not 0 <= start < end:
        raise DataError(f"create_shards() gave the shard {name!r} with records {start} to {end}", fix=_SHARDS_FIX)
    return Shard(name, start, end)


def _three(item: Any) -> tuple[Any, int, int]:
    try:
        name, start, last = item
    except (TypeError, ValueError):
        raise DataError(f"create_shards() gave {item!r}", fix=_SHARDS_FIX) from None
    start, last = _two_numbers(name, (start, last))
    return name, start, last


def _two_numbers(name: Any, value: Any) -> tuple[int, int]:
    try:
        first, second = value
        return int(first.__index__()), int(second.__index__())
    except (TypeError, ValueError, AttributeError):
        raise DataError(f"create_shards() gave {value!r} for {name!r}", fix=_SHARDS_FIX) from None

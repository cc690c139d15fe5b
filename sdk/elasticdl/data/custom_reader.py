"""Fits a user's own reader to ours: anything with ``create_shards``, ``read_records`` and perhaps ``metadata``."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from elasticdl.data.errors import DataError
from elasticdl.data.reader import DataReader, Feed, Metadata, Record, RecordSpec, Shard, ShardLike

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

    - an iterable of ``Shard`` objects or of ``(name, start, end)`` tuples;
    - a dict of ``name -> (start, record count)``.

    Tuples of ``(name, start, record count)`` are recognised when a range could not be meant, that is, when the third
    number is not above the second and the tuples before began at 0 (where an end and a count are the same).

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
        for shard in _shards(self.reader.create_shards()):
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
    def metadata(self) -> Metadata:
        """What the user's reader says, as it is when it has ``column_names``; empty when it says nothing."""
        given = getattr(self.reader, "metadata", None)
        if given is None:
            return Metadata()
        if isinstance(given, Mapping):
            return Metadata(list(given.get("column_names") or []), dict(given.get("column_types") or {}))
        return given  # type: ignore[no-any-return]  # the user's feed knows what it is

    @property
    def records_kind(self) -> RecordSpec:
        """What the user's reader says of its records; else they are looked at."""
        kind = getattr(self.reader, "records_kind", None)
        if isinstance(kind, RecordSpec):
            return kind
        return RecordSpec("python", output_types=getattr(self.reader, "records_output_types", None))

    def default_feed(self) -> Feed | None:
        """The user's default feed, if it has one."""
        feed = getattr(self.reader, "default_feed", None)
        return feed() if callable(feed) else None


def _shards(given: Any) -> Iterator[Shard]:
    if isinstance(given, Mapping):
        for name, value in given.items():
            start, count = _two_numbers(name, value)
            yield _shard(name, start, start + count)
        return
    if not isinstance(given, Iterable) or isinstance(given, str | bytes):
        raise DataError(f"create_shards() returned a {type(given).__name__}", fix=_SHARDS_FIX)
    counts, all_from_zero = False, True
    for item in given:
        if isinstance(item, Shard):
            yield item
            continue
        name, start, last = _three(item)
        if last <= start and start > 0 and not counts:
            if not all_from_zero:
                raise DataError(f"the shard {item!r} is empty, or its last number is a count", fix=_SHARDS_FIX)
            counts = True
        all_from_zero = all_from_zero and start == 0
        yield _shard(name, start, start + last if counts else last)


def _shard(name: Any, start: int, end: int) -> Shard:
    if not isinstance(name, str) or not 0 <= start < end:
        raise DataError(f"create_shards() gave the shard {name!r} with records {start} to {end}", fix=_SHARDS_FIX)
    return Shard(name, start, end)


def _three(item: Any) -> tuple[Any, int, int]:
    if all(hasattr(item, field) for field in ("name", "start", "end")):
        item = (item.name, item.start, item.end)
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

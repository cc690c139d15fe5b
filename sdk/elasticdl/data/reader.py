"""The interface of data readers: they list shards from an index and read the records of a range.

A reader is made in two places from the same arguments: where shards are listed, and in every worker. A shard's
``name`` means the same in both. For files it is the absolute path or URL of the file, and ``start`` and ``end``
are record indices within it.
"""

from __future__ import annotations

import abc
import itertools
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Literal, Protocol, TypeAlias

from elasticdl.data.columns import ColumnSpec
from elasticdl_core.errors import DataError
from elasticdl_core.mixed_order import joined
from elasticdl_core.shard import Shard

__all__ = ["DataReader", "Feed", "Metadata", "Record", "RecordSpec", "Shard", "ShardLike"]

#: One record as ``feed`` will see it: ``bytes``, a list of column strings, or whatever a custom reader yields.
Record: TypeAlias = Any

#: ``feed(dataset, mode, metadata)`` of a model module.
Feed: TypeAlias = Callable[[Any, str, "Metadata"], Any]

DEFAULT_BATCH_RECORDS = 256


class ShardLike(Protocol):
    """Anything that names a range of records: a shard, a task's shard, or a user's own object."""

    @property
    def name(self) -> str:
        """The unit that the reader knows."""

    @property
    def start(self) -> int:
        """Index of the first record."""

    @property
    def end(self) -> int:
        """One past the index of the last record."""


@dataclass(frozen=True)
class RecordSpec:
    """The form of raw records, so that a worker can give them to a framework without looking at one.

    Attributes:
        kind: ``bytes``: each record is a ``bytes`` object (a scalar string tensor). ``columns``: each is a list
            of ``width`` strings (a string tensor of shape ``[width]``). ``python``: each is what a custom
            reader yields; its tensors are inferred from the first record or from ``output_types``. ``table``: each is
            a dictionary of ``columns``.
        width: number of columns, for ``columns`` only.
        output_types: what a custom reader says of its records (``records_output_types``), else ``None``.
        window: a record is a list of so many of what ``kind`` says; ``None`` for one by itself.
        columns: name -> form of the values, for ``table`` only.
    """

    kind: Literal["bytes", "columns", "python", "table"]
    width: int | None = None
    output_types: Any = None
    columns: Mapping[str, ColumnSpec] = field(default_factory=dict)
    window: int | None = None

    def named(self, record: Record, names: Sequence[str]) -> Record:
        """A record as PyTorch's ``feed`` and scripts get it: columns by their names, in a window a list of each."""
        if self.kind != "columns":
            return record
        return dict(zip(names, record if self.window is None else map(list, zip(*record, strict=True)), strict=True))


@dataclass(frozen=True)
class Metadata:
    """Facts that a reader knows of its records; the third argument of ``feed``.

    Attributes:
        column_names: names of the columns in the order of a record; empty where records have no columns.
        column_types: type of each column where the source tells it (``int64``, ``float``, ``string``).
        kind: ``recordio``, ``tfrecord``, ``csv``, ``parquet``, ``arrow``, ``images``, ``webdataset``, a kind of
            database, or ``custom``.
        classes: of images the names of their classes, in the order of their labels.
    """

    column_names: list[str] = field(default_factory=list)
    column_types: Mapping[str, str] = field(default_factory=dict)
    kind: str = "custom"
    classes: list[str] = field(default_factory=list)


class DataReader(abc.ABC):
    """Lists shards and reads their records.

    A reader is safe to use from several threads at once.
    """

    @abc.abstractmethod
    def create_shards(self) -> Iterator[Shard]:
        """Lists the shards from an index, lazily, so that tasks can be made while listing goes on.

        The same data gives the same shards in the same order. Shards are disjoint and cover every record.

        Raises:
            DataError: the data is missing, unreadable, or holds no record at all.
        """

    @abc.abstractmethod
    def read_records(self, shard: ShardLike) -> Iterator[Record]:
        """Reads the records ``shard.start`` to ``shard.end`` of ``shard.name``, in order.

        Raises:
            DataError: the data is missing, unreadable, corrupt, or shorter than the shard says.
        """

    def read_batches(self, shard: ShardLike, max_records: int = DEFAULT_BATCH_RECORDS) -> Iterator[list[Record]]:
        """Reads the same records as ``read_records``, as lists of 1 to ``max_records`` records."""
        records = iter(self.read_records(shard))
        while batch := list(itertools.islice(records, max_records)):
            yield batch

    def read_ranges(self, ranges: Sequence[ShardLike]) -> list[Record]:
        """Reads the records of several ranges, one range after the other, as shuffled reading needs them.

        Raises:
            DataError: the data is missing, unreadable, corrupt, or shorter than the ranges say.
        """
        return list(itertools.chain.from_iterable(map(self.read_records, ranges)))

    @property
    def reads_by_index(self) -> bool:
        """Whether single records cost about as much as those that lie next to each other.

        Shuffled records are then read one by one (``read_numbers``); else in blocks that are kept for a while.
        """
        return False

    @property
    def grain(self) -> tuple[int, int] | None:
        """The number of records that are decoded together, and of such groups among which records are to be mixed.

        None where no more is read than is asked for, or where blocks of a few records are.
        """
        return None

    @property
    def gathers(self) -> bool:
        """Whether ``read_places`` itself reads at once what lies near each other; else whoever asks joins it."""
        return False

    def read_numbers(self, name: str, numbers: Sequence[int]) -> list[Record]:
        """Reads single records of a source, as shuffled reading needs them.

        Args:
            name: the source.
            numbers: which of its records; ascending.

        Raises:
            DataError: the data is missing, unreadable, corrupt, or shorter than the numbers say.
        """
        return self.read_ranges([Shard(*one) for one in joined((name, one, one + 1) for one in numbers)])

    def read_places(self, places: Sequence[tuple[str, Sequence[int]]]) -> list[Record]:
        """Reads single records of several sources: the ascending numbers of each, one source after the other.

        Raises:
            DataError: the data is missing, unreadable, corrupt, or shorter than the numbers say.
        """
        return list(itertools.chain.from_iterable(self.read_numbers(*one) for one in places))

    def fingerprint(self, name: str) -> str:
        """The state of a source that was listed, in words that differ when it has changed; empty if that is unknown.

        It goes into the plan of a job, and whoever reads the source compares it (``fingerprints.require``).
        """
        return ""

    @property
    @abc.abstractmethod
    def metadata(self) -> Metadata:
        """The facts that are known of the records."""

    @property
    @abc.abstractmethod
    def records_kind(self) -> RecordSpec:
        """The form of the raw records."""

    def default_feed(self) -> Feed | None:
        """A ``feed`` for models that bring none, or ``None`` where the reader cannot know one."""
        return None

    def explain_unreadable(self, shard: ShardLike) -> DataError | None:
        """Finds the error in records that the default feed could not parse, if the reader can tell."""
        return None

    def locate_value(self, shard: ShardLike, message: str) -> str:
        """The record of a shard whose value an error of the user's ``feed`` quotes, in words; empty if none."""
        return ""

    @property
    def skipped_records(self) -> int:
        """Records that were passed over as corrupt since this reader was made (``on_corrupt=skip``)."""
        return 0

    @property
    def damaged_files(self) -> dict[str, str]:
        """Files whose rest cannot be read and is left out (``on_corrupt=skip``) -> what is wrong with them."""
        return {}

    @property
    def skipped_example(self) -> str:
        """The record that was passed over last, in words; empty if none was."""
        return ""

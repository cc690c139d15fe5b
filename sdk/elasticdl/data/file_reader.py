"""The base of the readers of files: lists files, cuts shards, caches indexes, counts skipped records."""

from __future__ import annotations

import abc
import functools
import itertools
import logging
import resource
import threading
from collections import OrderedDict
from collections.abc import Callable, Collection, Iterator, Mapping, Sequence
from typing import Any, BinaryIO, ClassVar, Generic, TypeVar, cast

from elasticdl.data import files, fingerprints
from elasticdl.data.errors import DataError
from elasticdl.data.files import FileStamp
from elasticdl.data.params import refuse_unknown, take_choice
from elasticdl.data.reader import DEFAULT_BATCH_RECORDS, DataReader, Record, Shard, ShardLike
from elasticdl.data.remote_ranges import FETCHED_BYTES, Fetched, FetchedFile, RangeFetcher, is_fetched
from elasticdl_core.mixed_order import Span

#: Parameters of every reader of files; ``kind`` is used by the factory.
COMMON_PARAMS = ("kind", "on_corrupt")
_OPEN_FILES = 256
"""Files that are kept open, where the process may have four times as many."""
_IN_MEMORY_BYTES = 128 << 20
"""Files that are not longer, all of them together, are read into memory once their records are read one by one."""

_log = logging.getLogger("elasticdl.data")

Value = TypeVar("Value")
IndexT = TypeVar("IndexT")


class BoundedCache(Generic[Value]):
    """A thread-safe cache of the most recently used values.

    Args:
        max_weight: the sum of weights kept; the latest value stays even if it is heavier.
        weigh: weight of a value; 1 by default, so that ``max_weight`` counts values.
    """

    def __init__(self, max_weight: int, weigh: Callable[[Value], int] = lambda _: 1) -> None:
        self._max = max_weight
        self._weigh = weigh
        self._weight = 0
        self._lock = threading.Lock()
        self._values: OrderedDict[Any, tuple[Value, int]] = OrderedDict()

    def find(self, key: Any) -> Value | None:
        """The value of a key if it is there."""
        with self._lock:
            if key not in self._values:
                return None
            self._values.move_to_end(key)
            return self._values[key][0]

    def get(self, key: Any, make: Callable[[], Value]) -> Value:
        """The value of a key, made if it is not there. Two threads may both make one; either is kept."""
        found = self.find(key)
        if found is not None:
            return found
        value = make()
        weight = self._weigh(value)
        with self._lock:
            if key not in self._values:
                self._values[key] = (value, weight)
                self._weight += weight
            while self._weight > self._max and len(self._values) > 1:
                _, (_, dropped) = self._values.popitem(last=False)
                self._weight -= dropped
        return value


class FileDataReader(DataReader, Generic[IndexT]):
    """Reads records from files that have an index.

    Args:
        data_origin: files, directories, globs or URLs, separated by commas.
        records_per_task: cut shards to at most this many records; by default a shard is a whole file.
        reader_params: parameters of this kind of reader, see ``params``.

    Raises:
        ReaderParamsError: a parameter is unknown or has an impossible value.
    """

    kind: ClassVar[str]
    #: names of the parameters that this kind has beside the common ones
    params: ClassVar[tuple[str, ...]] = ()

    def __init__(
        self,
        data_origin: str,
        records_per_task: int | None = None,
        reader_params: Mapping[str, Any] | None = None,
    ) -> None:
        if records_per_task is not None and records_per_task < 1:
            raise DataError(f"records_per_task is {records_per_task}", fix="give a number over 0, or none")
        self.data_origin = data_origin
        self.reader_params: dict[str, Any] = dict(reader_params or {})
        self._records_per_task = records_per_task
        refuse_unknown(self.reader_params, (*COMMON_PARAMS, *self.params), reader=self.kind)
        self._skip = take_choice(self.reader_params, "on_corrupt", ("fail", "skip"), "fail") == "skip"
        self._skipped = 0
        self._skipped_example = ""
        self._skipped_lock = threading.Lock()
        self._damaged: dict[str, str] = {}
        self._indexes: BoundedCache[IndexT] = BoundedCache(max_weight=_OPEN_FILES)
        self._most_open = min(_OPEN_FILES, resource.getrlimit(resource.RLIMIT_NOFILE)[0] // 4)
        self._opened: BoundedCache[files.OpenFile] = BoundedCache(max_weight=self._most_open)
        self._stamps: dict[str, FileStamp] = {}
        self._fetcher = RangeFetcher()

    def list_files(self) -> Iterator[str]:
        """The files of the data origin, lazily, in a fixed order."""
        return files.list_files(self.data_origin)

    def create_shards(self) -> Iterator[Shard]:
        """One shard a file, or several of ``records_per_task`` records; files without records give none.

        Raises:
            DataError: the data is missing or damaged, or no file has a record.
        """
        count = 0
        for path in self.list_files():
            total = self.count_records(path)
            step = self._records_per_task or max(total, 1)
            for start in range(0, total, step):
                count += 1
                yield Shard(path, start, min(start + step, total))
        if not count:
            raise DataError(f"{self.data_origin}: the files hold no record", fix="check how the data was written")

    def index_of(self, path: str) -> IndexT:
        """The index of a file, remembered."""
        return self._indexes.get(path, lambda: self._stamped_index(path))

    def _stamped_index(self, path: str) -> IndexT:
        """The index of a file that is as it was when it was first indexed."""
        stamp = files.stamp(path)
        self._require_unchanged(path, stamp)
        return self._load_index(path)

    def _require_unchanged(self, path: str, stamp: FileStamp) -> None:
        """Refuses a file that is not as it was when it was planned, and when it was first looked at."""
        first = self._stamps.setdefault(path, stamp)
        fingerprints.require(path, str(stamp), "" if first == stamp else str(first))

    def fingerprint(self, name: str) -> str:
        """Size and version of a file, as it was when its index was made."""
        return str(self._stamps[name]) if name in self._stamps else ""

    def _open(self, path: str, block_size: int | None = None) -> BinaryIO:
        """Opens a file that is as it was when it was indexed."""
        self.index_of(path)
        file = files.open_for_reading(path, block_size=block_size)
        try:
            stamp = files.stamp_of(file, path)
            if stamp is not None and not stamp.version and self._stamps[path].version:
                stamp = files.stamp(path)  # an open file of HTTP does not tell its version, its store does
            if stamp is not None:
                self._require_unchanged(path, stamp)
        except DataError:
            file.close()
            raise
        return file

    def count_records(self, path: str) -> int:
        """Number of records of a file, from its index."""
        return self._count(self.index_of(path))

    def read_records(self, shard: ShardLike) -> Iterator[Record]:
        """The records of a shard, one by one."""
        for records in self._pieces_of(shard):
            yield from records

    def read_batches(self, shard: ShardLike, max_records: int = DEFAULT_BATCH_RECORDS) -> Iterator[list[Record]]:
        """The records of a shard in lists of ``max_records``; only the last may be shorter."""
        if max_records < 1:
            raise DataError(f"max_records is {max_records}", fix="give a number over 0")
        held: list[Record] = []
        for records in self._pieces_of(shard):
            held = held + records if held else records
            whole = len(held) - len(held) % max_records
            for position in range(0, whole, max_records):
                yield held[position : position + max_records]
            held = held[whole:]
        if held:
            yield held

    def read_ranges(self, ranges: Sequence[ShardLike]) -> list[Record]:
        """The records of several ranges, one range after the other.

        Each file is opened once, and read forwards; of files of stores the bytes of many ranges are fetched at once.
        """
        found: list[list[Record]] = [[]] * len(ranges)
        order = sorted(range(len(ranges)), key=lambda i: (ranges[i].name, ranges[i].start))
        for some, fetched in self._fetched(ranges, order):
            for path, group in itertools.groupby(some, key=lambda i: ranges[i].name):
                chosen = list(group)
                # What a remote file fetches ahead of one range is of no use for the next one.
                reopen = functools.partial(self._open, path, 0 if len(chosen) > 1 else None)
                with FetchedFile(path, fetched[path], reopen) if path in fetched else reopen() as file:
                    for i in chosen:
                        if isinstance(file, FetchedFile):
                            file.about = _in_words(ranges[i])
                        opened = cast(BinaryIO, file)
                        found[i] = list(itertools.chain.from_iterable(self._scan_checked(opened, ranges[i])))
        return list(itertools.chain.from_iterable(found))

    def _fetched(self, ranges: Sequence[ShardLike], order: Sequence[int]) -> Iterator[tuple[list[int], Fetched]]:
        """Cuts ranges into those of which all bytes are fetched at once, and fetches those that lie in stores."""
        chosen, wanted, size = list[int](), set[Span](), 0
        for i in order if len(order) > 1 and any(is_fetched(ranges[i].name) for i in order) else ():
            one = ranges[i]
            known = is_fetched(one.name) and 0 <= one.start < one.end <= self.count_records(one.name)
            spans = set(self._byte_spans(one.name, one.start, one.end) if known else ()) - wanted
            more = sum(end - start for _, start, end in spans)
            if size + more > FETCHED_BYTES and chosen:
                yield chosen, self._fetch(wanted)
                chosen, wanted, size = [], set(), 0
            chosen.append(i)
            if more <= FETCHED_BYTES:  # else it is read piece by piece
                wanted |= spans
                size += more
        yield chosen or list(order), self._fetch(wanted)

    def _fetch(self, wanted: Collection[Span]) -> Fetched:
        """Bytes of files that are as they were when they were indexed."""
        if not wanted:
            return {}
        fetched = self._fetcher.fetch(wanted)
        for path, stamp in zip(fetched, self._fetcher.stamps(list(fetched)), strict=True):
            self._require_unchanged(path, stamp)
        return fetched

    @functools.cached_property
    def reads_by_index(self) -> bool:
        """Whether all files are local, can be kept open, and tell where each record is."""
        try:
            some = list(itertools.islice(self.list_files(), self._most_open + 1))
            return len(some) <= self._most_open and not any(map(files.is_remote, some)) and self._is_indexed(some)
        except DataError:
            return False  # of a file that may have come since and that no task is of; who reads it says so

    @functools.cached_property
    def _in_memory(self) -> bool:
        """Whether all files are kept in memory."""
        if not self.reads_by_index:
            return False
        try:
            return sum(files.stamp(path).size for path in self.list_files()) <= _IN_MEMORY_BYTES
        except DataError:
            return False

    def read_numbers(self, name: str, numbers: Sequence[int]) -> list[Record]:
        """Single records of a file, which stays open.

        Args:
            name: the file.
            numbers: which of its records; ascending.
        """
        if numbers and not files.is_remote(name) and numbers[0] >= 0 and numbers[-1] < self.count_records(name):
            file = self._opened.get(name, lambda: self._kept_open(name))
            self._require_unchanged(name, file.stamp())
            found = self._pick(file, name, numbers)
            if found is not None:
                return found
        return super().read_numbers(name, numbers)

    @property
    def gathers(self) -> bool:
        """It does, by the bytes."""
        return True

    def read_places(self, places: Sequence[tuple[str, Sequence[int]]]) -> list[Record]:
        """Single records of several files, those of stores all at once."""
        if not any(files.is_remote(name) for name, _ in places):
            return super().read_places(places)
        return self.read_ranges([Shard(name, one, one + 1) for name, numbers in places for one in numbers])

    def _kept_open(self, path: str) -> files.OpenFile:
        with self._open(path) as file:
            return files.OpenFile(file, whole=self._in_memory)

    @property
    def skipped_records(self) -> int:
        """Records passed over as corrupt since this reader was made."""
        return self._skipped

    @property
    def damaged_files(self) -> dict[str, str]:
        """Files whose rest cannot be read, for a reader that skips damage -> what is wrong with them."""
        return dict(self._damaged)

    def _note_damage(self, path: str, reason: str) -> None:
        """Says once that the rest of a file is left out: how many records that are, nobody can know."""
        if reason and path not in self._damaged:
            self._damaged[path] = reason
            _log.warning("%s: the rest of the file is left out: %s", path, reason)

    @property
    def skipped_example(self) -> str:
        """The record that was passed over last."""
        return self._skipped_example

    def _count_skipped(self, records: int, path: str, first: int) -> None:
        """Counts records as passed over; ``first`` is the index of the first of them."""
        if records:
            with self._skipped_lock:
                self._skipped += records
                self._skipped_example = f"record {first} of {path}"

    def _pieces_of(self, shard: ShardLike) -> Iterator[list[Record]]:
        with self._open(shard.name) as file:
            yield from self._scan_checked(file, shard)

    def _scan_checked(self, file: BinaryIO, shard: ShardLike) -> Iterator[list[Record]]:
        total = self.count_records(shard.name)
        if not 0 <= shard.start <= shard.end:
            raise DataError(
                f"{shard.name}: a shard cannot have the range [{shard.start}, {shard.end})",
                fix="give 0 <= start <= end",
            )
        if shard.end > total:
            raise DataError(
                f"{shard.name}: has {total} records, the shard asks for records {shard.start} to {shard.end}",
                fix="the file changed after its shards were listed: submit the job again",
            )
        return (records for records in self._scan(file, shard.name, shard.start, shard.end) if records)

    @abc.abstractmethod
    def _load_index(self, path: str) -> IndexT:
        """Builds or loads the index of a file."""

    @abc.abstractmethod
    def _count(self, index: IndexT) -> int:
        """Number of records by an index."""

    def _is_indexed(self, paths: Sequence[str]) -> bool:
        """Whether it is known of some local files where each record is."""
        return True

    @abc.abstractmethod
    def _byte_spans(self, path: str, start: int, end: int) -> Iterator[Span]:
        """The bytes of a file that ``_scan`` reads for a range: path, first byte, one past the last."""

    def _pick(self, file: files.OpenFile, path: str, numbers: Sequence[int]) -> list[Record] | None:
        """Reads single records that exist; None if ``_scan`` is to do it, also to tell what is wrong with one."""
        return None

    @abc.abstractmethod
    def _scan(self, file: BinaryIO, path: str, start: int, end: int) -> Iterator[list[Record]]:
        """Reads a checked range of an open file in pieces of convenient size."""


def _in_words(one: ShardLike) -> str:
    if one.end == one.start + 1:
        return f"record {one.start}"
    return f"one of the records {one.start} to {one.end}"


def first_file(reader: FileDataReader[Any]) -> str:
    """The first file of a reader's data origin."""
    return next(itertools.islice(reader.list_files(), 1))

"""Fetches many ranges of bytes of the files of stores at once: their latency is waited for once for all of them."""

from __future__ import annotations

import bisect
import contextlib
import io
import itertools
import threading
from collections.abc import Callable, Iterable, Iterator, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Any, BinaryIO, TypeAlias, TypeVar, cast

from elasticdl.data import files
from elasticdl.data.files import FileStamp
from elasticdl.data.steady import StoreError
from elasticdl_core.errors import ElasticDLError
from elasticdl_core.mixed_order import Span

REQUESTS = 32
"""Requests that are under way to a store whose file system is asynchronous (S3, GCS, Azure, HTTP)."""
CONNECTIONS = 8
"""The same of others (HDFS, SFTP ...): each is a thread with a connection of its own, of which servers allow few."""
FETCHED_BYTES = 64 << 20
"""Bytes that are fetched before the records in them are given, about."""
_GAP = 8 << 10
"""Bytes between two ranges up to which both are one request: they come sooner than another answer would begin."""

Item = TypeVar("Item")
Result = TypeVar("Result")
_Part: TypeAlias = tuple[int, int, bytes]
Fetched: TypeAlias = Mapping[str, Sequence[_Part]]
"""Of each path the first byte, one past the last one, and the bytes of what was fetched, ascending."""


def is_fetched(path: str) -> bool:
    """Whether ranges of a file are fetched at once: it is in a store, and not inside an archive or cache."""
    return files.is_remote(path) and "::" not in path


class RangeFetcher:
    """Fetches ranges of files of stores, by fsspec's bulk requests where they are parallel, else in threads."""

    def __init__(self) -> None:
        self._threads: ThreadPoolExecutor | None = None
        self._lock = threading.Lock()
        self._gives_ranges: bool | None = None

    def fetch(self, wanted: Iterable[Span]) -> Fetched:
        """The bytes of ranges of files.

        What cannot be fetched, or comes short, is left out: whoever reads it in the usual way gets it or is told why.

        Args:
            wanted: path, first byte and one past the last one; in any order, and they may overlap.

        Returns:
            What was fetched of each path.
        """
        requests = _requests(wanted)
        at_once, others = list[Span](), list[Span]()
        for path, some in itertools.groupby(requests, key=lambda one: one[0]):
            (at_once if files.store_of(path)[0].async_impl else others).extend(some)
        found: dict[str, list[_Part]] = {path: [] for path, _, _ in requests}
        # A server that knows no ranges answers with the whole file, which is asked for once, not for each record.
        tried = at_once[: self._gives_ranges is None]
        rounds = (self._ask_bulk, tried), (self._ask_bulk, at_once[len(tried) :]), (self._ask_apart, others)
        for ask, asked in rounds:
            if asked is not others and self._gives_ranges is False:
                continue
            for (path, start, end), data in zip(asked, ask(asked), strict=True):
                if isinstance(data, bytes) and len(data) == end - start:
                    found[path].append((start, end, data))
                elif isinstance(data, bytes) and len(data) > end - start:
                    self._gives_ranges = False
            if tried and self._gives_ranges is None:
                self._gives_ranges = True
        return found

    def _ask_apart(self, requests: Sequence[Span]) -> list[Any]:
        return self._spread(_ask_each, requests, CONNECTIONS)

    def stamps(self, paths: Sequence[str]) -> list[FileStamp]:
        """The states of files now.

        Raises:
            DataError: one is missing or unreadable.
        """
        parallel = all(files.store_of(path)[0].async_impl for path in paths)
        threads = REQUESTS if parallel else CONNECTIONS
        return self._spread(lambda some: [files.stamp(path) for path in some], paths, threads)

    def _ask_bulk(self, requests: Sequence[Span]) -> list[Any]:
        """Answers to requests, or what was raised, of stores that are asked many things at once."""
        known = {path: files.store_of(path) for path in {path for path, _, _ in requests}}
        answers: list[Any] = []
        for fs, group in itertools.groupby(requests, key=lambda one: known[one[0]][0]):
            some = list(group)
            names, starts, ends = ([*column] for column in zip(*some, strict=True))
            names = [known[path][1] for path in names]
            try:
                answers += fs.cat_ranges(names, starts, ends, batch_size=REQUESTS, on_error="return")
            except Exception as error:  # of all of them
                answers += [error] * len(some)
        return answers

    def _spread(
        self, work: Callable[[Sequence[Item]], list[Result]], items: Sequence[Item], threads: int
    ) -> list[Result]:
        """Applies work to items by several threads, each to some of them; results come in the items' order."""
        if len(items) < 2:
            return work(items)
        with self._lock:
            pool = self._threads = self._threads or ThreadPoolExecutor(REQUESTS, "elasticdl-fetch")
        slices = [items[first::threads] for first in range(min(threads, len(items)))]
        found: list[Result] = [None] * len(items)  # type: ignore[list-item]
        for first, results in enumerate(pool.map(work, slices)):
            found[first::threads] = results
        return found


class FetchedFile(io.RawIOBase):
    """A file of a store of which parts are at hand; others are read from it when they are asked for.

    Args:
        path: the file.
        parts: what is at hand, ascending.
        reopen: opens it.

    Attributes:
        about: the records that are being read, in words; for errors.
    """

    def __init__(self, path: str, parts: Sequence[_Part], reopen: Callable[[], BinaryIO]) -> None:
        super().__init__()
        self._path = path
        self._parts = parts
        self._starts = [start for start, _, _ in parts]
        self._reopen = reopen
        self._file: BinaryIO | None = None
        self._at = 0
        self.about = ""

    def seek(self, offset: int, whence: int = io.SEEK_SET) -> int:
        """Goes to a byte, counted from the beginning."""
        assert whence == io.SEEK_SET
        self._at = offset
        return offset

    def read(self, size: int = -1) -> bytes:
        """The next bytes; fewer only at the end of the file.

        Raises:
            DataError: the store does not give them.
        """
        number = bisect.bisect_right(self._starts, self._at) - 1
        start, end, data = self._parts[number] if number >= 0 else (0, 0, b"")
        if 0 <= size <= end - self._at:
            found = data[self._at - start : self._at - start + size]
        else:
            found = self._read_on(size)
        self._at += len(found)
        return found

    def _read_on(self, size: int) -> bytes:
        try:
            if self._file is None:
                self._file = self._reopen()
            self._file.seek(self._at)
            return self._file.read(size)
        except StoreError as error:
            raise files.unreadable(self._path, error.reason, self.about) from error
        except ElasticDLError:
            raise
        except Exception as error:  # a remote store may raise anything
            raise files.unreadable(self._path, error, self.about) from error

    def close(self) -> None:
        """Closes what was opened."""
        if self._file is not None:
            self._file.close()
        super().close()


def _requests(wanted: Iterable[Span]) -> list[Span]:
    """Sorted ranges, of which those that overlap or lie near each other are one."""
    found: list[Span] = []
    for path, start, end in sorted(one for one in wanted if one[1] < one[2]):
        if found and found[-1][0] == path and start - found[-1][2] <= _GAP:
            found[-1] = (path, found[-1][1], max(end, found[-1][2]))
        else:
            found.append((path, start, end))
    return found


def _ask_each(requests: Sequence[Span]) -> list[Any]:
    """Answers to requests, or what was raised, one after the other; each file is opened once.

    File systems that are not asynchronous are made for one thread: each thread has its own here.
    """
    found: list[Any] = []
    for path, some in itertools.groupby(requests, key=lambda one: one[0]):
        chosen = list(some)
        answers: list[Any]
        try:
            with _opened(path) as part:
                answers = [_tried(part, start, end) for _, start, end in chosen]
        except Exception as error:  # a remote store may raise anything
            answers = [error] * len(chosen)
        found += answers
    return found


@contextlib.contextmanager
def _opened(path: str) -> Iterator[Callable[[int, int], bytes]]:
    """Opens a reader of ranges of a file, which stays open."""
    from fsspec.implementations.memory import MemoryFileSystem

    fs, inner = files.store_of(path)
    if isinstance(fs, MemoryFileSystem):  # all who open a file share its position
        yield lambda start, end: cast(bytes, fs.cat_file(inner, start, end))
        return
    with fs.open(inner, "rb", cache_type="none") as file:

        def read(start: int, end: int) -> bytes:
            file.seek(start)
            return cast(bytes, file.read(end - start))

        yield read


def _tried(part: Callable[[int, int], bytes], start: int, end: int) -> bytes | Exception:
    try:
        return part(start, end)
    except Exception as error:  # a remote store may raise anything
        return error

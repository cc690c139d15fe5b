"""The base of readers of a table in a database that is one file: its URL, its state, its pages."""

from __future__ import annotations

import abc
import contextlib
import functools
import os
import threading
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any, ClassVar
from urllib.parse import parse_qs, unquote, urlsplit

import numpy as np
import numpy.typing as npt

from elasticdl.data import files, fingerprints
from elasticdl.data.database_reader import DatabaseReader
from elasticdl.data.errors import DataError, ReaderParamsError
from elasticdl.data.reader import Shard


class DatabaseFileReader(DatabaseReader):
    """Reads one table of a file, which has to stay as it was listed: pages read while it changed are an error.

    Args:
        data_origin: ``SCHEME:///folder/file?table=NAME``, or that without its scheme.
        records_per_task: cut shards to at most this many rows; by default the table is one shard.
        reader_params: as for ``DatabaseReader``.

    Raises:
        ReaderParamsError: the URL or a parameter has an impossible value.
        DataError: the file is missing or may not be read.
    """

    form: ClassVar[str]
    """What to write, in words."""
    asked: ClassVar[tuple[str, ...]] = ()
    """Parameters of the URL beside the table."""
    log: ClassVar[str]
    """The ending of the file that has what was written and is not in the database's yet."""
    beside: ClassVar[tuple[str, ...]] = ()
    """Endings of other files that the database's library opens."""

    def __init__(
        self, data_origin: str, records_per_task: int | None, reader_params: Mapping[str, Any] | None
    ) -> None:
        super().__init__(reader_params)
        self._name, self._records_per_task = data_origin, records_per_task
        parts = urlsplit(data_origin)
        given = parse_qs(parts.query, keep_blank_values=True)
        known = given.keys() <= {"table", *self.asked} and all(len(one) == 1 for one in given.values())
        named = parts.path.strip("/") and given.get("table", [""])[0]
        if parts.netloc or parts.fragment or not known or not named:
            raise ReaderParamsError(f"{data_origin}: is no table of a database", fix=f"write {self.form}")
        self._path, self._asked = unquote(parts.path), {name: values[0] for name, values in given.items()}
        self._table = self._asked["table"]
        self._lock = threading.Lock()
        self._first_state = self._state()
        fingerprints.require(self._name, self._first_state)
        if not os.access(
            self._path, os.R_OK, effective_ids=True
        ):  # opening it would drop locks that this process has
            raise files.unreadable(self._path, PermissionError())

    def _state(self) -> str:
        """The state of the database: of its file, and of the log of writes that are not in it yet."""
        for ending in (self.log, *self.beside):
            if Path(f"{self._path}{ending}").is_symlink():
                raise DataError(
                    f"{self._name}: {self._path}{ending} is a link: what lies elsewhere would be read as its own",
                    fix="remove the link, or copy the database with its log",
                )
        state = str(files.stamp(self._path))
        with contextlib.suppress(DataError):
            log = files.stamp(f"{self._path}{self.log}")
            state += f", and a log of {log}" if log.size else ""
        return state

    def _require_unchanged(self) -> None:
        """Refuses a database that is not as it was first."""
        now = self._state()
        fingerprints.require(self._name, now, "" if now == self._first_state else self._first_state)

    def _unreadable(self, error: Exception, fix: str) -> DataError:
        """The error for what the database's library raised, unless the file was changed.

        Raises:
            DataError: it was, or is gone.
        """
        self._require_unchanged()
        return DataError(f"{self._name}: cannot be read: {error}", fix=fix)

    def fingerprint(self, name: str) -> str:
        """Size and version of the database's file."""
        return self._first_state

    @abc.abstractmethod
    def _listed(self) -> tuple[list[int], list[Any]]:
        """The number of rows of each page, and its first key."""

    @functools.cached_property
    def _pages(self) -> tuple[npt.NDArray[np.int64], list[Any]]:
        """The first row of each page and the number of rows, and the first key of each page."""
        sizes, keys = self._listed()
        return np.cumsum([0, *sizes], dtype=np.int64), keys

    def create_shards(self) -> Iterator[Shard]:
        """One shard, or several of ``records_per_task`` rows.

        Raises:
            DataError: the table has no row.
        """
        shards = list(self._cut(self._name, self._records_per_task))
        if not shards:
            raise DataError(f"{self._name}: the table has no row", fix="check how it was filled")
        yield from shards

    def _starts(self, name: str) -> npt.NDArray[np.int64]:
        if name != self._name:
            raise DataError(f"{name}: is not {self._name}", fix="submit the job again")
        return self._pages[0]

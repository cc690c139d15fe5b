"""MaxCompute by pyodps: who asks it, sessions that read and write a table, and what is asked for again."""

from __future__ import annotations

import contextlib
import functools
import itertools
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, TypeVar

import odps
from odps.errors import BaseODPSError
from odps.tunnel import TableTunnel
from odps.tunnel.tabletunnel import TableDownloadSession, TableUploadSession

from elasticdl.data import steady
from elasticdl.data.errors import DataError
from elasticdl.data.odps_access import DEFAULT_ENDPOINT, Access
from elasticdl_core.backoff import Backoff

Result = TypeVar("Result")
TRIES = 14
"""How often is asked what the service puts off: with its pauses some five minutes, since shares of traffic are given
anew. What breaks off is asked for as often as other stores are."""
_PAUSES = Backoff(first_s=0.5, longest_s=40.0)
_OPTIONS = {
    "retry_times": 0, "retry_delay": 0, "connect_timeout": 20, "read_timeout": 120, "local_timezone": False
}  # fmt: skip
"""Of the library: tries are ours, moments are in UTC."""
BLOCK_ROWS = 65_536
"""Rows that are written at once."""
_PASSING = frozenset({"FlowExceeded", "DataVersionConflict", "DataUnderReplication", "RequestTimeOut"})
_EXPIRED = frozenset({"NoSuchDownload", "StatusConflict"})


class SessionExpired(DataError):
    """A session that the service knows no more."""


class TableModified(DataError):
    """A table that was written since its session was made."""


class _NoRetries:
    """The library's handler of retries, without any: it would ask for ever where the service says 308 or 429."""

    def execute_with_retry_headers(self, request: Callable[[dict[str, Any]], Any], headers: Any, **_: Any) -> Any:
        """The answer to one request."""
        answer = request(dict(headers or {}))
        if answer.status_code >= 300:  # the library takes "it has moved" for an answer
            raise OSError(f"the service answered {answer.status_code}")
        return answer


class _Download(TableDownloadSession):  # type: ignore[misc]
    retry_handler = _NoRetries()


class _Upload(TableUploadSession):  # type: ignore[misc]
    retry_handler = _NoRetries()


class OdpsTable:
    """A table, as the tunnel of MaxCompute reads and writes it. One may be used from several threads.

    Args:
        where: the source, in words, for errors.
        access: who asks.
        project: its project.
        name: its name.
        options: ``odps.options`` by name, such as ``read_timeout``, for what is asked here.

    Attributes:
        schema: its columns and those that divide it into partitions, as the library has them.

    Raises:
        DataError: there is none, or it may not be read.
    """

    def __init__(
        self, where: str, access: Access, project: str, name: str, options: Mapping[str, Any] | None = None
    ) -> None:
        self._options = {**_OPTIONS, **(options or {})}
        self._where = where
        self._asked = project, name
        endpoint = access.endpoint or DEFAULT_ENDPOINT
        # Without a host of its logs the library asks for one, which nobody needs here.
        self._client = odps.ODPS(
            access.access_id, access.access_key, access.project or project, endpoint, logview_host=endpoint
        )
        self._tunnel = TableTunnel(self._client, project=project, endpoint=access.tunnel_endpoint or None)
        self.schema = self.ask(lambda: self._table().table_schema)

    def _table(self) -> Any:
        """The table, as it is now."""
        project, name = self._asked
        return self._client.get_table(name, project=project)

    def ask(self, work: Callable[[], Result]) -> Result:
        """The result of some requests: what the service may grant later, or what broke off, is asked for again.

        Raises:
            DataError: the service says no, or fails however often it is asked.
        """

        broken = 0

        def once() -> Result:
            nonlocal broken
            with odps.config.option_context() as here:
                for name, value in self._options.items():
                    *path, last = name.split(".")
                    setattr(functools.reduce(getattr, path, here), last, value)
                try:
                    return work()
                except BaseODPSError as error:
                    if (said := self._said(error)) is None:
                        raise
                    raise said from error
                except DataError:
                    raise
                except Exception as error:  # of requests, of Arrow
                    broken += 1
                    if broken < steady.TRIES:
                        raise
                    raise self._unreadable(error, "check the network and the endpoints") from error

        try:
            return _PAUSES.retry(once, TRIES, (DataError,))
        except BaseODPSError as error:
            raise self._unreadable(error, "ask again later, or for a larger share of traffic") from error

    def _said(self, error: BaseODPSError) -> DataError | None:
        """An answer of the service as an error of ours, where another try does not change it."""
        code, status = error.code or type(error).__name__, error.status_code
        if code in _EXPIRED:
            return SessionExpired(f"{self._where}: {_words(error)}", fix="submit the job again")
        if code == "TableModified":
            return TableModified(f"{self._where}: {_words(error)}", fix="submit the job again")
        if code in _PASSING or status is None or not 400 <= status < 500 or status in (408, 429):
            return None
        return self._unreadable(error, "check the name of the table, its partition, the access key and its rights")

    def _unreadable(self, error: Exception, fix: str) -> DataError:
        return DataError(f"{self._where}: cannot be read: {_words(error)}", fix=fix)

    def partitions(self, spec: str) -> list[str]:
        """The partitions that a specification such as ``dt=2026-01-01`` leaves, in the order of their names."""
        found = self.ask(lambda: [str(one.partition_spec) for one in self._table().iterate_partitions(spec or None)])
        return sorted(one.replace("'", "") for one in found)

    def written(self, partition: str) -> int:
        """The second since 1970 in which the table, or its partition, was last written."""

        def asked() -> int:
            found = self._table().get_partition(partition.replace("/", ",")) if partition else self._table()
            found.reload()  # the library keeps what it knows of a table
            return int(found.last_data_modified_time.timestamp())

        return self.ask(asked)

    def session(self, partition: str, session: str | None = None) -> Any:
        """A session that reads, a new one or that of an id.

        Raises:
            SessionExpired: there is none of that id any more.
        """

        def made() -> Any:
            found = _Download(
                self._tunnel.tunnel_rest,
                self._at_tunnel(),
                partition.replace("/", ",") or None,
                download_id=session,
                timeout=120,
            )
            if found.status in (found.Status.Expired, found.Status.Closes):
                raise SessionExpired(f"{self._where}: the session {session} has expired", fix="submit the job again")
            return found

        return self.ask(made)

    def _at_tunnel(self) -> Any:
        """The table, at the tunnel's address."""
        return self._tunnel._get_tunnel_table(self._table())

    def rows(self, session: Any, first: int, count: int, columns: Sequence[str]) -> Any:
        """Some rows of a session as an Arrow table; the end of an answer is not trusted, rows are counted.

        Raises:
            SessionExpired: the service knows the session no more.
            TableModified: the table was written.
        """

        def read() -> Any:
            reader = session.open_arrow_reader(first, count, columns=list(columns), on_exception=lambda _: True)
            with contextlib.closing(reader):
                table = reader.read()
            if table.num_rows != count:
                raise OSError(f"the service gave {table.num_rows} of {count} rows from row {first} on")
            return table

        return self.ask(read)

    def write(self, partition: str, rows: Iterable[Sequence[Any]], *, replacing: bool = False) -> int:
        """Adds rows to a partition, which is made if it is not there: all of them once, or none.

        Args:
            partition: ``a=1/b=2``; empty for a table without partitions.
            rows: the values of each, in the order of the table's columns.
            replacing: what the partition has is taken out in the same step.

        Returns:
            The number of rows.
        """
        spec = partition.replace("/", ",") or None

        def made() -> Any:
            return _Upload(
                self._tunnel.tunnel_rest, self._at_tunnel(), spec, create_partition=bool(spec), overwrite=replacing
            )

        session, written, blocks = self.ask(made), 0, list[int]()
        remaining = iter(rows)
        while block := list(itertools.islice(remaining, BLOCK_ROWS)):
            self.ask(functools.partial(_put, session, len(blocks), block))
            written += len(block)
            blocks.append(len(blocks))

        def finish() -> None:
            session.reload()
            if session.status not in (session.Status.Closing, session.Status.Closed):  # else an answer was lost
                session.commit(blocks)

        self.ask(finish)
        return written


def _put(session: Any, number: int, rows: Sequence[Sequence[Any]]) -> None:
    """Writes a block of a session, in place of what was written of it before."""
    with session.open_record_writer(initial_block_id=number, buffer_size=1 << 40) as writer:
        for row in rows:
            writer.write(session.new_record(list(row)))


def _words(error: Exception) -> str:
    """The words of an error, without the addresses that the library puts before it."""
    said = str(error.args[0]) if error.args else ""
    return f"{getattr(error, 'code', None) or type(error).__name__}: {said}" if said else type(error).__name__

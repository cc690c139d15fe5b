"""Reads a table of MaxCompute, in pages of rows as a session has them: each record is a dictionary of its columns."""

from __future__ import annotations

import contextlib
import functools
import hashlib
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any, ClassVar
from urllib.parse import parse_qsl, quote, unquote, urlsplit

import numpy as np
import numpy.typing as npt
from odps.tunnel.io.types import odps_schema_to_arrow_schema
from odps.types import timestamp_ntz

from elasticdl.data import columns as cols
from elasticdl.data import fingerprints
from elasticdl.data.columns import Columns
from elasticdl.data.database_reader import DatabaseReader
from elasticdl.data.errors import DataError, ReaderParamsError
from elasticdl.data.odps_access import Access
from elasticdl.data.odps_service import OdpsTable, SessionExpired, TableModified
from elasticdl.data.params import take
from elasticdl.data.postgres_connection import refuse_passwords
from elasticdl.data.reader import Metadata, Shard

PAGE = 8192
SCHEME = "odps://"
_FORM = "odps://PROJECT/TABLE, and ?partition=NAME=VALUE where the table has partitions"
_PROBES = 3
"""Rows by which the order of one session is compared with that of another."""


@dataclass(frozen=True)
class _Opened:
    """A table, or one partition of it, that is being read.

    Attributes:
        session: that of the library.
        count: its rows.
        state: them, when they were written, and a digest of a few of them, in words.
    """

    session: Any
    count: int
    state: str


class OdpsDataReader(DatabaseReader):
    """Reads one table, or some of its partitions.

    Rows are numbered as a session of the tunnel has them, which the listing process makes and the name of a shard
    ends with: all others open that one by its id. One that has expired is made anew, and has to have as many rows,
    written at the same time, and a few of them alike. Whoever asks is said by the environment alone
    (``MAXCOMPUTE_AK``, ``MAXCOMPUTE_SK``), never by the URL, which is kept with the job.

    Args:
        data_origin: ``odps://PROJECT/TABLE?partition=NAME=VALUE``, or with ``kind=odps`` ``TABLE`` or
            ``PROJECT.TABLE``. Without a partition all those of the table are read.
        records_per_task: cut shards to at most this many rows; by default a partition is one shard.
        reader_params: ``columns``, ``label``, ``nulls`` and ``trained_columns``, as for Parquet, and ``partition``.
        predicting: the column of the label may be missing.
        access: who asks; by default whom the environment names.

    Raises:
        ReaderParamsError: the URL or a parameter has an impossible value, or the environment names nobody.
        DataError: the table cannot be read, or a column is no tensor.
    """

    kind: ClassVar[str] = "odps"
    params: ClassVar[tuple[str, ...]] = (*DatabaseReader.params, "partition")

    def __init__(
        self,
        data_origin: str,
        records_per_task: int | None = None,
        reader_params: Mapping[str, Any] | None = None,
        *,
        predicting: bool = False,
        access: Access | None = None,
    ) -> None:
        super().__init__(reader_params)
        self._records_per_task = records_per_task
        access = access or Access.from_environment(data_origin)
        project, table, asked = _parsed(data_origin, access.project)
        given = take(self._params, "partition", str, None)
        if given and asked.get("partition"):
            raise ReaderParamsError(
                f"{data_origin}: two partitions are named", fix="leave the parameter partition out"
            )
        self._partition = _plain(given or asked.get("partition", ""))
        self._session = asked.get("session")
        self._origin = f"{SCHEME}{project}/{table}"
        self._table = OdpsTable(self._origin, access, project, table)
        self._lock = threading.RLock()
        self._open: dict[str, _Opened] = {}
        self._first_states: dict[str, str] = {}
        declared = self._table.schema
        self._divided = [one.name for one in declared.partitions]
        schema = odps_schema_to_arrow_schema(declared)
        self._moments = {
            one.name: "no zone" if one.type == timestamp_ntz else "UTC" for one in declared.simple_columns
        }
        self._fields = cols.flat_fields(schema, self._origin)
        self._types = {name: cols.type_at(schema, path) for name, path in self._fields.items()}
        self._probed = [
            name for name, path in self._fields.items() if len(path) == 1 and _is_tensor(self._types[name])
        ]
        spec_of = functools.partial(cols.spec_of, where=self._origin)
        self._choose(self._origin, self._types, spec_of, predicting=predicting)
        self._require_partition()

    def _require_partition(self) -> None:
        """Refuses partitions that the table cannot have."""
        named = [one.partition("=")[0] for one in self._partition.split("/") if one]
        if wrong := [one for one in named if one not in self._divided]:
            raise ReaderParamsError(
                f"{self._origin}: there is no partition column {wrong[0]!r}",
                fix=f"they are {', '.join(self._divided)}" if self._divided else "the table has no partitions",
            )
        if self._session and len(named) < len(self._divided):
            raise ReaderParamsError(
                f"{self._origin}: a session is of one partition", fix="name it whole: partition=a=1/b=2"
            )

    @functools.cached_property
    def _sources(self) -> list[str]:
        """The partitions, each with its session, as shards name them."""
        if not self._divided:
            return [self._source("")]
        found = self._table.partitions(self._partition.replace("/", ","))
        if not found:
            raise DataError(
                f"{self._origin}: no partition {self._partition}"
                if self._partition
                else f"{self._origin}: no partition",
                fix="check its name: SHOW PARTITIONS",
            )
        return [self._source(_plain(one)) for one in found]

    def _source(self, partition: str) -> str:
        """The name of a partition: with the session of this process' job, where it has one, else with a new one."""
        name = f"{self._origin}?" + (f"partition={quote(partition, safe='=/')}&" if partition else "") + "session="
        if self._session:
            return name + self._session
        if known := fingerprints.planned(name):
            return known
        session = self._table.session(partition)
        self._keep(name + session.id, partition, session)
        return name + str(session.id)

    def _keep(self, name: str, partition: str, session: Any) -> _Opened:
        """Takes a session for a source, if that is as it was planned and as it was before."""
        count = int(session.count)
        digest = hashlib.sha256()
        for row in np.unique(np.linspace(0, count - 1, _PROBES).astype(np.int64)) if count and self._probed else ():
            digest.update(repr(self._table.rows(session, int(row), 1, self._probed).to_pylist()).encode())
        state = f"{count} rows, written at {self._table.written(partition)}, in order {digest.hexdigest()[:12]}"
        fingerprints.require(name, state, self._first_states.get(name, ""))
        self._first_states[name] = state
        self._open[name] = found = _Opened(session, count, state)
        return found

    def _opened(self, name: str) -> _Opened:
        """A source that was listed, here or where the shards were."""
        with self._lock:
            if name in self._open:
                return self._open[name]
            partition, session = self._named(name)
            try:
                return self._keep(name, partition, self._table.session(partition, session))
            except (SessionExpired, TableModified) as error:
                found = self._keep(name, partition, self._table.session(partition))
                if isinstance(error, TableModified):  # and is as before, as far as can be seen
                    raise
                return found

    def _named(self, name: str) -> tuple[str, str]:
        """The partition and the session that a source names."""
        asked = dict(parse_qsl(urlsplit(name).query))
        if not name.startswith(f"{self._origin}?") or "session" not in asked:
            raise DataError(f"{name}: is not of {self._origin}", fix="submit the job again")
        return asked.get("partition", ""), asked["session"]

    def _renewed(self, name: str, old: _Opened) -> _Opened:
        """The source in a new session, unless another thread made one already."""
        with self._lock:
            if self._open.get(name) is old:
                del self._open[name]
                partition, _ = self._named(name)
                return self._keep(name, partition, self._table.session(partition))
        return self._opened(name)

    def fingerprint(self, name: str) -> str:
        """The number of rows, when they were written, and a digest of a few."""
        return self._opened(name).state

    def create_shards(self) -> Iterator[Shard]:
        """A shard a partition, or several of ``records_per_task`` rows.

        Raises:
            DataError: there is no row.
        """
        found = False
        with self._lock:
            sources = self._sources
        for name in sources:
            for shard in self._cut(name, self._records_per_task):
                found = True
                yield shard
        if not found:
            raise DataError(f"{self._origin}: the table has no row", fix="check how it was filled")

    def _starts(self, name: str) -> npt.NDArray[np.int64]:
        count = self._opened(name).count
        return np.array([*range(0, count, PAGE), count], np.int64)

    def _load_group(self, name: str, number: int) -> Columns:
        first, end = (int(one) for one in self._starts(name)[number : number + 2])
        wanted = list(dict.fromkeys(self._fields[one][0] for one in self._specs))
        source = self._opened(name)
        try:
            table = self._table.rows(source.session, first, end - first, wanted)
        except (SessionExpired, TableModified) as error:
            renewed = self._renewed(name, source)
            if isinstance(error, TableModified):
                raise
            table = self._table.rows(renewed.session, first, end - first, wanted)
        return {
            one: cols.to_numpy(one, cols.pick(table, self._fields[one]), spec, self._nulls[one], name, first)
            for one, spec in self._specs.items()
        }

    @functools.cached_property
    def metadata(self) -> Metadata:
        """The columns and their types."""
        times = {
            name: words.replace("no zone", self._moments[self._fields[name][0]])
            for name in self._specs
            if (words := cols.time_words(self._types[name]))
        }
        return Metadata(list(self._specs), {**cols.type_words(self._specs), **times}, self.kind)


def _is_tensor(kind: Any) -> bool:
    """Whether a column of an Arrow type can be read."""
    with contextlib.suppress(DataError):
        cols.spec_of("", kind, "")
        return True
    return False


def _plain(partition: str) -> str:
    """A partition as ``a=1/b=2``, however it is written."""
    return "/".join(
        one.strip() for one in partition.replace("'", "").replace('"', "").replace(",", "/").split("/") if one.strip()
    )


def _parsed(origin: str, project: str) -> tuple[str, str, dict[str, str]]:
    """The project, the table and the parameters of an origin."""
    if not origin.startswith(SCHEME):
        home, dot, table = origin.rpartition(".")
        origin = f"{SCHEME}{home if dot else project}/{table}"
    parts = urlsplit(origin)
    given = parse_qsl(parts.query, keep_blank_values=True)
    refuse_passwords(parts, [name for name, _ in given])
    asked = dict(given)
    table = unquote(parts.path.strip("/"))
    good = parts.netloc and "@" not in parts.netloc and table and "/" not in table and not parts.fragment
    if not good or not asked.keys() <= {"partition", "session"} or len(asked) != len(given) or "" in asked.values():
        raise ReaderParamsError(f"{origin}: is no table of MaxCompute", fix=f"write {_FORM}")
    return parts.netloc, table, asked

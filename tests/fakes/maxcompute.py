"""A MaxCompute, over HTTP: tables, partitions and sessions of the tunnel, some of whose answers are spoilt.

Written from what pyodps asks and from the service's documents; it decodes and encodes the tunnel's frames itself.
"""

from __future__ import annotations

import contextlib
import json
import random
import struct
import threading
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qsl, unquote, urlsplit
from xml.sax.saxutils import escape

import google_crc32c
import pyarrow as pa

PROJECT = "shop"
ENVIRONMENT = {"MAXCOMPUTE_PROJECT": PROJECT, "MAXCOMPUTE_AK": "reader", "MAXCOMPUTE_SK": "secret"}
_CHUNK = 65536
KINDS = ("refused", "busy", "moved", "reset", "cut", "short")
"""Spoilt answers: 503, 429, 308, a connection that breaks before an answer or within it, and an answer that ends well
but lacks rows."""


class Refused(Exception):
    """An answer that says no: status, the service's code, words."""


@dataclass
class Data:
    """What a table, or a partition of it, holds: the rows, and the second in which they were written."""

    rows: pa.Table
    written: int


@dataclass
class Table:
    """A table: its columns and partition columns with their types; by partition (or "") what it holds."""

    columns: Mapping[str, str]
    divided: Mapping[str, str]
    data: dict[str, Data] = field(default_factory=dict)

    def schema(self) -> dict[str, Any]:
        """The schema as the service writes it."""
        return {
            "columns": [{"name": name, "type": kind, "isNullable": True} for name, kind in self.columns.items()],
            "partitionKeys": [{"name": name, "type": kind} for name, kind in self.divided.items()],
        }


@dataclass
class Session:
    """A session of the tunnel: of which data, as it was when it was made; the blocks of one that writes."""

    table: Table
    partition: str
    data: Data
    order: list[int] | None = None
    expired: bool = False
    overwrite: bool = False
    blocks: dict[int, pa.Table] = field(default_factory=dict)
    done: bool = False


class FakeMaxCompute:
    """The service.

    Attributes:
        tables: by name.
        sessions: by id.
        share: of the answers that are spoilt.
        kinds: how.
        faults: how many were.
        asked: method, and what was asked for, of each request.
        mixes: whether each session has an order of its own.
        url: where it is.
    """

    def __init__(self) -> None:
        self.tables: dict[str, Table] = {}
        self.sessions: dict[str, Session] = {}
        self.share, self.kinds, self.faults = 0.0, KINDS, 0
        self.asked: list[str] = []
        self.mixes = False
        self.url = ""
        self._draw, self._lock, self._clock = random.Random(1), threading.Lock(), 1_700_000_000

    def put(self, name: str, rows: pa.Table, partition: str = "", types: Mapping[str, str] | None = None) -> None:
        """Makes a table, or writes one anew: it, or its partition ``a=1/b=2``, has these rows afterwards."""
        kinds = types or {one.name: _KINDS[str(one.type)] for one in rows.schema}
        divided = {one.partition("=")[0]: "string" for one in partition.split("/") if one}
        with self._lock:
            self._clock += 1
            self.tables.setdefault(name, Table(kinds, divided)).data[partition] = Data(rows, self._clock)

    def expire(self) -> None:
        """Lets all sessions be over."""
        for one in self.sessions.values():
            one.expired = True

    @contextlib.contextmanager
    def spoiling(self, share: float, *kinds: str, seed: int = 1) -> Iterator[FakeMaxCompute]:
        """A context in which a share of the answers is spoilt."""
        self._draw = random.Random(seed)
        self.share, self.kinds, self.faults = share, kinds or KINDS, 0
        try:
            yield self
        finally:
            self.share = 0.0

    def fault(self, reads_rows: bool) -> str:
        """How the next answer is spoilt; empty if it is not."""
        with self._lock:
            if self._draw.random() >= self.share:
                return ""
            kind = self._draw.choice(self.kinds)
            if kind == "short" and not reads_rows:
                kind = "reset"
            self.faults += 1
            return kind

    def answer(
        self, method: str, path: list[str], asked: dict[str, str], body: bytes, short: bool
    ) -> tuple[str, bytes]:
        """The type and the content of an answer."""
        if path[:2] != ["projects", PROJECT]:
            raise Refused(404, "NoSuchProject", f"The specified project {path[1:2]} does not exist")
        if path[2:] == ["tunnel"]:
            return "text/plain", self.url.removeprefix("http://").encode()
        if path[2:3] != ["tables"] or len(path) != 4:
            raise Refused(404, "NoSuchObject", "/".join(path))
        table = self.tables.get(path[3])
        if table is None:
            raise Refused(404, "NoSuchTable", f"Table not found - {path[3]}")
        if "downloads" in asked or "downloadid" in asked:
            return self._read(table, method, asked, short)
        if "uploads" in asked or "uploadid" in asked:
            return self._write(table, method, asked, body)
        if "partitions" in asked:
            return "application/xml", self._partitions(table, asked.get("partition", ""))
        partition = asked.get("partition", "")
        data = self._data(table, partition) if partition else None
        written = data.written if data else max((one.written for one in table.data.values()), default=0)
        schema = {**({} if data else table.schema()), "lastModifiedTime": written}
        kind = "Partition" if data else "Table"
        said = (
            f"<{kind}><Name>{path[3]}</Name><Schema format='Json'><![CDATA[{json.dumps(schema)}]]></Schema></{kind}>"
        )
        return "application/xml", said.encode()

    def _partitions(self, table: Table, wanted: str) -> bytes:
        asked = [one.replace("'", "").replace('"', "") for one in wanted.split(",") if one]
        found = [one for one in table.data if one and set(asked) <= set(one.split("/"))]
        columns = [
            "".join(f'<Column Name="{name}" Value="{escape(value)}"/>' for name, _, value in
                    (part.partition("=") for part in one.split("/")))
            for one in reversed(found)
        ]  # fmt: skip
        inside = "".join(f"<Partition>{one}</Partition>" for one in columns)
        return f"<Partitions><Marker/><MaxItems>1000</MaxItems>{inside}</Partitions>".encode()

    def _data(self, table: Table, partition: str) -> Data:
        asked = "/".join(partition.replace("'", "").replace('"', "").split(","))
        if bool(table.divided) != bool(asked):
            raise Refused(400, "MissingPartitionSpec", "You need to specify a partitionspec along with the table")
        if asked not in table.data:
            raise Refused(404, "NoSuchPartition", "The specified partition does not exist")
        return table.data[asked]

    def _session(self, name: str) -> Session:
        found = self.sessions.get(name)
        if found is None:
            raise Refused(404, "NoSuchDownload", "The specified session does not exist")
        if found.expired:
            raise Refused(409, "StatusConflict", "The download session is expired")
        return found

    def _new(self, session: Session) -> str:
        with self._lock:
            name = f"{len(self.sessions):032x}"
            self.sessions[name] = session
        return name

    def _read(self, table: Table, method: str, asked: dict[str, str], short: bool) -> tuple[str, bytes]:
        if method == "POST":
            partition = asked.get("partition", "")
            data = self._data(table, partition)
            order = self._draw.sample(range(data.rows.num_rows), data.rows.num_rows) if self.mixes else None
            name = self._new(Session(table, partition, data, order))
        else:
            name = asked["downloadid"]
        session = self._session(name)
        rows = session.data.rows
        if "data" not in asked:
            said = {"DownloadID": name, "Status": "normal", "RecordCount": rows.num_rows, "Schema": table.schema()}
            return "application/json", json.dumps(said).encode()
        if self._data(table, session.partition) is not session.data:
            raise Refused(400, "TableModified", "The specified table has been modified since the download initiated")
        first, count = (int(one) for one in asked["rowrange"].strip("()").split(","))
        if not 0 <= first < first + count <= rows.num_rows:
            raise Refused(400, "InvalidRowRange", "The specified row range is not valid")
        if session.order is not None:
            rows = rows.take(session.order)
        wanted = asked["columns"].split(",")  # the service gives them in the table's order
        found = rows.select([name for name in table.columns if name in wanted]).slice(first, count - (short and 1))
        return "application/octet-stream", framed(found)

    def _write(self, table: Table, method: str, asked: dict[str, str], body: bytes) -> tuple[str, bytes]:
        partition = "/".join(asked.get("partition", "").replace("'", "").split(","))
        if "uploads" in asked:
            if partition not in table.data and "create_partition" not in asked:
                self._data(table, partition)
            name = self._new(Session(table, partition, Data(pa.table({}), 0), overwrite="overwrite" in asked))
        else:
            name = asked["uploadid"]
        session = self._session(name)
        if method == "PUT":
            if session.done:
                raise Refused(409, "InvalidStatusChange", "The session is closed")
            session.blocks[int(asked["blockid"])] = decoded(body, table.columns)
        elif method == "POST" and "uploads" not in asked and not session.done:
            schema = pa.schema([(name, _ARROW[kind]) for name, kind in table.columns.items()])
            rows = pa.concat_tables([schema.empty_table(), *(session.blocks[one] for one in sorted(session.blocks))])
            with self._lock:
                self._clock += 1
                before = table.data.get(session.partition)
                if before is not None and not session.overwrite:
                    rows = pa.concat_tables([before.rows, rows])
                table.data[session.partition] = Data(rows, self._clock)
                session.done = True
        said = {
            "UploadID": name, "Status": "closed" if session.done else "normal", "Schema": table.schema(),
            "UploadedBlockList": [{"BlockID": one} for one in sorted(session.blocks)], "MaxFieldSize": 8 << 20,
        }  # fmt: skip
        return "application/json", json.dumps(said).encode()


_ARROW = {
    "bigint": pa.int64(), "int": pa.int32(), "double": pa.float64(), "float": pa.float32(), "string": pa.string(),
    "boolean": pa.bool_(), "binary": pa.binary(), "datetime": pa.timestamp("ms"), "date": pa.date32(),
    "array<bigint>": pa.list_(pa.int64()), "array<double>": pa.list_(pa.float64()),
}  # fmt: skip
_KINDS = {str(arrow): kind for kind, arrow in _ARROW.items()}


def framed(rows: pa.Table) -> bytes:
    """Rows as the tunnel sends them: record batches of Arrow, in chunks that a checksum follows."""
    sink = pa.BufferOutputStream()
    with pa.ipc.new_stream(sink, rows.schema) as writer:
        for batch in rows.to_batches(max_chunksize=7):
            writer.write_batch(batch)
    data = sink.getvalue().to_pybytes()[len(rows.schema.serialize()) :]
    sent = [struct.pack("!I", _CHUNK)]
    for at in range(0, len(data) - len(data) % _CHUNK, _CHUNK):
        chunk = data[at : at + _CHUNK]
        sent += [chunk, struct.pack("!I", google_crc32c.value(chunk))]
    return b"".join([*sent, data[len(data) - len(data) % _CHUNK :], struct.pack("!I", google_crc32c.value(data))])


def decoded(body: bytes, columns: Mapping[str, str]) -> pa.Table:
    """Records as pyodps sends them: fields by number, and at the end how many there were."""
    number, at = 0, 0
    rows: list[dict[str, Any]] = []
    row: dict[str, Any] = {}
    names = list(columns)

    def varint() -> int:
        nonlocal at
        found = shift = 0
        while True:
            byte = body[at]
            at += 1
            found |= (byte & 127) << shift
            shift += 7
            if byte < 128:
                return found

    while at < len(body):
        number = varint() >> 3
        if number == 33553408:  # a record's end, and its checksum
            varint()
            rows.append({name: row.get(name) for name in names})
            row = {}
        elif number == 33554430:
            count = varint()
            assert (count >> 1) ^ -(count & 1) == len(rows)
        elif number == 33554431:
            varint()
        else:
            name = names[number - 1]
            kind = columns[name]
            if kind == "double":
                (row[name],) = struct.unpack_from("<d", body, at)
                at += 8
            elif kind == "float":
                (row[name],) = struct.unpack_from("<f", body, at)
                at += 4
            elif kind in ("string", "binary"):
                size = varint()
                row[name] = body[at : at + size].decode() if kind == "string" else body[at : at + size]
                at += size
            elif kind == "boolean":
                row[name] = bool(varint())
            else:
                value = varint()
                row[name] = (value >> 1) ^ -(value & 1)
    return pa.Table.from_pylist(rows, pa.schema([(name, _ARROW[kind]) for name, kind in columns.items()]))


class _Handler(BaseHTTPRequestHandler):
    protocol_version = "HTTP/1.1"
    wbufsize = -1  # head and content go together: apart they wait for each other's receipt
    server: Any

    def log_message(self, *_: Any) -> None:
        """Nothing is said."""

    def _body(self) -> bytes:
        if self.headers.get("Transfer-Encoding") != "chunked":
            return self.rfile.read(int(self.headers.get("Content-Length") or 0))
        found = []
        while size := int(self.rfile.readline().split(b";")[0], 16):
            found.append(self.rfile.read(size))
            self.rfile.readline()
        self.rfile.readline()
        return b"".join(found)

    def _serve(self) -> None:
        fake: FakeMaxCompute = self.server.fake
        body = self._body()
        parts = urlsplit(self.path)
        asked = dict(parse_qsl(parts.query, keep_blank_values=True))
        path = [unquote(one) for one in parts.path.strip("/").split("/")]
        fake.asked.append(f"{self.command} {self.path}")
        fault = fake.fault("rowrange" in asked)
        if fault == "reset":
            self.close_connection = True
            return
        status, kind, content = 200, "application/xml", b""
        try:
            if fault in ("refused", "busy", "moved"):
                raise {"refused": Refused(503, "ServiceUnavailable", "Service is temporarily unavailable"),
                       "busy": Refused(429, "FlowExceeded", "Your flow quota is exceeded."),
                       "moved": Refused(308, "SlotReassignment", "moved")}[fault]  # fmt: skip
            if f"ODPS {ENVIRONMENT['MAXCOMPUTE_AK']}:" not in self.headers.get("Authorization", ""):
                raise Refused(401, "Unauthorized", "The request authorization header is invalid or missing.")
            kind, content = fake.answer(self.command, path, asked, body, fault == "short")
        except Refused as error:
            status, code, words = error.args
            content = (
                f"<Error><Code>{code}</Code><Message>{escape(words)}</Message><RequestId>1</RequestId>"
                "<HostId>here</HostId></Error>"
            ).encode()
        if fault == "lost":
            self.close_connection = True
            return
        self.send_response(status)
        self.send_header("Content-Type", kind)
        self.send_header("Content-Length", str(len(content)))
        self.send_header("x-odps-request-id", "1")
        self.end_headers()
        if fault == "cut":
            content, self.close_connection = content[: len(content) // 2], True
        self.wfile.write(content)

    do_GET = do_POST = do_PUT = _serve  # noqa: N815 (names of the library)


@contextlib.contextmanager
def serving_maxcompute() -> Iterator[FakeMaxCompute]:
    """The service, with nothing in it."""
    fake = FakeMaxCompute()
    server = ThreadingHTTPServer(("127.0.0.1", 0), _Handler)
    server.daemon_threads = True
    server.fake = fake  # type: ignore[attr-defined]
    fake.url = f"http://127.0.0.1:{server.server_port}"
    thread = threading.Thread(target=server.serve_forever, kwargs={"poll_interval": 0.05}, daemon=True)
    thread.start()
    try:
        yield fake
    finally:
        server.shutdown()
        server.server_close()
        thread.join(30)

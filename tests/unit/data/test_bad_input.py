"""A table of data that cannot be trained, over all readers: refused with place and way out, by all who read data."""

from __future__ import annotations

import contextlib
import os
import sqlite3
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import duckdb
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from elasticdl.data import DataReader, Shard, create_data_reader, fingerprints, recordio, tfrecord
from elasticdl.data.convert import convert
from elasticdl.data.inspection import inspect_data
from elasticdl_core.errors import ElasticDLError
from tests.fakes.sources import SOURCES

pytestmark = pytest.mark.unit

RECORDS = 40
DATABASES = ("sqlite", "duckdb")
COLUMNS = ("csv", "parquet", "arrow", *DATABASES, "tar")
TABLES = ("parquet", "arrow", *DATABASES)


@dataclass(frozen=True)
class Bad:
    """Some data, and what is said of it.

    Attributes:
        make: writes it below a folder.
        words: all of what is to be said, in any order.
        origin: the data; ``{}`` stands for the folder.
        params: reader parameters.
    """

    make: Callable[[Path], object]
    words: tuple[str, ...]
    origin: str
    params: dict[str, Any] = field(default_factory=dict)


def _place(kind: str, name: str = "data") -> str:
    """Data of a kind below a folder, by its name."""
    if kind in DATABASES:
        return f"{kind}://{{}}/{name}.db?table=t"
    return f"{{}}/{name}" if kind == "images" else f"{{}}/{name}.{kind}"


def _file(kind: str, folder: Path) -> Path:
    """The file of a source; of images one of them."""
    ending = {"sqlite": ".db", "duckdb": ".db", "images": "/a/0003.png"}.get(kind, f".{kind}")
    return folder / f"data{ending}"


def _write(kind: str, folder: Path, rows: int = RECORDS) -> None:
    SOURCES[kind].write(folder / "data" if kind == "images" else _file(kind, folder), range(rows))


def _good(kind: str, words: tuple[str, ...], /, **params: Any) -> Bad:
    """Good data of a kind, and reader parameters that do not go with it."""
    told = {"with_header": True} if kind == "csv" else {}
    return Bad(partial(_write, kind), words, _place(kind), told | params)


def _spoilt(kind: str, spoil: Callable[[bytes], bytes], *words: str) -> Bad:
    def make(folder: Path) -> None:
        _write(kind, folder)
        path = _file(kind, folder)
        path.write_bytes(spoil(path.read_bytes()))

    return Bad(make, words, _place(kind))


def _parquet(words: tuple[str, ...], *tables: Any, at: str = "data/{}.parquet", **params: Any) -> Bad:
    def make(folder: Path) -> None:
        for number, table in enumerate(tables):
            path = folder / at.format(number)
            path.parent.mkdir(parents=True, exist_ok=True)
            pq.write_table(pa.table(table), path)

    return Bad(make, words, "{}/data", params)


def _partitions(words: tuple[str, ...], *folders: str, **params: Any) -> Bad:
    def make(folder: Path) -> None:
        for name in folders:
            path = folder / "data" / name / "a.parquet"
            path.parent.mkdir(parents=True)
            pq.write_table(pa.table({"v": [1]}), path)

    return Bad(make, words, "{}/data", params)


def _arrow(words: tuple[str, ...], table: Any, **params: Any) -> Bad:
    return Bad(
        lambda folder: pyarrow.feather.write_feather(pa.table(table), str(folder / "data.arrow")),
        words, _place("arrow"), params,
    )  # fmt: skip


def _sql(kind: str, words: tuple[str, ...], script: str, asked: str = "table=t", **params: Any) -> Bad:
    def make(folder: Path) -> None:
        if kind == "sqlite":
            with contextlib.closing(sqlite3.connect(folder / "data.db")) as connection, connection:
                connection.executescript(script)
        else:
            with duckdb.connect(str(folder / "data.db")) as connection:
                connection.execute(script)

    return Bad(make, words, f"{kind}://{{}}/data.db?{asked}", params)


def _nothing(kind: str) -> Bad:
    """A file or table without a record."""
    empty = {"id": pa.array([], pa.int64())}
    words = ("the table has no row",) if kind in DATABASES else ("the files hold no record",)
    made = {
        "parquet": _parquet(words, empty),
        "arrow": _arrow(words, empty),
        "sqlite": _sql("sqlite", words, "CREATE TABLE t (id INT)"),
        "duckdb": _sql("duckdb", words, "CREATE TABLE t (id INT)"),
        "images": Bad(
            lambda folder: (folder / "data").mkdir(), ("holds no data files",), "{}/data", {"kind": "images"}
        ),
        "recordio": Bad(lambda folder: recordio.Writer(folder / "data.recordio").close(), words, _place("recordio")),
        "tfrecord": Bad(lambda at: tfrecord.TFRecordWriter(at / "data.tfrecord").close(), words, _place("tfrecord")),
        "csv": Bad(lambda at: (at / "data.csv").write_text("a,b\n"), words, _place("csv"), {"with_header": True}),
        "tar": Bad(lambda at: SOURCES["tar"].write(at / "data.tar", range(0)), words, _place("tar")),
    }
    return made[kind]


CHANGES: dict[str, tuple[Callable[[Path], object], bool]] = {
    "written anew": (lambda path: os.utime(path, ns=(1, 1)), True),
    "longer": (lambda path: path.write_bytes(path.read_bytes() * 2), True),
    "cut off": (lambda path: os.truncate(path, path.stat().st_size // 2), True),
    "empty": (lambda path: path.write_bytes(b""), True),
    "gone": (Path.unlink, False),
}
"""What becomes of a file after its tasks were planned, and whether there is another state that can be shown."""

CUT = lambda data: data[: len(data) // 2]  # noqa: E731
FLIP = lambda data: data[:30] + bytes(one ^ 0x5A for one in data[30:])  # noqa: E731
ONE = {"v": [1, 2], "y": [0, 1]}

CASES: dict[str, Bad] = {
    **{f"{kind}: no record": _nothing(kind) for kind in SOURCES},
    **{f"{kind}: unknown parameter": _good(kind, ("has no parameter 'nonsense'",), nonsense=1) for kind in SOURCES},
    **{f"{kind}: as another kind": _good(kind, ("no reader 'hdf5'",), kind="hdf5") for kind in SOURCES},
    **{f"{kind}: skipping what": _good(kind, ("on_corrupt",), on_corrupt="maybe") for kind in SOURCES},
    **{f"{kind}: no such column": _good(kind, ("there is no column 'zz'",), columns=["zz"]) for kind in COLUMNS},
    **{f"{kind}: a column twice": _good(kind, ("names a column twice",), columns=["a", "a"]) for kind in COLUMNS},
    **{f"{kind}: columns are a number": _good(kind, ("columns=3", "list of names"), columns=3) for kind in COLUMNS},
    **{f"{kind}: columns are none": _good(kind, ("columns=[]", "list of names"), columns=[]) for kind in COLUMNS},
    **{f"{kind}: nulls are a word": _good(kind, ("nulls='zero'",), nulls="zero") for kind in (*TABLES, "tar")},
    **{f"{kind}: nulls of none": _good(kind, ("no column 'zz'",), nulls={"zz": 1}) for kind in (*TABLES, "tar")},
    **{f"{kind}: no such label": _good(kind, ("the label 'zz'",), label="zz") for kind in ("csv", *TABLES)},
    **{f"{kind}: a label that is a number": _good(kind, ("label=3",), label=3) for kind in ("csv", *TABLES)},
    **{
        f"{kind}: windows of rows": _good(kind, ("window= does not go with",), window=2)
        for kind in (*TABLES, "tar", "images")
    },
    **{
        f"{kind}: of which half is there": _spoilt(kind, CUT, "data.", words)
        for kind, words in {
            "recordio": "byte",
            "tfrecord": "byte",
            "parquet": "cannot be read",
            "duckdb": "cannot be",
            "arrow": "cannot be read",
            "sqlite": "cannot be read",
            "tar": "byte",
        }.items()
    },
    **{
        f"{kind}: whose bytes are others": _spoilt(kind, FLIP, "data.")
        for kind in ("recordio", "tfrecord", "parquet", "arrow", "sqlite", "duckdb", "tar")
    },
    **{
        f"{kind}: {what}": Bad(
            partial(_write, kind), ("is no table of a database", f"{kind}:///"), f"{kind}://{{}}/{asked}"
        )
        for kind in DATABASES
        for what, asked in {
            "no table named": "data.db",
            "an empty name": "data.db?table=",
            "two": "data.db?table=t&table=u",
            "another word": "data.db?table=t&limit=3",
            "a part behind #": "data.db?table=t#x",
        }.items()
    },
    **{
        f"{kind}: no such table": Bad(
            partial(_write, kind), ("no table 'u'", "the tables are t"), f"{kind}://{{}}/data.db?table=u"
        )
        for kind in DATABASES
    },
    **{
        f"{kind}: no such file": Bad(lambda _: None, ("no such file",), _place(kind))
        for kind in SOURCES
        if kind != "images"
    },
    **{
        f"{kind}: the file itself": Bad(
            partial(_write, kind), (f"is a database of {kind}", f"{kind}://", "table=NAME"), "{}/data.db"
        )
        for kind in DATABASES
    },
    # Types that cannot be
    **{
        f"parquet: {what}": _parquet(("0.parquet: column 'v' is", "no tensor"), {"v": array, "w": [1, 2]})
        for what, array in {
            "lists of lists": pa.array([[[1]], [[2]]]),
            "lists of structs": pa.array([[{"a": 1}], []]),
            "maps": pa.array([[("k", 1)], []], pa.map_(pa.string(), pa.int64())),
            "nothing but nulls": pa.nulls(2),
        }.items()
    },
    "parquet: a null": _parquet(("row 1", "column 'v' has no value"), {"v": [1, None]}),
    "parquet: a list with a null": _parquet(("rows 0 to 2", "element without value"), {"v": [[1], [None]]}),
    "parquet: a null list": _parquet(("row 1", "column 'v' has no"), {"v": [[1], None]}),
    "parquet: a null that is text": _parquet(
        ("column 'v' is int64, and 'x' is not",), {"v": [1, None]}, nulls={"v": "x"}
    ),
    "parquet: a null that is a fraction": _parquet(("and 0.5 is not",), {"v": [1, None]}, nulls={"v": 0.5}),
    "parquet: a null beyond the type": _parquet(
        ("int8, and 200 is not",), {"v": pa.array([1, None], pa.int8())}, nulls={"v": 200}
    ),
    "parquet: a null that is true": _parquet(("and True is not",), {"v": [1, None]}, nulls={"v": True}),
    "parquet: decimals that float64 lacks": _parquet(
        ("row 1", "9007199254740993"), {"v": pa.array([1, 2**53 + 1], pa.decimal128(20, 0))}
    ),
    "parquet: a second file lacks a column": _parquet(("1.parquet", "has no column 'y'"), ONE, {"v": [1]}),
    "parquet: a second file has text": _parquet(("1.parquet", "column 'v' is"), ONE, {"v": ["a"], "y": [1]}),
    "parquet: a second file has fractions": _parquet(("1.parquet", "column 'v' is"), ONE, {"v": [0.5], "y": [1]}),
    "parquet: a second file has larger numbers": _parquet(
        ("1.parquet", "column 'v'"), {"v": pa.array([1], pa.int8())}, {"v": [300]}
    ),
    "parquet: a second file counts in other units": _parquet(
        ("1.parquet", "count other moments"),
        {"v": pa.array([1], pa.timestamp("ms"))},
        {"v": pa.array([1], pa.timestamp("us"))},
    ),
    "parquet: two columns of one name": _parquet(
        ("0.parquet: two columns are called 'a.b'",), {"a.b": [1], "a": [{"b": 2}]}
    ),
    # Partitions
    "parquet: a partition that others have is dropped": _partitions(("has no column 'day'",), "day=1", "e"),
    "parquet: a partition of another name": _partitions(("has no column 'day'",), "day=1", "night=1"),
    "parquet: a partition that is no number": _partitions(("day=one", "is no whole number"), "day=1", "day=one"),
    "parquet: a partition without value": _partitions(
        ("'day' has no value",), "day=1", "day=__HIVE_DEFAULT_PARTITION__"
    ),
    "parquet: a partition that is a column": _partitions(("'v' is a column and a partition",), "v=1"),
    "arrow: a null": _arrow(("row 1", "column 'v' has no value"), {"v": [1, None]}),
    "arrow: maps": _arrow(("no tensor",), {"v": pa.array([[("k", 1)]], pa.map_(pa.string(), pa.int64()))}),
    "sqlite: text among numbers": _sql(
        "sqlite", ("row 1", "column 'v' holds 'x'"), "CREATE TABLE t (v INT); INSERT INTO t VALUES (1), ('x')"
    ),
    "sqlite: a null": _sql("sqlite", ("row 0", "NULL"), "CREATE TABLE t (v INT); INSERT INTO t VALUES (NULL)"),
    "sqlite: a view": _sql("sqlite", ("no key",), "CREATE TABLE u (v INT); CREATE VIEW t AS SELECT v FROM u"),
    "sqlite: a key that is not unique": _sql(
        "sqlite", ("the key 'v' has no unique index",), "CREATE TABLE t (v INT)", "table=t&key=v"
    ),
    "duckdb: a null": _sql("duckdb", ("row 0", "null"), "CREATE TABLE t AS SELECT NULL::INT AS v"),
    "duckdb: a view": _sql("duckdb", ("no table 't'",), "CREATE TABLE u (v INT); CREATE VIEW t AS FROM u"),
    "duckdb: intervals": _sql("duckdb", ("no tensor",), "CREATE TABLE t AS SELECT INTERVAL 1 DAY AS v"),
}


@pytest.fixture(autouse=True)
def _nothing_is_planned(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticdl.data.fingerprints._planned", {})


def _read(origin: str, params: dict[str, Any]) -> None:
    """Reads all, task by task, as a worker and ``--local`` do."""
    reader = create_data_reader(origin, 7, params)
    reader.default_feed()
    for shard in reader.create_shards():
        list(reader.read_records(shard))


def _itself(reader: DataReader) -> DataReader:
    return reader


def _all_of(opened: Callable[[], DataReader], shard: Shard) -> None:
    list(opened().read_records(shard))


def _said(read: Callable[[], object]) -> str:
    try:
        read()
    except ElasticDLError as error:
        return f"{error.message}\nfix: {error.fix}" if error.fix else f"no fix: {error.message}"
    except Exception as error:  # what is to be found
        return f"{type(error).__name__}: {error}"
    return "it was read"


def test_bad_input_is_refused_alike_with_its_place_and_the_way_out(tmp_path: Path) -> None:
    assert len(CASES) >= 120
    wrong = {}
    for number, (name, bad) in enumerate(CASES.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        bad.make(folder)
        origin = bad.origin.format(folder)
        seen = {
            "tasks": _said(partial(_read, origin, bad.params)),
            "inspect": _said(partial(inspect_data, origin, reader_params=bad.params, verify=True)),
            "convert": _said(partial(convert, origin, folder / "out.recordio", "recordio", reader_params=bad.params)),
        }
        unlike = {
            way: found
            for way, found in seen.items()
            if "\nfix: " not in found or any(w not in found for w in bad.words)
        }
        if unlike:
            wrong[name] = unlike
        if (folder / "out.recordio").exists():
            wrong.setdefault(name, {})["convert"] = "something was written"
    assert not wrong, "\n".join(f"{name}: {found}" for name, found in wrong.items())


@pytest.mark.parametrize("kind", SOURCES)
def test_a_source_that_is_altered_under_way_is_an_error_for_all_who_read_it(
    kind: str, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    params = {"with_header": True} if kind == "csv" else {}
    for what, (change, shown) in CHANGES.items():
        monkeypatch.setattr("elasticdl.data.fingerprints._planned", {})
        folder = tmp_path / what
        folder.mkdir()
        _write(kind, folder)
        origin = _place(kind).format(folder)
        listed = create_data_reader(origin, None, params)
        (shard,) = listed.create_shards()
        before = listed.fingerprint(shard.name)
        change(_file(kind, folder))
        fingerprints.expect({shard.name: before})
        for who, reader in {
            "who listed it": partial(_itself, listed),
            "another": partial(create_data_reader, origin, None, params),
        }.items():
            said = _said(partial(_all_of, reader, shard))
            assert "\nfix: " in said, (what, who, said)
            if shown:
                told = before in said and "was changed" in said
                assert told or (kind == "images" and "0003.png: is empty" in said), (what, who, said)
            else:
                assert "no such file" in said or before in said, (what, who, said)


def test_files_without_permission_are_refused_by_name(open_folder: Path) -> None:
    for kind in SOURCES:
        folder = open_folder / kind
        folder.mkdir()
        _write(kind, folder)
        _read(_place(kind).format(folder), {"with_header": True} if kind == "csv" else {})  # imports what nobody may
        _file(kind, folder).chmod(0)
    if os.geteuid() == 0:
        os.seteuid(65534)
    for kind in SOURCES:
        params = {"with_header": True} if kind == "csv" else {}
        for read in (_read, lambda origin, params: inspect_data(origin, reader_params=params, verify=True)):
            said = _said(partial(read, _place(kind).format(open_folder / kind), params))
            assert "permission denied" in said and "\nfix: " in said, (kind, said)

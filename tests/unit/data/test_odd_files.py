"""A table of files as they lie around: read alike, or refused with the same words, by all who read data."""

from __future__ import annotations

import asyncio
import gzip
import os
import zipfile
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from elasticdl.data import create_data_reader
from elasticdl.data.convert import convert
from elasticdl.data.inspection import inspect_data
from elasticdl.data.validation import validate_data
from elasticdl_core.errors import DataError, ElasticDLError
from elasticdl_core.job import JobSpec
from elasticdl_core.shard import Shard
from elasticdl_core.task import TaskType
from elasticdl_master.listing import list_shards, open_readers
from elasticdl_proto.v1 import master_pb2 as pb

pytestmark = pytest.mark.unit

Rows = list[list[str]]
Make = Callable[[Path], None]


@dataclass(frozen=True)
class Odd:
    """Some data, and what becomes of it.

    Attributes:
        files: name -> content, or what else makes them.
        rows: the records; or the beginning of what is said, after the name of the file.
        origin: the data below the folder; ``{}`` stands for the folder in a URL.
        params: reader parameters.
        at: the file that is named where it is refused.
    """

    files: dict[str, bytes] | Make
    rows: Rows | str
    origin: str = ""
    params: dict[str, Any] = field(default_factory=dict)
    at: str = ""


def _one(content: bytes, rows: Rows | str, name: str = "a.csv", **params: Any) -> Odd:
    return Odd({name: content}, rows, name, params, name if isinstance(rows, str) else "")


AB: Rows = [["1", "2"], ["3", "4"]]
TABLE = b"a,b\n1,2\n3,4\n"


def _links(*pairs: tuple[str, str], **named: bytes) -> Make:
    def make(folder: Path) -> None:
        for name, content in named.items():
            path = folder / name.replace("__", "/").replace("_csv", ".csv")
            path.parent.mkdir(parents=True, exist_ok=True)
            path.write_bytes(content)
        for link, target in pairs:
            (folder / link).symlink_to(target)

    return make


def _hard(folder: Path) -> None:
    (folder / "a.csv").write_bytes(TABLE)
    os.link(folder / "a.csv", folder / "b.csv")


def _strange(folder: Path) -> None:
    (folder / os.fsdecode(b"d\xe4ta.csv")).write_bytes(TABLE)


def _piped(folder: Path, *, link: str = "") -> None:
    (folder / "a.csv").write_bytes(TABLE)
    os.mkfifo(folder / (".pipe" if link else "b.csv"))
    if link:
        (folder / link).symlink_to(".pipe")


def _zipped(folder: Path) -> None:
    with zipfile.ZipFile(folder / "a.zip", "w") as archive:
        archive.writestr("in.csv", TABLE)


LFS = b"version https://git-lfs.github.com/spec/v1\noid sha256:1\nsize 9\n"
UNREADABLE = "byte 0xe4 is not utf-8"
SEPARATORS = {f"divided by {sep!r}": sep.encode() for sep in (",", ";", "\t", "|")}
ENDS = {"\\n": b"\n", "\\r\\n": b"\r\n"}

TABLES: dict[str, Odd] = {
    # What divides fields and lines
    **{
        f"{name}, {end}, {'an end' if last else 'no end'} of the last line": _one(
            TABLE.replace(b",", sep).replace(b"\n", line).removesuffix(b"" if last else line), AB
        )
        for name, sep in SEPARATORS.items()
        for end, line in ENDS.items()
        for last in (True, False)
    },
    **{f"no suffix, {name}": _one(TABLE.replace(b",", sep), AB, "rows") for name, sep in SEPARATORS.items()},
    ".tsv": _one(b"a\tb\n1\t2\n3\t4\n", AB, "a.tsv"),
    ".TSV": _one(b"a\tb\n1\t2\n3\t4\n", AB, "a.TSV"),
    ".CSV": _one(TABLE, AB, "a.CSV"),
    "no \\n at all": _one(b"a,b\r1,2\r3,4\r", "a line ends with a carriage return alone"),
    "a \\r among \\n": _one(b"a,b\n1,2\r3,4\n5,6\n", "a line ends with a carriage return alone"),
    "two that divide alike": _one(b"a;b|c\n1;2|3\n", "its lines are divided by ';' or by '|'"),
    "one of the two": _one(b"a;b|c\n1;2|3\n", [["1", "2|3"]], sep=";"),
    "commas as decimal points": _one(b"a;b\n1,5;2,5\n", [["1,5", "2,5"]], with_header=True),
    "a byte order mark": _one(b"\xef\xbb\xbf" + TABLE, AB),
    "a byte order mark and a quote": _one(b'\xef\xbb\xbf"a",b\n1,2\n3,4\n', AB),
    "a byte order mark in a second file": Odd({"1.csv": TABLE, "2.csv": b"\xef\xbb\xbf" + TABLE}, AB + AB),
    "a byte order mark and no header": _one(b"\xef\xbb\xbf1,2\n3,4\n", AB),
    "the end of file of DOS": _one(TABLE + b"\x1a", "record 2: has 1 columns, the file has 2"),
    "a line for spreadsheets": _one(b"sep=;\na;b\n1;2\n3;4\n", "begins with 'sep=;', a line for spreadsheets"),
    "a line of spaces": _one(b"a,b\n1,2\n   \n3,4\n", "record 1: has 1 columns, the file has 2"),
    "a footer": _one(b"a,b\n1,2\nTotal: 1 row\n", "record 1: has 1 columns, the file has 2"),
    "a comment first": _one(b"# made by x\na,b\n1,2\n", "the rows below do not tell"),
    "fields divided by spaces": _one(b"a b\n1 2\n3 4\n", "the rows below do not tell"),
    **{
        f"{name} in a field": _one(f"a,b\nx{char}y,2\n".encode(), [[f"x{char}y", "2"]])
        for name, char in {"a next line": "\u0085", "a line separator": "\u2028", "a form feed": "\f"}.items()
    },
    "files with \\n and with \\r\\n": Odd({"1.csv": b"a,b\n1,2\n", "2.csv": b"a,b\r\n3,4\r\n"}, AB),
    "files divided otherwise": Odd(
        {"1.csv": TABLE, "2.csv": b"a;b\n3;4\n"}, "lacks the columns 'a', 'b'", at="2.csv"
    ),
    "empty lines": _one(b"\n\na,b\n\n1,2\n\n\n3,4\n\n", AB),
    "one column": _one(b"a\n1\n3\n", [["1"], ["3"]]),
    "one record": _one(b"a,b\n1,2\n", [["1", "2"]]),
    "spaces around": _one(b"a, b\n1, 2\n3, 4\n", [["1", " 2"], ["3", " 4"]]),
    "spaces left out": _one(b"a, b\n1, 2\n3, 4\n", AB, skip_spaces=True),
    # Quotes
    "a comma in quotes": _one(b'a,b\n"1,5",2\n', [["1,5", "2"]]),
    "a line end in quotes": _one(b'a,b\n"x\ny",2\n"z",4\n', [["x\ny", "2"], ["z", "4"]]),
    "\\r\\n in quotes": _one(b'a,b\r\n"x\r\ny",2\r\n', [["x\r\ny", "2"]]),
    "quotes in quotes": _one(b'a,b\n"say ""x""",2\n', [['say "x"', "2"]]),
    "all in quotes": _one(b'"a","b"\n"1","2"\n"3","4"\n', AB),
    "an open quote": _one(b'a,b\n"1,2\n3,4\n', "quote", with_header=True),
    "a quote after a space": _one(b'a,b\n1, "2"\n', "a quote inside a field", with_header=True),
    "a quote after a backslash": _one(b'a,b\n"x\\"y",2\n', "a quote inside a field", with_header=True),
    "a long field in quotes": _one(b'a,b\n"' + b"x" * 200_000 + b'",2\n', [["x" * 200_000, "2"]], with_header=True),
    "empty fields in quotes": _one(b'a,b\n"",""\n1,2\n', [["", ""], ["1", "2"]], with_header=True),
    "a stray quote": _one(b'a,b\n1" x,2\n', [['1" x', "2"]], quoting=False),
    "inches": _one(b'a,b\n5",2\n6",4\n', [['5"', "2"], ['6"', "4"]], quoting=False),
    # Header or record
    "no header": _one(b"1,2\n3,4\n", AB),
    "years above numbers": _one(b"region,2019\nnorth,5\nsouth,6\n", "the rows below do not tell"),
    "years, told": _one(b"region,2019\nnorth,5\n", [["north", "5"]], with_header=True),
    "years, told to be values": _one(
        b"region,2019\nnorth,5\n", [["region", "2019"], ["north", "5"]], with_header=False
    ),
    "texts alone": _one(b"name,town\nann,rome\nbob,oslo\n", "the rows below do not tell"),
    "texts with a label": _one(b"name,town\nann,rome\n", [["ann", "rome"]], label="town"),
    "an index without a name": _one(b",x\n0,0.5\n1,0.7\n", [["0", "0.5"], ["1", "0.7"]]),
    "numbers down to the last row": _one(b"5.5,1\n6.5,2\n", [["5.5", "1"], ["6.5", "2"]]),
    # Columns
    "two of one name": _one(b"a,a,y\n1,2,3\n", [["1", "2", "3"]]),
    "the second of one name": _one(b"a,a,y\n1,2,3\n", [["2", "3"]], columns=["a.1", "y"]),
    "columns in another order": _one(b"a,b\n1,2\n", [["2", "1"]], columns=["b", "a"]),
    "names in other cases": Odd({"1.csv": TABLE, "2.csv": b"A,B\n3,4\n"}, "lacks the columns 'a', 'b'", at="2.csv"),
    "a space in a name of a second file": Odd(
        {"1.csv": TABLE, "2.csv": b"a, b\n3,4\n"}, "lacks the column 'b'", at="2.csv"
    ),
    "a header in the first file alone": Odd(
        {"1.csv": TABLE, "2.csv": b"3,4\n"}, "lacks the columns 'a', 'b'", at="2.csv"
    ),
    "a header in the second file alone": Odd(
        {"1.csv": b"1,2\n3,4\n", "2.csv": TABLE}, "its first row, ['a', 'b'], names the columns", at="2.csv"
    ),
    "a header in the second file alone, told to be a record": Odd(
        {"1.csv": b"1,2\n3,4\n", "2.csv": b"a,b\n1,2\n"}, [*AB, ["a", "b"], ["1", "2"]], params={"with_header": False}
    ),
    "a value of another type far below": _one(
        b"a,b\n" + b"1,2\n" * 300 + b"x,2\n", [["1", "2"]] * 300 + [["x", "2"]]
    ),
    "a column that is not there": _one(TABLE, "there is no column 'z'", columns=["a", "z"]),
    "a label that is not there": _one(TABLE, "the label 'z' is not among the columns", label="z"),
    "names for columns": _one(b"1,2\n3,4\n", AB, column_names=["x", "y"], with_header=False),
    "too few names": _one(b"1,2\n3,4\n", "has 2 columns, column_names has 1", column_names=["x"], with_header=False),
    "a row too short": _one(b"a,b\n1,2\n3\n5,6\n", "has 1 columns, the file has 2"),
    "a row too long": _one(b"a,b\n1,2\n3,4,5\n", "has 3 columns, the file has 2"),
    "a comma at each end": _one(b"a,b,\n1,2,\n3,4,\n", [["1", "2", ""], ["3", "4", ""]]),
    "empty cells": _one(b"a,b\n,2\n3,\n", [["", "2"], ["3", ""]]),
    # Values
    **{
        f"the value {value!r}": _one(f"a,b\n{value},2\n".encode(), [[value, "2"]], with_header=True)
        for value in ("1e3", "99999999999999999999", "12\u00a0", "\uff11\uff12", "1_0", "NaN", "inf", "-0", "é", "\t")
    },
    # Encodings
    "latin-1": _one(b"a,b\n\xe4,2\n", UNREADABLE),
    "latin-1, told": _one(b"a,b\n\xe4,2\n", [["ä", "2"]], encoding="latin-1"),
    "latin-1, skipped": _one(b"a,b\n\xe4,2\n3,4\n", [["3", "4"]], on_corrupt="skip"),
    "UTF-16": _one(TABLE.decode().encode("utf-16"), "is UTF-16"),
    "UTF-16 without a mark": _one(TABLE.decode().encode("utf-16-le"), "is UTF-16"),
    "UTF-16, the other way round": _one(TABLE.decode().encode("utf-16-be"), "is UTF-16", "rows"),
    "quotes of Windows": _one(b"a,b\n\x93x\x94,2\n", "byte 0x93 is not utf-8"),
    "Shift JIS, told": _one("a,b\n日本,2\n".encode("shift-jis"), [["日本", "2"]], encoding="shift-jis"),
    "a byte order mark, told": _one(b"\xef\xbb\xbf" + TABLE, AB, encoding="utf-8-sig"),
    "UTF-16, told": Odd({"a.csv": TABLE}, "newlines of several bytes", "a.csv", {"encoding": "utf-16"}),
    "no encoding": Odd({"a.csv": TABLE}, "there is no encoding 'x'", "a.csv", {"encoding": "x"}),
    "rows of wrong width, skipped": _one(b"a,b\n1,2\n3\n5,6\n", [["1", "2"], ["5", "6"]], on_corrupt="skip"),
    "zeros": _one(b"a,b\n1\0,2\n", [["1\0", "2"]]),
    # What is no table
    "JSON lines": _one(b'{"a": 1, "b": 2}\n', "is JSON lines, not a table", "a.jsonl"),
    "JSON": _one(b'{"a": 1, "b": 2}\n{"a": 3, "b": 4}\n', "is JSON, not a table", "rows"),
    "JSON in .csv": _one(b"[1, 2]\n", [["[1", " 2]"]], with_header=False),
    "Markdown": _one(b"Data, of 2019\n\nIt is good, mostly\n", "is Markdown, not a table", "README.md"),
    "prose": _one(b"Data, of 2019\nIt is, mostly, good\n", "is of an unknown kind", "README"),
    "an error page in .csv": _one(b"<!DOCTYPE html>\n<html>404, not found</html>\n", "is HTML, not a table"),
    "XML in .csv": _one(b"<?xml version='1.0'?>\n<a>1, 2</a>\n", "is XML, not a table"),
    "JSON lines in .csv": _one(b'{"a": 1, "b": 2}\n{"a": 3, "b": 4}\n', "is JSON, not a table"),
    "an answer of an API in .csv": _one(b'[{"a": 1, "b": 2}]\n', "is JSON, not a table"),
    "a database in .csv": _one(b"SQLite format 3\0" + bytes(90), "is a database of sqlite"),
    "a log": _one(b"a, b\nc, d\n", "is a log, not a table", "a.log"),
    **{
        f"{what} in .csv": _one(magic + bytes(50), f"is {what}")
        for what, magic in {
            "UTF-32": b"\xff\xfe\0\0a\0\0\0",
            "a workbook of Excel": b"\xd0\xcf\x11\xe0\xa1\xb1\x1a\xe1",
            "an array of NumPy": b"\x93NUMPY\x01\0",
            "an Avro file": b"Obj\x01",
            "a PDF document": b"%PDF-1.4\n",
            "a 7z archive": b"7z\xbc\xaf\x27\x1c",
            "compressed with lz4": b"\x04\x22\x4d\x18",
        }.items()
    },
    "zeros alone": _one(bytes(5000), "\\x00'...], names the columns or"),
    "YAML": _one(b"a: 1, 2\n", "is YAML, not a table", "a.yaml"),
    "Python": _one(b"a, b = 1, 2\n", "is Python, not a table", "a.py"),
    "HTML": _one(b"<p>a, b</p>\n", "is HTML, not a table", "a.html"),
    **{f"Git LFS, {name}": _one(LFS, "is a pointer of Git LFS", name) for name in ("a.csv", "rows", "a.tfrecord")},
    **{
        f"{what} in {name}": _one(magic + bytes(50), f"is {what}", name)
        for what, magic in {
            "a zip archive": b"PK\x03\x04",
            "compressed with bzip2": b"BZh9",
            "an HDF5 file": b"\x89HDF",
            "compressed with xz": b"\xfd7zXZ",
            "compressed with zlib": b"\x78\x9c",
            "a PNG image": b"\x89PNG",
            "compressed with gzip": b"\x1f\x8b\x08",
        }.items()
        for name in ("a.csv", "a.tfrecord", "rows")
    },
    "Parquet in .csv": _one(b"PAR1" + bytes(50), "is named .csv but its bytes are parquet"),
    # Empty files and markers
    "nothing": _one(b"", "all files are empty"),
    "an empty first file": Odd({"part-0.csv": b"", "part-1.csv": TABLE}, AB),
    "a first file with a header alone": Odd({"part-0.csv": b"a,b\n", "part-1.csv": TABLE}, AB),
    "an empty second file": Odd({"part-0.csv": TABLE, "part-1.csv": b""}, AB),
    "an empty first file without a suffix": Odd({"part-0": b"", "part-1": TABLE}, AB),
    "a marker beside": Odd({"_SUCCESS": b"", ".crc": b"x", "part-0.csv": TABLE}, AB),
    "a marker under a pattern": Odd({"_SUCCESS": b"", "part-0.csv": TABLE}, AB, "*"),
    "what editors and downloads leave": Odd(
        {"a.csv": TABLE, "a.csv~": TABLE, "a.csv.bak": TABLE, "b.csv.part": TABLE, "b.csv.crdownload": TABLE}, AB
    ),
    "what Windows leaves": Odd({"a.csv": TABLE, "desktop.ini": b"[x]\n"}, "is of an unknown kind", at="desktop.ini"),
    "a README beside": Odd({"a.csv": TABLE, "README.md": b"# x, y\n"}, "is Markdown, not a table", at="README.md"),
    "a licence beside": Odd({"a.csv": TABLE, "b": b"MIT, of\n"}, "lacks the columns 'a', 'b'", at="b"),
    "compressed files beside": Odd(
        {"a.csv": TABLE, "b.csv.gz": gzip.compress(TABLE)}, "is compressed with gzip", at="b.csv.gz"
    ),
    "a folder named .csv": Odd({"x.csv/a.csv": TABLE}, AB),
    "a header alone": _one(b"a,b\n", "the rows below do not tell"),
    "lines without anything": _one(b"\n\n", "all files are empty"),
    "two kinds": Odd({"a.csv": TABLE, "b.parquet": b"PAR1" + bytes(50)}, "holds files of several kinds"),
    "files with their columns in other orders": Odd({"1.csv": b"a,b\n1,2\n", "2.csv": b"b,a\n4,3\n"}, AB),
    "a file with another column": Odd({"1.csv": TABLE, "2.csv": b"a,c\n1,2\n"}, "lacks the column 'b'", at="2.csv"),
    "a pattern that nothing matches": Odd({"a.csv": TABLE}, "no", "*.tsv"),
    "a named pipe": Odd(_piped, "is neither a file nor a directory", at="b.csv"),
    "a named pipe under a pattern": Odd(_piped, "is neither a file nor a directory", "*.csv", at="b.csv"),
    "a link to a named pipe": Odd(partial(_piped, link="c"), "is neither a file nor a directory", at="c"),
    "a table of Delta Lake": Odd({"_delta_log/0.json": b"{}", "a.csv": TABLE}, "is a table of Delta Lake"),
    "files of Delta Lake": Odd({"_delta_log/0.json": b"{}", "a.csv": TABLE}, AB, "*.csv"),
    "a table of Hudi further down": Odd({"t/.hoodie/x": b"", "t/a.csv": TABLE}, "is a table of Apache Hudi", at="t"),
    "a resource fork": Odd({"a.csv": TABLE, "._a.csv": b"\0\5\x16\7", "__MACOSX/._a.csv": b"\0\5\x16\7"}, AB),
    # Links
    "a link to a file": Odd(_links(("b.csv", "a.csv"), a_csv=TABLE), AB),
    "latest beside v1": Odd(_links(("latest", "v1"), v1__a_csv=TABLE), AB),
    "a file of two names": Odd(_hard, AB),
    "a link that dangles": Odd(_links(("b.csv", "gone"), a_csv=TABLE), "is a link to gone, which is not", at="b.csv"),
    "a link to itself": Odd(_links(("b.csv", "b.csv"), a_csv=TABLE), "cannot be read", at="b.csv"),
    "a link to the folder": Odd(_links(("latest", "."), a_csv=TABLE), "which holds it", at="latest"),
    "a link that dangles under a pattern": Odd(
        _links(("b.csv", "gone"), a_csv=TABLE), "is a link to gone", "*.csv", at="b.csv"
    ),
    # Names
    "a name that is not UTF-8": Odd(_strange, AB),
    "a file URL": Odd({"dä ta.csv": TABLE}, AB, "file://{}/d%C3%A4%20ta.csv"),
    "a file in an archive": Odd(_zipped, AB, "zip://in.csv::{}/a.zip"),
    "a long name": _one(TABLE, AB, f"{'x' * 210}.csv"),
    "a name with a line break": Odd({"a\nb.csv": TABLE}, AB),
    "a name with a comma": Odd({"sub/a,b.csv": TABLE}, AB, "sub"),
    "a name with a quote": Odd({"a'b\".csv": TABLE}, AB),
    **{
        f"a name with {char!r}": Odd({f"sub/a{char}b.csv": TABLE}, AB, "sub")
        for char in (*"-%#?*:[]{}~\\ ", "::", "%20", "😀", "e\u0301")
    },
    "a path twice": Odd({"a.csv": TABLE}, AB, "a.csv,{}/a.csv"),
    "a path of too long a name": Odd({"a.csv": TABLE}, "File name too long", "x" * 300),
    "a path that is not there": Odd({"a.csv": TABLE}, "no such file", "b.csv", at="b.csv"),
}


def _lay_out(odd: Odd, folder: Path) -> str:
    if callable(odd.files):
        odd.files(folder)
    else:
        for name, content in odd.files.items():
            (folder / name).parent.mkdir(parents=True, exist_ok=True)
            (folder / name).write_bytes(content)
    first, *more = odd.origin.split(",")
    here = first.format(folder) if "{}" in first else str(folder / first)
    return ",".join([here, *(one.format(folder) for one in more)])


def _or_words(read: Callable[[], Rows]) -> Rows | str:
    try:
        return read()
    except ElasticDLError as error:
        return error.message


def _by_cluster(origin: str, params: dict[str, Any]) -> Rows:
    """The records as a master lists them and a worker, which gets messages and opens the data itself, reads them."""
    plain = {"model_def": "m.f", "model_zoo": "/zoo", "minibatch_size": 1, "num_minibatches_per_task": 1}
    spec = JobSpec.from_mapping({**plain, "training_data": origin, "data_reader_params": params})

    async def list_all() -> list[bytes]:
        readers = await open_readers(spec, {TaskType.TRAINING: origin})
        return [
            pb.Shard(name=one.name, start=one.start, end=one.end).SerializeToString()
            async for piece in list_shards(readers[TaskType.TRAINING])
            for one in piece.shards
        ]

    messages = [pb.Shard.FromString(data) for data in asyncio.run(list_all())]
    reader = create_data_reader(origin, spec.records_per_task, spec.data_reader_params)
    shards = [Shard(one.name, one.start, one.end) for one in messages]
    return [row for shard in shards for row in reader.read_records(shard)]


def _read(origin: str, params: dict[str, Any]) -> Rows:
    """The records as one process reads them, task by task."""
    reader = create_data_reader(origin, 1, params)
    return [row for shard in reader.create_shards() for row in reader.read_records(shard)]


def _inspected(origin: str, params: dict[str, Any]) -> Rows:
    report = inspect_data(origin, reader_params=params, verify=True, records=1000)
    rows = [list(row.values()) for row in report.first_records]
    assert report.verified == len(rows)
    return rows


def _converted(origin: str, params: dict[str, Any], target: Path) -> Rows:
    convert(origin, target, "csv", reader_params=params)
    return _read(str(target), {"with_header": True})


def _validated(origin: str, odd: Odd) -> Rows:
    """The expected records, if so many could be read; else the first problem."""
    found = validate_data(origin, reader_params=odd.params)
    if found.checked + found.skipped < found.records:
        raise DataError(found.problems[0].message, fix="")
    assert found.checked == len(odd.rows), found
    assert isinstance(odd.rows, list), odd.rows
    return odd.rows


def _alike(odd: Odd, found: Rows | str) -> bool:
    """Whether it is what was expected; of a refusal the words, and the file that they name."""
    if isinstance(odd.rows, str):
        return isinstance(found, str) and odd.rows in found and odd.at in found
    return found == odd.rows


def test_odd_files_are_read_alike_or_refused_alike(tmp_path: Path) -> None:
    assert len(TABLES) >= 190
    wrong = {}
    for number, (name, odd) in enumerate(TABLES.items()):
        folder = tmp_path / str(number)
        folder.mkdir()
        origin, target = _lay_out(odd, folder), tmp_path / f"{number}.csv"
        ways: dict[str, Callable[[], Rows]] = {
            "local": partial(_read, origin, odd.params),
            "cluster": partial(_by_cluster, origin, odd.params),
            "inspect": partial(_inspected, origin, odd.params),
            "convert": partial(_converted, origin, odd.params, target),
            "validate": partial(_validated, origin, odd),
        }
        seen = {way: _or_words(read) for way, read in ways.items()}
        unlike = {way: found for way, found in seen.items() if not _alike(odd, found)}
        if unlike:
            wrong[name] = unlike
    assert not wrong, "\n".join(f"{name}: {found}" for name, found in wrong.items())

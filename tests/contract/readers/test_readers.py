"""One contract for the readers of all sources: exact ranges, shuffles, restarts, states that are compared."""

from __future__ import annotations

import asyncio
import contextlib
import io
import itertools
import os
import random
import sqlite3
import tarfile
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import duckdb
import pyarrow as pa
import pyarrow.feather
import pyarrow.parquet as pq
import pytest

from elasticdl.data import DataReader, Shard, create_data_reader, fingerprints, recordio, tfrecord
from elasticdl.data.errors import DataError
from elasticdl_core.shuffling import RecordOrder, joined_parts
from elasticdl_worker.trainers.shuffled import ShuffledRecords
from tests.integration.conftest import PASSWORD

pytestmark = pytest.mark.contract

PARTS = (70, 1, 129)
RECORDS = sum(PARTS)


def _table(numbers: range) -> pa.Table:
    return pa.table({"id": pa.array(numbers, pa.int64()), "text": [f"row {one}" for one in numbers]})


def _rows(path: Path, numbers: range) -> None:
    """A table whose rows were put in backwards."""
    path.unlink(missing_ok=True)
    with contextlib.closing(sqlite3.connect(path)) as connection, connection:
        connection.execute("CREATE TABLE t (id INTEGER PRIMARY KEY, text TEXT)")
        rows = [(one, f"row {one}") for one in reversed(numbers)]
        connection.executemany("INSERT INTO t VALUES (?, ?)", rows)


def _duckdb_rows(path: Path, numbers: range) -> None:
    """A table of which every other row was taken out again, so that row numbers are not those of the file."""
    path.unlink(missing_ok=True)
    with duckdb.connect(str(path)) as connection:
        connection.execute("CREATE TABLE t (id BIGINT, text VARCHAR)")
        connection.execute(f"INSERT INTO t SELECT i // 2, 'row ' || i // 2 FROM range({2 * len(numbers)}) r(i)")
        connection.execute("DELETE FROM t WHERE rowid % 2 = 1")


def _postgres_rows(folder: Path, numbers: range) -> None:
    """The same in the Postgres whose socket lies in a folder."""

    async def write() -> None:
        async with asyncio.timeout(60):
            connection = await asyncpg.connect(
                f"postgresql://elasticdl:{PASSWORD}@/postgres?host={folder}", timeout=60
            )
            await connection.execute("DROP TABLE IF EXISTS t; CREATE TABLE t (id bigint PRIMARY KEY, text text)")
            rows = [(one, f"row {one}") for one in reversed(numbers)]
            await connection.copy_records_to_table("t", records=rows)
            await connection.close()

    asyncio.run(write())


def _samples(path: Path, numbers: range) -> None:
    """Samples of a number and a text."""
    with tarfile.open(path, "w") as archive:
        for one in numbers:
            for ending, data in (("cls", b"%d" % one), ("txt", b"row %d" % one)):
                member = tarfile.TarInfo(f"{one:06d}.{ending}")
                member.size = len(data)
                archive.addfile(member, io.BytesIO(data))


def _pictures(folder: Path, numbers: range) -> None:
    """Images by the name alone, of two classes: what a reader gives are their bytes."""
    for one in numbers:
        path = folder / ("a" if one < RECORDS // 2 else "b") / f"{one:04d}.png"
        path.parent.mkdir(parents=True, exist_ok=True)
        path.write_bytes(b"%d" % one)


def _lines(path: Path, numbers: range) -> None:
    path.write_text("id,text\n" + "".join(f"{one},row {one}\n" for one in numbers))


def _bytes(writer: Callable[[Path], Any]) -> Callable[[Path, range], None]:
    def write(path: Path, numbers: range) -> None:
        with writer(path) as file:
            for one in numbers:
                file.write(b"%d" % one)

    return write


@dataclass(frozen=True)
class Source:
    """How to make files of a kind, and which number a record of it has."""

    write: Callable[[Path, range], None]
    number: Callable[[Any], int]
    url: Callable[[Path], str] = str


SOURCES = {
    "recordio": Source(_bytes(lambda path: recordio.Writer(path, 200)), int),
    "tfrecord": Source(_bytes(tfrecord.TFRecordWriter), int),
    "csv": Source(_lines, lambda record: int(record[0])),
    "parquet": Source(lambda path, rows: pq.write_table(_table(rows), path, 16), lambda record: int(record["id"])),
    "sqlite": Source(_rows, lambda record: int(record["id"])),
    "postgres": Source(_postgres_rows, lambda record: int(record["id"])),
    "duckdb": Source(_duckdb_rows, lambda record: int(record["id"])),
    "tar": Source(_samples, lambda record: int(record["cls"])),
    "images": Source(_pictures, lambda record: int(record["image"])),
    "arrow": Source(
        lambda path, rows: pyarrow.feather.write_feather(_table(rows), str(path), chunksize=16),
        lambda record: int(record["id"]),
    ),
}


@pytest.fixture(params=SOURCES)
def kind(request: pytest.FixtureRequest) -> str:
    return str(request.param)


@pytest.fixture
def made(kind: str, tmp_path: Path, request: pytest.FixtureRequest, monkeypatch: pytest.MonkeyPatch) -> str:
    """Data in three parts, whose records are numbered; in one where a source is a table."""
    if kind == "postgres":
        folder = request.getfixturevalue("postgres_server").folder
        monkeypatch.setenv("PGPASSWORD", PASSWORD)
        SOURCES[kind].write(folder, range(RECORDS))
        return f"postgresql://elasticdl@/postgres?host={folder}&table=t"
    if kind in ("sqlite", "duckdb"):
        SOURCES[kind].write(tmp_path / "all.db", range(RECORDS))
        return f"{kind}://{tmp_path}/all.db?table=t"
    if kind == "images":
        SOURCES[kind].write(tmp_path, range(RECORDS))
        return str(tmp_path)
    at = 0
    for part, count in enumerate(PARTS):
        SOURCES[kind].write(tmp_path / f"{part}.{kind}", range(at, at + count))
        at += count
    return str(tmp_path)


def open_reader(kind: str, origin: str, step: int | None = None) -> DataReader:
    return create_data_reader(origin, step, {"with_header": True} if kind == "csv" else {})


def parts_of(kind: str) -> tuple[int, ...]:
    """The records of each source."""
    return (RECORDS,) if kind in ("sqlite", "duckdb", "postgres", "images") else PARTS


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticdl.data.sqlite_reader.PAGE", 16)
    monkeypatch.setattr("elasticdl.data.duckdb_reader.PAGE", 32)
    monkeypatch.setattr("elasticdl.data.postgres_reader.PAGE", 16)
    monkeypatch.setattr("elasticdl.data.fingerprints._planned", {})


def numbers_of(kind: str, records: list[Any]) -> list[int]:
    return [SOURCES[kind].number(record) for record in records]


def test_shards_cover_each_record_once_and_are_the_same_again(kind: str, made: str) -> None:
    reader = open_reader(kind, made, 50)
    shards = list(reader.create_shards())
    assert shards == list(open_reader(kind, made, 50).create_shards())
    assert max(shard.records for shard in shards) <= 50
    found = [numbers_of(kind, list(reader.read_records(shard))) for shard in shards]
    assert list(itertools.chain.from_iterable(found)) == list(range(RECORDS))


def test_any_range_is_exact_in_every_way_of_reading(kind: str, made: str) -> None:
    reader = open_reader(kind, made)
    shards = list(reader.create_shards())
    firsts = dict(zip((shard.name for shard in shards), (0, *itertools.accumulate(parts_of(kind))), strict=False))
    draw = random.Random(3)
    ranges = []
    for _ in range(40):
        shard = draw.choice(shards)
        low, high = sorted((draw.randint(0, shard.end), draw.randint(0, shard.end)))
        ranges.append(Shard(shard.name, low, high))
    wanted = [list(range(firsts[one.name] + one.start, firsts[one.name] + one.end)) for one in ranges]
    for one, numbers in zip(ranges, wanted, strict=True):
        assert numbers_of(kind, list(reader.read_records(one))) == numbers
        batches = list(reader.read_batches(one, 7))
        assert [len(batch) for batch in batches[:-1]] == [7] * (len(batches) - 1)
        assert numbers_of(kind, list(itertools.chain.from_iterable(batches))) == numbers
        assert numbers_of(kind, reader.read_numbers(one.name, range(one.start, one.end, 3))) == numbers[::3]
    assert numbers_of(kind, reader.read_ranges(ranges)) == list(itertools.chain.from_iterable(wanted))


@pytest.mark.parametrize(
    "kind",
    [
        # It opens some thirty readers, whose pages of Postgres are a connection each.
        pytest.param(one, marks=[pytest.mark.slow, pytest.mark.timeout(600)] if one == "postgres" else [])
        for one in SOURCES
    ],
)
@pytest.mark.parametrize("block", [0, 5])
def test_shuffled_tasks_are_exact_also_from_their_middle_on(kind: str, made: str, block: int) -> None:
    reader = open_reader(kind, made)
    listed = list(reader.create_shards())
    parts = joined_parts(listed, 32)

    def order() -> RecordOrder:
        found = RecordOrder(7, block, grain=reader.grain)
        found.extend(parts, listed)
        return found

    for epoch in (0, 1):
        seen: list[int] = []
        for index, part in enumerate(parts):
            whole: list[int] = []
            for start, end in ((part.start, part.start + 11), (part.start + 11, part.end)):  # another worker goes on
                end = min(end, part.end)
                reading = order().reading(epoch, index, start, end)
                records = ShuffledRecords(open_reader(kind, made))
                pieces = records.read_batches(Shard(part.name, start, end), reading, 8) if start < end else ()
                whole += numbers_of(kind, list(itertools.chain.from_iterable(pieces)))
            again = order().reading(epoch, index, part.start, part.end)
            at_once = ShuffledRecords(reader).read_batches(part, again, 8)
            assert numbers_of(kind, list(itertools.chain.from_iterable(at_once))) == whole
            seen += whole
        assert sorted(seen) == list(range(RECORDS))
        assert seen != list(range(RECORDS))


def test_a_range_past_the_end_is_an_error(kind: str, made: str) -> None:
    reader = open_reader(kind, made)
    shard = next(iter(reader.create_shards()))
    for wrong in (Shard(shard.name, 0, shard.end + 1), Shard(shard.name, shard.end + 5, shard.end + 6)):
        with pytest.raises(DataError, match=f"has {parts_of(kind)[0]} "):
            list(reader.read_records(wrong))
        with pytest.raises(DataError, match=f"has {parts_of(kind)[0]} "):
            reader.read_numbers(shard.name, [wrong.end - 1])


def test_a_source_that_is_written_anew_is_an_error_with_both_states(
    kind: str, made: str, request: pytest.FixtureRequest
) -> None:
    reader = open_reader(kind, made)
    shard = next(iter(reader.create_shards()))
    before = reader.fingerprint(shard.name)
    assert before
    list(reader.read_records(Shard(shard.name, 0, 1)))
    anew = range(parts_of(kind)[0])
    if kind == "postgres":
        SOURCES[kind].write(request.getfixturevalue("postgres_server").folder, anew)
    else:
        path = Path(urlsplit(shard.name).path)
        SOURCES[kind].write(path, anew)
        os.utime(path, ns=(1, 1))
    fresh = open_reader(kind, made)
    fingerprints.expect({shard.name: before})
    for one in (reader, fresh):
        with pytest.raises(DataError, match="changed after its tasks were planned") as error:
            list(one.read_records(Shard(shard.name, 30, 40)))
        assert before in error.value.message
        assert "version 1" in error.value.message or kind in ("postgres", "images")


def test_records_may_be_changed_by_whoever_gets_them(kind: str, made: str) -> None:
    reader = open_reader(kind, made)
    shard = next(iter(reader.create_shards()))
    for _ in range(2):
        (record,) = reader.read_numbers(shard.name, [3])
        assert numbers_of(kind, [record]) == [3]
        if not isinstance(record, bytes):
            record["id" if isinstance(record, dict) else 0] = -1  # type: ignore[index]

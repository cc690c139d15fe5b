"""One contract for the readers of all sources: exact ranges, shuffles, restarts, states that are compared."""

from __future__ import annotations

import asyncio
import itertools
import os
import random
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import asyncpg
import pytest

from elasticdl.data import DataReader, Shard, create_data_reader, fingerprints
from elasticdl.data.errors import DataError
from elasticdl_core.shuffling import RecordOrder, joined_parts
from elasticdl_worker.trainers.shuffled import ShuffledRecords
from tests.fakes.sources import SOURCES as FILES
from tests.fakes.sources import Source, numbered
from tests.integration.conftest import PASSWORD

pytestmark = pytest.mark.contract

PARTS = (70, 1, 129)
RECORDS = sum(PARTS)


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


SOURCES = {
    **FILES,
    "postgres": Source(_postgres_rows, lambda record: int(record["id"])),
    "odps": Source(lambda _, __: None, lambda record: int(record["id"])),
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
    if kind == "odps":
        request.getfixturevalue("maxcompute").put("t", numbered(range(RECORDS)))
        return "odps://shop/t"
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
    return (RECORDS,) if kind in ("sqlite", "duckdb", "postgres", "odps", "images") else PARTS


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticdl.data.sqlite_reader.PAGE", 16)
    monkeypatch.setattr("elasticdl.data.duckdb_reader.PAGE", 32)
    monkeypatch.setattr("elasticdl.data.postgres_reader.PAGE", 16)
    monkeypatch.setattr("elasticdl.data.odps_reader.PAGE", 16)
    monkeypatch.setattr("elasticdl.data.fingerprints._planned", {})


def _plain(name: str) -> str:
    """The name of a source without its session."""
    return name.partition("session=")[0]


def numbers_of(kind: str, records: list[Any]) -> list[int]:
    return [SOURCES[kind].number(record) for record in records]


def test_shards_cover_each_record_once_and_are_the_same_again(kind: str, made: str) -> None:
    reader = open_reader(kind, made, 50)
    shards = list(reader.create_shards())
    again = list(open_reader(kind, made, 50).create_shards())
    # Another process that lists a table of MaxCompute has a session of its own.
    assert [(_plain(one.name), one.start, one.end) for one in shards] == [
        (_plain(one.name), one.start, one.end) for one in again
    ]
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
    elif kind == "odps":
        request.getfixturevalue("maxcompute").put("t", numbered(anew))
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
        assert "version 1" in error.value.message or kind in ("postgres", "odps", "images")


def test_records_may_be_changed_by_whoever_gets_them(kind: str, made: str) -> None:
    reader = open_reader(kind, made)
    shard = next(iter(reader.create_shards()))
    for _ in range(2):
        (record,) = reader.read_numbers(shard.name, [3])
        assert numbers_of(kind, [record]) == [3]
        if not isinstance(record, bytes):
            record["id" if isinstance(record, dict) else 0] = -1  # type: ignore[index]

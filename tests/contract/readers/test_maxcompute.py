"""Tables of MaxCompute by the real pyodps: partitions, types, sessions that end, spoilt answers, what is refused."""

from __future__ import annotations

import datetime
from typing import Any

import numpy as np
import pyarrow as pa
import pytest

from elasticdl.data import Shard, create_data_reader, fingerprints
from elasticdl.data.errors import DataError
from elasticdl.data.inspection import inspect_data
from elasticdl.prediction import PredictedTask
from elasticdl.python.data.odps_io import ODPSWriter
from elasticdl.python.data.reader.odps_reader import ODPSDataReader
from tests.fakes.maxcompute import KINDS, FakeMaxCompute
from tests.fakes.sources import numbered

pytestmark = pytest.mark.contract


@pytest.fixture(autouse=True)
def _small_pages(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticdl.data.odps_reader.PAGE", 16)
    monkeypatch.setattr("elasticdl.data.fingerprints._planned", {})


def ids(origin: str, **params: Any) -> list[int]:
    reader = create_data_reader(origin, None, params)
    return [int(record["id"]) for shard in reader.create_shards() for record in reader.read_records(shard)]


def test_columns_have_their_types_and_missing_values(maxcompute: FakeMaxCompute) -> None:
    moment = datetime.datetime(2026, 7, 1, 12, tzinfo=datetime.UTC)
    maxcompute.put("clicks", pa.table({
        "id": pa.array([1, None], pa.int64()), "n": pa.array([7, 8], pa.int32()),
        "x": pa.array([0.5, 1.5], pa.float32()), "y": [0.1, 0.2], "text": ["ä", ""], "raw": [b"\0\xff", b""],
        "seen": [True, False], "day": pa.array([datetime.date(1970, 1, 3)] * 2),
        "at": pa.array([moment] * 2, pa.timestamp("ms")), "tags": pa.array([[1, 2], []], pa.list_(pa.int64())),
    }))  # fmt: skip
    reader = create_data_reader("odps://shop/clicks", None, {"nulls": {"id": -1}})
    (shard,) = reader.create_shards()
    first, second = reader.read_records(shard)
    assert (first.pop("tags").tolist(), second.pop("tags").tolist()) == ([1, 2], [])
    assert first == {
        "id": 1, "n": 7, "x": 0.5, "y": 0.1, "text": "ä", "raw": b"\0\xff", "seen": True, "day": 2,
        "at": int(moment.timestamp() * 1000),
    }  # fmt: skip
    assert (second["id"], second["text"]) == (-1, "")
    assert reader.metadata.column_types["at"] == "timestamp in ms, UTC"
    with pytest.raises(DataError, match=r"row 1: column 'id' has no value \(null\)"):
        ids("odps://shop/clicks")
    assert ids("shop.clicks", kind="odps", columns=["id"], nulls="default") == [1, 0]
    assert ids("clicks", kind="odps", columns=["x", "id"], nulls="default") == [1, 0]
    asked = [one for one in maxcompute.asked if "rowrange=%280%2C2%29" in one]
    assert "columns=id%2Cx" in asked[-1] or "columns=x%2Cid" in asked[-1]
    report = inspect_data("odps://shop/clicks", reader_params={"columns": ["text"]}, verify=True)
    assert (report.kind, report.records, report.verified) == ("odps", 2, 2)


def test_partitions_are_sources_and_can_be_chosen(maxcompute: FakeMaxCompute) -> None:
    for day, numbers in (("2", range(20, 23)), ("1", range(20)), ("3", range(0))):
        maxcompute.put("days", numbered(numbers), f"dt={day}/hour=0")
    assert ids("odps://shop/days") == list(range(23))
    assert (
        ids("odps://shop/days?partition=dt=2") == ids("odps://shop/days", partition="dt='2',hour='0'") == [20, 21, 22]
    )
    reader = create_data_reader("odps://shop/days?partition=dt=1/hour=0", 8)
    shards = list(reader.create_shards())
    assert [one.start for one in shards] == [0, 8, 16]
    assert ids(shards[0].name) == list(range(20))  # the same rows again, by the same session


@pytest.mark.parametrize(
    ("asked", "params", "words"),
    [
        ("shop/none", {}, "cannot be read: NoSuchTable"),
        ("other/t", {}, "cannot be read: NoSuchProject"),
        ("shop/t?partition=dt=1", {}, "no partition column 'dt'(.|\n)*has no partitions"),
        ("shop/days?partition=day=1", {}, "no partition column 'day'(.|\n)*they are dt"),
        ("shop/days?partition=dt=9", {}, "no partition dt=9"),
        ("shop/days?partition=dt=1", {"partition": "dt=1"}, "two partitions"),
        ("shop/days?session=1", {}, "a session is of one partition"),
        ("shop/t/more", {}, "is no table of MaxCompute"),
        ("shop/", {}, "is no table of MaxCompute"),
        ("shop/t?table=x", {}, "is no table of MaxCompute"),
        ("shop/t?partition=", {}, "is no table of MaxCompute"),
        ("me:geheim@shop/t", {}, "holds a password"),
        ("shop/t?password=geheim", {}, "holds a password"),
        ("me@shop/t", {}, "is no table of MaxCompute"),
        ("shop/t", {"columns": ["nope"]}, "there is no column 'nope'"),
        ("shop/t", {"on_corrupt": "skip"}, "the odps reader has no parameter 'on_corrupt'"),
        ("shop/t", {"label": "id"}, "takes one number of each column"),
        ("shop/t", {"window": 2}, "window= does not go with odps"),
        ("shop/empty", {}, "the table has no row"),
    ],
)
def test_what_cannot_be_read_is_refused_by_name(
    asked: str, params: dict[str, Any], words: str, maxcompute: FakeMaxCompute
) -> None:
    maxcompute.put("t", numbered(range(3)))
    maxcompute.put("empty", numbered(range(0)))
    maxcompute.put("days", numbered(range(3)), "dt=1")
    with pytest.raises(DataError, match=words) as error:
        reader = create_data_reader(f"odps://{asked}", None, params)
        reader.default_feed()
        list(reader.create_shards())
    assert "geheim" not in str(error.value)


def test_who_asks_is_said_by_the_environment(maxcompute: FakeMaxCompute, monkeypatch: pytest.MonkeyPatch) -> None:
    maxcompute.put("t", numbered(range(3)))
    monkeypatch.setenv("MAXCOMPUTE_AK", "stranger")
    with pytest.raises(DataError, match="cannot be read: Unauthorized") as error:
        ids("odps://shop/t")
    assert "secret" not in str(error.value)
    monkeypatch.delenv("MAXCOMPUTE_AK")
    with pytest.raises(DataError, match="needs MAXCOMPUTE_AK in the environment"):
        ids("odps://shop/t")


def test_one_session_is_made_and_others_open_it(maxcompute: FakeMaxCompute) -> None:
    maxcompute.put("t", numbered(range(100)))
    maxcompute.mixes = True  # another session has another order
    lister = create_data_reader("odps://shop/t", 30)
    shards = list(lister.create_shards())
    assert list(lister.create_shards()) == shards
    fingerprints.expect({one.name: lister.fingerprint(one.name) for one in shards})
    seen: list[int] = []
    for shard in shards:  # a worker each
        worker = create_data_reader("odps://shop/t", 30)
        assert list(worker.create_shards()) == shards
        seen += [int(record["id"]) for record in worker.read_records(shard)]
    assert sorted(seen) == list(range(100))
    assert seen != sorted(seen)
    assert len([one for one in maxcompute.asked if one.startswith("POST")]) == 1


@pytest.mark.parametrize("opened", [True, False], ids=["under-way", "at-the-start"])
def test_a_session_that_is_over_is_made_anew_where_its_rows_are_alike(
    opened: bool, maxcompute: FakeMaxCompute
) -> None:
    maxcompute.put("t", numbered(range(100)))
    (shard,) = create_data_reader("odps://shop/t").create_shards()
    before = create_data_reader("odps://shop/t").fingerprint(shard.name)
    fingerprints.expect({shard.name: before})
    for mixes in (False, True):
        worker = create_data_reader("odps://shop/t")
        if opened and not mixes:
            list(worker.read_records(Shard(shard.name, 0, 1)))
        maxcompute.expire()
        maxcompute.mixes = mixes
        if not mixes:
            assert [int(one["id"]) for one in worker.read_records(shard)] == list(range(100))
            continue
        with pytest.raises(DataError, match="changed after its tasks were planned") as error:
            list(worker.read_records(shard))
        assert before in error.value.message


@pytest.mark.parametrize("kind", KINDS)
def test_nothing_is_lost_though_answers_are_spoilt(kind: str, maxcompute: FakeMaxCompute) -> None:
    maxcompute.put("t", numbered(range(300)))
    with maxcompute.spoiling(0.2, kind):
        assert ids("odps://shop/t") == list(range(300))
        assert maxcompute.faults


def test_what_is_refused_for_ever_ends(maxcompute: FakeMaxCompute) -> None:
    maxcompute.put("t", numbered(range(3)))
    reader = create_data_reader("odps://shop/t")
    (shard,) = reader.create_shards()
    for kind, words in (("busy", "FlowExceeded"), ("moved", ""), ("short", "gave 2 of 3 rows"), ("reset", "")):
        with maxcompute.spoiling(1.0, kind), pytest.raises(DataError, match=f"cannot be read: .*{words}"):
            list(reader.read_records(shard))


def test_older_modules_read_lists_of_text(maxcompute: FakeMaxCompute) -> None:
    maxcompute.put(
        "t", pa.table({"x": [0.5, 1.0, 2.5], "id": [1, 2, 3], "y": pa.array([0.1, 0.2, 0.3], pa.float32())})
    )
    asked = {"project": "other", "access_id": "reader", "access_key": "secret", "endpoint": maxcompute.url}
    reader = ODPSDataReader(
        table="shop.t", columns=["id", "x"], records_per_task=2, num_processes=2, label_col="id", **asked
    )
    shards = list(reader.create_shards())
    assert [(one.start, one.end) for one in shards] == [(0, 2), (2, 3)]
    assert [list(reader.read_records(one)) for one in shards] == [[["1", "0.5"], ["2", "1.0"]], [["3", "2.5"]]]
    assert reader.read_numbers(shards[0].name, [2]) == [["3", "2.5"]]
    assert (reader.metadata.column_names, reader.records_kind.width) == (["id", "x"], 2)
    assert reader.fingerprint(shards[0].name).startswith("3 rows, written at ")
    with pytest.raises(DataError, match="num_processes=0"):
        ODPSDataReader(table="t", num_processes=0, **asked)


@pytest.mark.parametrize("kind", ["refused", "busy", "moved", "reset", "lost"])
def test_rows_are_written_once_though_answers_are_spoilt(
    kind: str, maxcompute: FakeMaxCompute, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticdl.data.odps_service.BLOCK_ROWS", 3)
    empty = {"id": pa.array([], pa.int64()), "p": pa.array([], pa.float64()), "text": pa.array([], pa.string())}
    maxcompute.put("out", pa.table(empty), "worker=9")
    rows = [[number, number / 2, f"row {number}"] for number in range(20)]
    writer = ODPSWriter("shop", "reader", "secret", maxcompute.url, "out", options={"odps.options.read_timeout": 30})
    with maxcompute.spoiling(0.0, kind):
        writer.from_iterator([], 2)  # nothing, and the table is known
        maxcompute.share = 0.2
        writer.from_iterator(rows[:7], 0)
        writer.from_iterator([rows[7:10], rows[10:]], 1)
        assert maxcompute.faults
    written = maxcompute.tables["out"].data
    assert [list(row.values()) for row in written["worker=0"].rows.to_pylist()] == rows[:7]
    assert [list(row.values()) for row in written["worker=1"].rows.to_pylist()] == rows[7:]
    with maxcompute.spoiling(0.2, kind):
        for _ in range(2):  # a task that is done again
            for start, end in ((0, 7), (7, 20)):
                writer.from_task(rows[start:end], PredictedTask("/data/a.csv", start, end, np.arange(start, end)))
    of_tasks = [one.rows.to_pylist() for name, one in written.items() if "task-" in name]
    assert [list(row.values()) for rows in of_tasks for row in rows] == rows
    writer.from_iterator(rows[:1], 0)
    assert ids("odps://shop/out?partition=worker=0") == [*range(7), 0]

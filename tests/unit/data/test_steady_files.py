"""What a store fails to give, or gives short, is asked for again; nothing is lost, and nothing comes twice."""

from __future__ import annotations

import random
from typing import Any

import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasticdl.data import create_data_reader, recordio, tfrecord
from elasticdl.data.errors import DataError
from elasticdl.data.files import open_for_reading
from elasticdl.data.steady import TRIES
from tests.fakes.faulty_store import Faulty, FaultyStore

pytestmark = pytest.mark.unit


@pytest.fixture
def store(monkeypatch: pytest.MonkeyPatch) -> FaultyStore:
    monkeypatch.setattr(Faulty, "draw", random.Random(5))
    monkeypatch.setattr(Faulty, "faults", 0)
    monkeypatch.setattr(Faulty, "share", 0.0)
    FaultyStore.store.clear()
    return FaultyStore()


def _bytes(kind: str, tmp_path: Any) -> bytes:
    path, numbers = tmp_path / f"x.{kind}", range(300)
    if kind == "parquet":
        pq.write_table(pa.table({"n": numbers}), path, 20)
    elif kind == "csv":
        path.write_text("n,m\n" + "".join(f"{number},0\n" for number in numbers))
    else:
        writer = {"recordio": lambda: recordio.Writer(path, 200), "tfrecord": lambda: tfrecord.TFRecordWriter(path)}
        with writer[kind]() as file:
            for number in numbers:
                file.write(b"%d" % number)
    return bytes(path.read_bytes())


@pytest.mark.parametrize("kind", ["parquet", "csv", "recordio", "tfrecord"])
def test_no_record_is_lost_or_comes_twice_where_answers_fail_and_come_short(
    kind: str, store: FaultyStore, tmp_path: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for part in range(3):
        store.pipe(f"/d/{part}.{kind}", _bytes(kind, tmp_path))
    monkeypatch.setattr(Faulty, "share", 0.3)
    monkeypatch.setattr("elasticdl.data.steady.TRIES", 20)  # so that chance alone ends nothing
    reader = create_data_reader("faulty://d", None, {"with_header": True} if kind == "csv" else {})

    def number(record: Any) -> int:
        return int(record["n"] if isinstance(record, dict) else record[0] if isinstance(record, list) else record)

    for shard in reader.create_shards():
        assert [number(record) for record in reader.read_records(shard)] == list(range(300))
        assert [number(record) for record in reader.read_numbers(shard.name, [0, 150, 299])] == [0, 150, 299]
    assert Faulty.faults > 1


def test_what_fails_again_and_again_is_an_error_that_names_the_file(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.pipe("/d/a.csv", b"n,m\n1,2\n")
    monkeypatch.setattr(Faulty, "share", 1.0)
    monkeypatch.setattr(Faulty, "ways", ("short",))
    with open_for_reading("faulty://d/a.csv") as file, pytest.raises(DataError, match="the store gave 4 of 8 bytes"):
        file.read()
    assert Faulty.faults == TRIES
    with pytest.raises(DataError, match=r"faulty://d/a\.csv"):
        list(create_data_reader("faulty://d/a.csv", None, {"kind": "csv", "with_header": True}).create_shards())
    with pytest.raises(DataError, match="no such file"):
        open_for_reading("faulty://d/none.csv")


def test_a_file_that_is_another_when_it_is_opened_again_is_an_error(
    store: FaultyStore, monkeypatch: pytest.MonkeyPatch
) -> None:
    store.pipe("/d/a.csv", b"n,m\n1,2\n")
    with open_for_reading("faulty://d/a.csv") as file:
        assert file.read(4) == b"n,m\n"
        store.pipe("/d/a.csv", b"n,m\n9,9\n")
        monkeypatch.setattr(Faulty, "share", 1.0)
        monkeypatch.setattr(Faulty, "ways", ("raise",))
        with pytest.raises(DataError, match=r"was changed while it is being read: it was 8 bytes.*, it is 8 bytes"):
            file.read()

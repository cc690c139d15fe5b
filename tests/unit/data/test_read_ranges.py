"""Several ranges of records at once: the same records as one by one, and no more bytes than they have."""

from __future__ import annotations

import io
from pathlib import Path
from typing import BinaryIO

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.data import DataReader, Shard, create_data_reader, files, recordio, tfrecord
from elasticdl.data.errors import CorruptDataError, DataError
from elasticdl.data.recordio import Compressor, Index
from elasticdl.data.recordio_reader import RecordIODataReader

pytestmark = pytest.mark.unit

RECORDS = 300


@pytest.fixture(scope="module")
def readers(tmp_path_factory: pytest.TempPathFactory) -> dict[str, DataReader]:
    """One reader for each format, of two files."""
    folder = tmp_path_factory.mktemp("ranges")
    random = np.random.default_rng(0)
    made: dict[str, DataReader] = {}
    for kind in ("none", "snappy", "gzip", "equal", "tfrecord", "csv"):
        place = folder / kind
        place.mkdir()
        for part in range(2):
            sizes = [8] * RECORDS if kind == "equal" else random.integers(0, 60, RECORDS).tolist()
            records = [random.bytes(size) for size in sizes]
            if kind == "tfrecord":
                with tfrecord.TFRecordWriter(place / f"{part}.tfrecord") as written:
                    for record in records:
                        written.write(record)
            elif kind == "csv":
                rows = [f'{i},"{record.hex()}\n"' + "\n" * (i % 3) for i, record in enumerate(records)]
                (place / f"{part}.csv").write_text("number,text\n" + "\n".join(rows))
            else:
                compressor = "none" if kind == "equal" else kind
                with recordio.Writer(place / f"{part}.recordio", 1000, compressor) as writer:
                    for record in records:
                        writer.write(record)
        made[kind] = create_data_reader(str(place))
    return made


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["none", "snappy", "gzip", "equal", "tfrecord", "csv"]),
    wanted=st.lists(st.tuples(st.integers(0, 1), st.integers(0, RECORDS), st.integers(0, 90)), max_size=8),
)
def test_ranges_give_the_records_of_each_one_after_the_other(
    readers: dict[str, DataReader], kind: str, wanted: list[tuple[int, int, int]]
) -> None:
    reader = readers[kind]
    names = [shard.name for shard in reader.create_shards()]
    everything = {name: list(reader.read_records(Shard(name, 0, RECORDS))) for name in names}
    ranges = [Shard(names[file], low, min(low + size, RECORDS)) for file, low, size in wanted]
    expected = [record for one in ranges for record in everything[one.name][one.start : one.end]]
    assert reader.read_ranges(ranges) == expected


@settings(max_examples=60, deadline=None)
@given(
    kind=st.sampled_from(["none", "snappy", "gzip", "equal", "tfrecord", "csv"]),
    wanted=st.sets(st.integers(0, RECORDS - 1)),
)
def test_single_records_are_those_of_the_numbers(readers: dict[str, DataReader], kind: str, wanted: set[int]) -> None:
    reader = readers[kind]
    assert reader.reads_by_index
    name = next(iter(reader.create_shards())).name
    everything = list(reader.read_records(Shard(name, 0, RECORDS)))
    assert reader.read_numbers(name, sorted(wanted)) == [everything[number] for number in sorted(wanted)]


@pytest.mark.parametrize("kind", ["none", "snappy", "tfrecord", "csv"])
def test_damage_is_told_by_single_records_as_by_ranges(kind: str, tmp_path: Path) -> None:
    records = [f"record,{number:03d}".encode() for number in range(40)]
    path = tmp_path / f"a.{kind if kind in ('tfrecord', 'csv') else 'recordio'}"
    if kind == "csv":
        path.write_bytes(b"".join(record + b"\n" for record in records))
    else:
        made = tfrecord.TFRecordWriter(path) if kind == "tfrecord" else recordio.Writer(path, 60, kind)
        with made as writer:
            for record in records:
                writer.write(record)
    name, whole = str(path), path.read_bytes()
    at = (
        Index(name).chunks[Index(name).position_of(21)].offset + 30
        if kind == "snappy"
        else whole.index(b"record,021")
    )
    path.write_bytes(whole[:at] + b"\xff\xfe" + whole[at + 2 :])
    params = {"with_header": False} if kind == "csv" else {}
    with pytest.raises(CorruptDataError) as expected:
        create_data_reader(name, None, params).read_ranges([Shard(name, 21, 22)])
    with pytest.raises(CorruptDataError) as caught:
        create_data_reader(name, None, params).read_numbers(name, [3, 21])
    assert caught.value.message == expected.value.message
    reader = create_data_reader(name, None, {**params, "on_corrupt": "skip"})
    assert len(reader.read_numbers(name, [3, 21])) == 1
    assert reader.skipped_records >= 1
    with pytest.raises(DataError, match="the shard asks for records 40 to 41"):
        reader.read_numbers(name, [3, 40])


@pytest.mark.parametrize("long", [False, True])
def test_files_stay_open_while_their_records_are_read_one_by_one(
    long: bool, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[str] = []
    original = files.OpenFile

    def opening(file: BinaryIO, *, whole: bool) -> files.OpenFile:
        assert whole is not long
        opened.append(file.name)
        return original(file, whole=whole)

    monkeypatch.setattr(files, "OpenFile", opening)
    if long:
        monkeypatch.setattr("elasticdl.data.file_reader._IN_MEMORY_BYTES", 100)
    for part in range(3):
        (tmp_path / f"{part}.csv").write_text("".join(f"{part},{number}\n" for number in range(50)))
    reader = create_data_reader(str(tmp_path), None, {"with_header": False})
    names = [shard.name for shard in reader.create_shards()]
    for number in range(50):
        for name in names:
            assert reader.read_numbers(name, [number]) == [[name[-5], str(number)]]
    assert list(map(str, opened)) == names
    (tmp_path / "1.csv").write_text("1,1\n" * 50)
    with pytest.raises(DataError, match=r"was changed after it was first read: it was .*, it is "):
        reader.read_numbers(names[1], [3])
    monkeypatch.setattr("elasticdl.data.file_reader._OPEN_FILES", 2)
    assert not create_data_reader(str(tmp_path), None, {"with_header": False}).reads_by_index


def test_what_is_not_near_does_not_read_by_index(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    """Compressed chunks that are not all kept cost a chunk for a record; files of a store cost a question each."""
    with recordio.Writer(tmp_path / "a.recordio") as writer:
        for number in range(1000):
            writer.write(number.to_bytes(4, "little") * 30)
    path = str(tmp_path / "a.recordio")
    assert create_data_reader(path).reads_by_index
    # 124,000 bytes once they are decompressed, which is measured on a chunk; they take some 2,000 in the file.
    for kept, by_index in (120_000, False), (128_000, True), ((tmp_path / "a.recordio").stat().st_size // 2, False):
        monkeypatch.setattr("elasticdl.data.recordio_reader._PAYLOAD_BYTES", kept)
        assert create_data_reader(path).reads_by_index is by_index
    fsspec = pytest.importorskip("fsspec")
    with fsspec.open("memory://bucket/a.csv", "w") as file:
        file.write("1,2\n3,4\n5,6\n")
    remote = create_data_reader("memory://bucket/a.csv", None, {"with_header": False})
    assert not remote.reads_by_index
    assert remote.read_numbers("memory://bucket/a.csv", [0, 2]) == [["1", "2"], ["5", "6"]]


class CountingFile(io.BytesIO):
    """Counts the bytes that are read."""

    count = 0

    def read(self, size: int | None = -1) -> bytes:
        data = super().read(size)
        self.count += len(data)
        return data


def test_a_few_records_of_a_checked_uncompressed_chunk_cost_their_bytes_only(tmp_path: Path) -> None:
    path = tmp_path / "a.recordio"
    with recordio.Writer(path, compressor=Compressor.NONE, records_per_chunk=4096) as writer:
        for number in range(4096):
            writer.write(number.to_bytes(4, "little") * 3)
    reader, file = RecordIODataReader(str(path)), CountingFile(path.read_bytes())
    first = list(reader._scan(file, str(path), 10, 12))
    assert file.count == 4096 * 16
    again = list(reader._scan(file, str(path), 1000, 1032))
    assert file.count == 4096 * 16 + 32 * 16
    numbers = [int.from_bytes(record[:4], "little") for records in first + again for record in records]
    assert numbers == [10, 11, *range(1000, 1032)]


@pytest.mark.parametrize("records", [[b"abcd"] * 9, [b"a" * n for n in range(9)]])
def test_a_chunk_that_changes_after_it_was_checked_is_refused(
    records: list[bytes], tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(files, "stamp_of", lambda file, path: None)  # as of a store that does not tell
    path = tmp_path / "a.recordio"
    with recordio.Writer(path, compressor="none") as writer:
        for record in records:
            writer.write(record)
    reader = RecordIODataReader(str(path))
    assert list(reader.read_records(Shard(str(path), 0, 9))) == records
    path.write_bytes(bytes(path.stat().st_size))
    with pytest.raises(CorruptDataError, match="not what it was when it was checked"):
        reader.read_ranges([Shard(str(path), 4, 6)])


def test_a_record_of_equal_length_that_is_not_the_headers_is_damage(tmp_path: Path) -> None:
    """The sizes add up, but a length inside does not."""
    path = tmp_path / "a.recordio"
    with recordio.Writer(path, compressor="none") as writer:
        for _ in range(4):
            writer.write(b"abcd")
    chunk = Index(path).chunks[0]
    data = bytearray(path.read_bytes()[recordio.HEADER.size :])
    data[24] = 9
    with pytest.raises(CorruptDataError, match="record 3 of the chunk is 9 bytes long"):
        recordio.record_places(bytes(data), chunk, path=str(path))


def test_places_in_csv_strides_are_found_once(tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("".join(f"{number},{'x' * (number % 7)}\n" for number in range(1000)))
    reader = create_data_reader(str(path), reader_params={"with_header": False})
    file = CountingFile(path.read_bytes())
    once = list(reader._scan(file, str(path), 70, 75))  # type: ignore[attr-defined]
    before = file.count
    assert list(reader._scan(file, str(path), 70, 75)) == once  # type: ignore[attr-defined]
    assert file.count - before == sum(len(f"{number},{'x' * (number % 7)}\n") for number in range(70, 75))


def test_a_damaged_file_that_came_later_ends_nobody_who_reads_the_others(tmp_path: Path) -> None:
    """Reading by index is a wish for speed, and looks at files of which no task may be."""
    with tfrecord.TFRecordWriter(tmp_path / "0.tfrecord") as written:
        for number in range(10):
            written.write(bytes([number]))
    (shard,) = create_data_reader(str(tmp_path)).create_shards()
    whole = (tmp_path / "0.tfrecord").read_bytes()
    (tmp_path / "1.tfrecord").write_bytes(whole[: len(whole) // 2 - 3])
    late = create_data_reader(str(tmp_path))
    assert not late.reads_by_index
    assert list(late.read_records(shard)) == [bytes([number]) for number in range(10)]

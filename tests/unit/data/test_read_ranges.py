"""Several ranges of records at once: the same records as one by one, and no more bytes than they have."""

from __future__ import annotations

import io
from pathlib import Path

import numpy as np
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.data import DataReader, Shard, create_data_reader, files, recordio, tfrecord
from elasticdl.data.errors import CorruptDataError
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

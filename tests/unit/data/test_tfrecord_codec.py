from __future__ import annotations

import gzip
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.data import files, offset_index, tfrecord
from elasticdl.data.errors import CorruptDataError, DataError
from elasticdl.data.tfrecord_reader import TFRecordDataReader
from elasticdl_core.shard import Shard

pytestmark = pytest.mark.unit


def _write(path: Path, records: list[bytes]) -> Path:
    with tfrecord.TFRecordWriter(path) as writer:
        for record in records:
            writer.write(record)
    return path


def _read(path: Path, start: int = 0, end: int | None = None, **params: str) -> list[bytes]:
    reader = TFRecordDataReader(str(path), reader_params=params)
    end = reader.count_records(str(path)) if end is None else end
    return list(reader.read_records(Shard(str(path), start, end)))


def test_the_bytes_of_a_record_are_those_of_the_format() -> None:
    # Written by tf.io.TFRecordWriter once, and fixed here.
    assert tfrecord.encode_record(b"abc").hex() == "0300000000000000b099490e6162636e57f121"


def test_the_checksum_is_castagnolis() -> None:
    crc = (tfrecord.masked_crc32c(b"123456789") - 0xA282EAD8) & 0xFFFFFFFF
    assert ((crc << 15) | (crc >> 17)) & 0xFFFFFFFF == 0xE3069283  # RFC 3720's check value


@settings(max_examples=50, deadline=None)
@given(records=st.lists(st.binary(max_size=100), max_size=300), data=st.data())
def test_what_is_written_is_read_in_any_range(
    records: list[bytes], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = _write(tmp_path_factory.mktemp("t") / "f", records)
    start = data.draw(st.integers(0, len(records)))
    end = data.draw(st.integers(start, len(records)))
    assert _read(path) == records
    assert _read(path, start, end) == records[start:end]


def test_long_records_are_read_and_hopped_over(tmp_path: Path) -> None:
    records = [b"a" * 10, b"b" * 3_000_000, b"", b"c" * 1_048_564, b"d" * 70_000, b"e" * 2_500_001, b"f"]
    path = _write(tmp_path / "f", records)
    assert _read(path) == records
    assert _read(path, 3, 6) == records[3:6]


def test_a_file_cut_at_any_byte_is_refused_or_read_up_to_a_record(tmp_path: Path) -> None:
    records = [b"one", b"", b"three" * 5]
    whole = _write(tmp_path / "f", records).read_bytes()
    ends = {0: 0, 19: 1, 35: 2}
    for cut in range(len(whole)):
        path = tmp_path / "cut"
        path.write_bytes(whole[:cut])
        if cut in ends:
            assert _read(path) == records[: ends[cut]]
            continue
        with pytest.raises(CorruptDataError) as caught:
            _read(path)
        assert caught.value.offset == max(end for end in ends if end < cut)
        assert (caught.value.path, caught.value.record) == (str(path), ends[caught.value.offset])


def test_a_changed_bit_anywhere_is_found(tmp_path: Path) -> None:
    whole = _write(tmp_path / "f", [b"one", b"", b"three" * 5]).read_bytes()
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x10
        path = tmp_path / "bad"
        path.write_bytes(damaged)
        with pytest.raises(CorruptDataError):
            _read(path)


def test_a_damaged_record_is_passed_over_when_asked_for_and_counted(tmp_path: Path) -> None:
    whole = bytearray(_write(tmp_path / "f", [b"one", b"two", b"six"]).read_bytes())
    whole[19 + 12] ^= 1
    (tmp_path / "f").write_bytes(whole + b"cut off")
    reader = TFRecordDataReader(str(tmp_path / "f"), reader_params={"on_corrupt": "skip"})
    (shard,) = reader.create_shards()
    assert list(reader.read_records(shard)) == [b"one", b"six"]
    assert reader.skipped_records == 1
    assert "inside a record's length" in reader.damaged_files[str(tmp_path / "f")]


def test_gzip_is_refused_with_the_way_out(tmp_path: Path) -> None:
    path = tmp_path / "f.tfrecord"
    path.write_bytes(gzip.compress(tfrecord.encode_record(b"abc") * 10))
    with pytest.raises(DataError, match="compressed with gzip") as caught:
        _read(path)
    assert "zcat" in caught.value.fix


def test_tensorflow_and_we_read_each_other(tmp_path: Path) -> None:
    import tensorflow as tf

    records = [b"", b"abc", bytes(range(256)) * 40, b"x" * 70_000]
    ours, theirs = tmp_path / "ours", tmp_path / "theirs"
    _write(ours, records)
    with tf.io.TFRecordWriter(str(theirs)) as writer:
        for record in records:
            writer.write(record)
    assert ours.read_bytes() == theirs.read_bytes()
    assert [r.numpy() for r in tf.data.TFRecordDataset(str(ours))] == records
    assert _read(theirs) == records


def test_the_index_is_kept_and_dropped_when_the_file_changes(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_index, "_WORTH_KEEPING_BYTES", 0)
    folder = tmp_path / "indexes"
    path = _write(tmp_path / "f", [b"%d" % n for n in range(500)])

    def count() -> int:
        return TFRecordDataReader(str(path), reader_params={"index_cache": str(folder)}).count_records(str(path))

    built: list[str] = []
    original = tfrecord.build_index
    monkeypatch.setattr(tfrecord, "build_index", lambda *a, **k: built.append(a[0]) or original(*a, **k))
    assert (count(), count(), len(built)) == (500, 500, 1)
    _write(path, [b"%d" % n for n in range(700)])
    assert (count(), count(), len(built)) == (700, 700, 2)
    (kept,) = folder.iterdir()
    data = bytearray(kept.read_bytes())
    data[len(data) // 2] ^= 1
    kept.write_bytes(data)
    assert (count(), len(built)) == (700, 3)
    kept.write_bytes(b"")
    assert (count(), len(built)) == (700, 4)


def test_a_shard_past_the_end_is_refused(tmp_path: Path) -> None:
    path = _write(tmp_path / "f", [b"a"] * 3)
    with pytest.raises(DataError, match="has 3 records, the shard asks for records 2 to 4"):
        _read(path, 2, 4)


def test_a_file_that_shrinks_after_indexing_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(files, "stamp_of", lambda file, path: None)  # as of a store that does not tell
    path = _write(tmp_path / "f", [b"abc"] * 300)
    reader = TFRecordDataReader(str(path))
    (shard,) = reader.create_shards()
    path.write_bytes(path.read_bytes()[: 19 * 200 + 5])
    with pytest.raises(CorruptDataError, match="shorter after it was indexed") as caught:
        list(reader.read_records(shard))
    assert caught.value.record == 200


def test_writing_to_an_open_file_leaves_it_open() -> None:
    buffer = io.BytesIO()
    with tfrecord.TFRecordWriter(buffer) as writer:
        writer.write(b"abc")
    assert buffer.getvalue() == tfrecord.encode_record(b"abc")

from __future__ import annotations

import gzip
import io
import struct
import zlib
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.data import recordio
from elasticdl.data.errors import CorruptDataError, DataError
from elasticdl.data.recordio import Compressor, Index, Scanner, Writer
from elasticdl.data.recordio_reader import RecordIODataReader
from elasticdl_core.shard import Shard

pytestmark = pytest.mark.unit

RECORDS = st.lists(st.binary(max_size=300), max_size=40)
ALL = pytest.mark.parametrize("compressor", list(Compressor))


def _encode(records: list[bytes], compressor: Compressor, chunk_bytes: int = 1 << 20) -> bytes:
    buffer = io.BytesIO()
    with Writer(buffer, chunk_bytes, compressor) as writer:
        for record in records:
            writer.write(record)
    return buffer.getvalue()


def _read(path: Path, start: int = 0, count: int = -1) -> list[bytes]:
    with Scanner(path, start, count) as scanner:
        return list(scanner)


def test_the_bytes_of_an_uncompressed_chunk_are_those_of_the_format() -> None:
    payload = b"\x05\0\0\0Hello" + b"\0\0\0\0" + b"\x06\0\0\0World!"
    expected = bytes.fromhex("04030201") + struct.pack("<IIII", zlib.crc32(payload), 0, len(payload), 3) + payload
    assert _encode([b"Hello", b"", b"World!"], Compressor.NONE) == expected
    assert struct.unpack_from("<I", expected, 4) == (0x0ACB9C4D,)  # computed bit by bit, without zlib


def test_the_bytes_of_a_snappy_chunk_use_the_framing_format() -> None:
    data = _encode([b"a" * 100], Compressor.SNAPPY)
    assert data[8:12] == b"\1\0\0\0"
    assert data[20:30] == b"\xff\x06\x00\x00sNaPpY"


def test_the_payload_of_a_gzip_chunk_is_plain_gzip_without_a_time() -> None:
    data = _encode([b"abc"], Compressor.GZIP)
    assert gzip.decompress(data[20:]) == b"\3\0\0\0abc"
    assert data[24:28] == b"\0\0\0\0"  # the time, so that equal records give equal files


def test_gzip_of_several_members_is_read(tmp_path: Path) -> None:
    payload = gzip.compress(b"\3\0\0\0a") + gzip.compress(b"bc")
    header = recordio.HEADER.pack(recordio.MAGIC, zlib.crc32(payload), 2, len(payload), 1)
    (tmp_path / "f").write_bytes(header + payload)
    assert _read(tmp_path / "f") == [b"abc"]


@ALL
@settings(max_examples=40, deadline=None)
@given(records=RECORDS, chunk_bytes=st.integers(1, 2000))
def test_what_is_written_is_read(
    compressor: Compressor, records: list[bytes], chunk_bytes: int, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("r") / "f.recordio"
    path.write_bytes(_encode(records, compressor, chunk_bytes))
    index = Index(path)
    assert index.num_records() == len(records)
    assert _read(path) == records


@settings(max_examples=60, deadline=None)
@given(records=st.lists(st.binary(max_size=20), min_size=1, max_size=30), data=st.data())
def test_a_range_is_a_slice(
    records: list[bytes], data: st.DataObject, tmp_path_factory: pytest.TempPathFactory
) -> None:
    path = tmp_path_factory.mktemp("r") / "f.recordio"
    path.write_bytes(_encode(records, Compressor.SNAPPY, data.draw(st.integers(1, 80))))
    start = data.draw(st.integers(0, len(records)))
    end = data.draw(st.integers(start, len(records)))
    assert _read(path, start, end - start) == records[start:end]
    reader = RecordIODataReader(str(path))
    batches = list(reader.read_batches(Shard(str(path), start, end), 4))
    assert [record for batch in batches for record in batch] == records[start:end]
    assert all(len(batch) == 4 for batch in batches[:-1])


@ALL
def test_a_file_cut_at_any_byte_is_refused_or_read_up_to_a_chunk(compressor: Compressor, tmp_path: Path) -> None:
    records = [b"one", b"", b"three" * 10, b"four", b"five" * 3, b"6"]
    whole = _encode(records, compressor, 30)
    path = tmp_path / "f.recordio"
    path.write_bytes(whole)
    ends = {chunk.offset: chunk.first for chunk in Index(path).chunks}
    for cut in range(len(whole)):
        path.write_bytes(whole[:cut])
        if cut in ends:
            assert _read(path) == records[: ends[cut]]
            continue
        with pytest.raises(CorruptDataError) as caught:
            _read(path)
        chunk = max(number for number, offset in enumerate(sorted(ends)) if offset < cut)
        assert (caught.value.chunk, caught.value.offset) == (chunk, sorted(ends)[chunk])
        assert str(path) in str(caught.value)


@ALL
def test_a_changed_byte_anywhere_is_found(compressor: Compressor, tmp_path: Path) -> None:
    """Every byte but those of the record count of a header is covered; a wrong count does not fit the payload."""
    records = [b"one", b"two" * 20, b"three"]
    whole = _encode(records, compressor, 25)
    path = tmp_path / "f.recordio"
    for position in range(len(whole)):
        damaged = bytearray(whole)
        damaged[position] ^= 0x41
        path.write_bytes(damaged)
        with pytest.raises(CorruptDataError):
            _read(path)


def test_the_index_reads_headers_only(tmp_path: Path) -> None:
    path = tmp_path / "f.recordio"
    whole = bytearray(_encode([b"x" * 50] * 10, Compressor.NONE, 110))
    for chunk in [*range(5)]:
        start = chunk * (20 + 108) + 20
        whole[start : start + 108] = bytes(108)
    path.write_bytes(whole)
    index = Index(path)
    assert (len(index.chunks), index.num_records()) == (5, 10)
    with pytest.raises(CorruptDataError, match=r"byte 128, chunk 1: the checksum"):
        _read(path, 2, 1)


def test_damage_is_passed_over_when_asked_for_and_counted(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "f.recordio"
    whole = bytearray(_encode([bytes([n]) * 50 for n in range(10)], Compressor.SNAPPY, 110))
    second = Index(_file(path, bytes(whole))).chunks[1]
    whole[second.offset + 25] ^= 1
    path.write_bytes(whole + b"\4\3\2\1 and then nothing")
    reader = RecordIODataReader(str(path), reader_params={"on_corrupt": "skip"})
    (shard,) = reader.create_shards()
    assert shard.end == 10
    assert [record[0] for record in reader.read_records(shard)] == [0, 1, 4, 5, 6, 7, 8, 9]
    assert reader.skipped_records == 2
    assert [r[0] for r in reader.read_records(Shard(str(path), 3, 5))] == [4]
    assert reader.skipped_records == 3
    assert list(reader.damaged_files) == [str(path)]
    assert "byte 272, chunk 5" in caplog.text
    with pytest.raises(CorruptDataError, match="there is no compressor"):
        next(RecordIODataReader(str(path)).create_shards())


def _file(path: Path, data: bytes) -> Path:
    path.write_bytes(data)
    return path


@pytest.mark.parametrize(
    ("header", "message"),
    [
        (b"\1\2\3\4" + bytes(16), "magic number is 0x04030201"),
        (recordio.HEADER.pack(recordio.MAGIC, 0, 7, 0, 0), "no compressor 7"),
        (recordio.HEADER.pack(recordio.MAGIC, 0, 0, 99, 1), "ends inside the chunk \\(0 of 99"),
        (recordio.HEADER.pack(recordio.MAGIC, 0, 0, 0, 1), "ends after 0 of 1 records"),
    ],
)
def test_a_bad_header_is_refused_by_place(header: bytes, message: str, tmp_path: Path) -> None:
    with pytest.raises(CorruptDataError, match=message) as caught:
        _read(_file(tmp_path / "f", header))
    assert (caught.value.offset, caught.value.chunk) == (0, 0)
    assert "on_corrupt=skip" in caught.value.fix


def test_records_that_do_not_fill_the_payload_are_refused(tmp_path: Path) -> None:
    payload = b"\1\0\0\0a" + b"extra"
    header = recordio.HEADER.pack(recordio.MAGIC, zlib.crc32(payload), 0, len(payload), 1)
    with pytest.raises(CorruptDataError, match="5 bytes follow the last record"):
        _read(_file(tmp_path / "f", header + payload))


def test_an_empty_file_has_no_records(tmp_path: Path) -> None:
    path = _file(tmp_path / "f.recordio", b"")
    assert Index(path).num_records() == 0
    assert _read(path) == []


def test_the_original_calls_work(tmp_path: Path) -> None:
    import recordio as original

    path = str(tmp_path / "f.recordio")
    writer = original.Writer(path)
    for record in (b"a", b"", b"c"):
        writer.write(record)
    writer.close()
    index = original.Index(path)
    assert index.num_records() == 3
    scanner = original.Scanner(path, 1, 2, index)
    assert [scanner.record(), scanner.record(), scanner.record()] == [b"", b"c", None]
    scanner.close()
    index.close()


def test_a_writer_refuses_text_and_writing_after_close(tmp_path: Path) -> None:
    writer = Writer(tmp_path / "f")
    with pytest.raises(DataError, match="is bytes, not str"):
        writer.write("text")  # type: ignore[arg-type]
    writer.close()
    with pytest.raises(DataError, match="closed"):
        writer.write(b"late")


def test_a_chunk_has_at_most_the_records_asked_for(tmp_path: Path) -> None:
    with Writer(tmp_path / "f", records_per_chunk=4) as writer:
        for n in range(10):
            writer.write(bytes([n]))
    assert [chunk.records for chunk in Index(tmp_path / "f").chunks] == [4, 4, 2]


def test_an_unknown_compressor_is_refused(tmp_path: Path) -> None:
    with pytest.raises(DataError, match="no RecordIO compressor 'lz4'"):
        Writer(tmp_path / "f", compressor="lz4")

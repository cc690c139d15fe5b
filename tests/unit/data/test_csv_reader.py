from __future__ import annotations

import csv
import io
from pathlib import Path

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from elasticdl.data import csv_index, offset_index
from elasticdl.data.csv_index import Dialect
from elasticdl.data.csv_reader import CSVDataReader, infer_type
from elasticdl.data.errors import CorruptDataError, ReaderParamsError
from elasticdl.data.reader import RecordSpec
from elasticdl_core.shard import Shard

pytestmark = pytest.mark.unit

CELL = st.text(alphabet='ab,;"\n\r é\u4e2d1', max_size=8)


def _text(rows: list[list[str]], terminator: str = "\n", sep: str = ",") -> str:
    """CSV text; all is quoted where a lone carriage return is, which the csv module writes bare."""
    buffer = io.StringIO(newline="")
    lone = any("\r" in cell for row in rows for cell in row)
    quoting = csv.QUOTE_ALL if lone else csv.QUOTE_MINIMAL
    csv.writer(buffer, lineterminator=terminator, delimiter=sep, quoting=quoting).writerows(rows)
    return buffer.getvalue()


def _file(path: Path, text: str, encoding: str = "utf-8") -> str:
    path.write_bytes(text.encode(encoding))
    return str(path)


def _all(reader: CSVDataReader) -> list[list[str]]:
    return [record for shard in reader.create_shards() for record in reader.read_records(shard)]


@settings(max_examples=150, deadline=None)
@given(
    rows=st.integers(2, 3).flatmap(
        lambda w: st.lists(st.lists(CELL, min_size=w, max_size=w), min_size=1, max_size=150)
    ),
    terminator=st.sampled_from(["\n", "\r\n"]),
    block_bytes=st.integers(4, 200),
    data=st.data(),
)
def test_any_text_is_found_and_read_as_the_csv_module_reads_it(
    rows: list[list[str]],
    terminator: str,
    block_bytes: int,
    data: st.DataObject,
    tmp_path_factory: pytest.TempPathFactory,
) -> None:
    text = _text(rows, terminator)
    if data.draw(st.booleans()):
        text = text.removesuffix(terminator)
    path = _file(tmp_path_factory.mktemp("c") / "f.csv", text)
    index = csv_index.build_index(path, Dialect(), with_header=False, block_bytes=block_bytes)
    assert index.records == len(rows)
    reader = CSVDataReader(path, reader_params={"with_header": False})
    start = data.draw(st.integers(0, len(rows)))
    end = data.draw(st.integers(start, len(rows)))
    assert list(reader.read_records(Shard(path, start, end))) == rows[start:end]


@pytest.mark.parametrize("ending", ["\r\n\r\n\n", "\r\n", ""])
def test_a_block_border_may_fall_anywhere(ending: str, tmp_path: Path) -> None:
    rows = [["a", "x\ny"], ["", '"'], ["é", "1,2"], ["z", ""]]
    text = "\n\r\n" + _text(rows, "\r\n").removesuffix("\r\n") + ending
    path = _file(tmp_path / "f.csv", text)
    for block_bytes in range(4, len(text.encode()) + 2):
        index = csv_index.build_index(path, Dialect(), with_header=False, block_bytes=block_bytes)
        assert (index.records, index.offsets.tolist()) == (4, [3, 12, 19, 29])


def test_of_long_files_offsets_are_kept_of_every_64th_record(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    path = _file(tmp_path / "f.csv", "name,n\n" + "".join(f"row,{n:04d}\n" for n in range(200)))
    each = csv_index.build_index(path, Dialect(), with_header=True, block_bytes=7)
    assert each.offsets.tolist() == [7 + 9 * n for n in range(200)]
    monkeypatch.setattr("elasticdl.data.offset_index.EACH_UP_TO", 100)
    for block_bytes in (7, 100, 1 << 20):
        index = csv_index.build_index(path, Dialect(), with_header=True, block_bytes=block_bytes)
        assert index.records == 200
        assert index.offsets.tolist() == [7 + 9 * n for n in (0, 64, 128, 192)]
        assert index.stride == 64
    reader = CSVDataReader(path)
    assert not reader.reads_by_index
    assert reader.read_numbers(path, [3, 70, 71, 199]) == [["row", f"{n:04d}"] for n in (3, 70, 71, 199)]


def test_long_files_are_read_in_pieces(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr("elasticdl.data.line_reader._PIECE_BYTES", 1000)
    path = _file(tmp_path / "f.csv", "a,b\n" + "".join(f"{n},x{n}\n" for n in range(1000)))
    reader = CSVDataReader(path, records_per_task=300)
    assert [(s.start, s.end) for s in reader.create_shards()] == [(0, 300), (300, 600), (600, 900), (900, 1000)]
    assert _all(reader) == [[str(n), f"x{n}"] for n in range(1000)]
    assert list(reader.read_records(Shard(path, 70, 75))) == [[str(n), f"x{n}"] for n in range(70, 75)]


@pytest.mark.parametrize(
    ("text", "params", "header"),
    [
        ("a,b\n1,2\n", {}, True),
        ("1,2\n3,4\n", {}, False),
        ("a,b\nc,d\n", {"with_header": False}, False),
        ("a,b\nc,d\n", {"with_header": True}, True),
        ("a,b\nc,1\n", {}, True),
        ("a,b\nc,d\n", {"label": "b"}, True),
        ("1,b\nc,b\n", {}, False),
        ("a,b\nc,d\n", {"columns": ["b"]}, True),
        ("1,2\n3,4\n", {"column_names": ["x", "y"]}, False),
    ],
)
def test_a_header_is_recognised(text: str, params: dict[str, object], header: bool, tmp_path: Path) -> None:
    reader = CSVDataReader(_file(tmp_path / "f.csv", text), reader_params=params)
    assert reader.with_header is header
    assert len(_all(reader)) == 2 - header


def test_columns_are_selected_in_the_order_asked_for(tmp_path: Path) -> None:
    path = _file(tmp_path / "f.csv", "a;b;c\n1;x;2.5\n2;y;3\n")
    reader = CSVDataReader(path, reader_params={"sep": ";", "columns": ["c", "a"]})
    assert _all(reader) == [["2.5", "1"], ["3", "2"]]
    assert reader.metadata.column_names == ["c", "a"]
    assert reader.metadata.column_types == {"c": "float", "a": "int64"}
    assert reader.records_kind == RecordSpec("columns", width=2)


def test_tabs_separate_tsv_files_and_a_byte_order_mark_is_left_out(tmp_path: Path) -> None:
    path = _file(tmp_path / "f.tsv", "\ufeffa\tb\n1\t2\n")
    reader = CSVDataReader(path)
    assert reader.metadata.column_names == ["a", "b"]
    assert _all(reader) == [["1", "2"]]


def test_other_encodings_are_read(tmp_path: Path) -> None:
    path = _file(tmp_path / "f.csv", "a,b\n1,é\n", "latin-1")
    assert _all(CSVDataReader(path, reader_params={"encoding": "latin-1"})) == [["1", "é"]]
    with pytest.raises(CorruptDataError, match=r"byte 6, record .*: byte 0xe9 is not utf-8") as caught:
        _all(CSVDataReader(path))
    assert "encoding" in caught.value.fix


def test_a_row_of_wrong_width_is_refused_by_place_or_passed_over(tmp_path: Path) -> None:
    rows = [f"{n},x\n" for n in range(100)]
    rows[70] = "70\n"
    path = _file(tmp_path / "f.csv", "".join(rows))
    with pytest.raises(CorruptDataError, match="record 70: has 1 columns, the file has 2") as caught:
        _all(CSVDataReader(path))
    assert caught.value.offset == 10 * 4 + 60 * 5
    reader = CSVDataReader(path, reader_params={"on_corrupt": "skip"})
    assert len(_all(reader)) == 99
    assert reader.skipped_records == 1


def test_undecodable_records_are_passed_over_when_asked_for(tmp_path: Path) -> None:
    (tmp_path / "f.csv").write_bytes(b"a,1.5\nb\xff,2.5\nc,3.5\n")
    reader = CSVDataReader(str(tmp_path / "f.csv"), reader_params={"on_corrupt": "skip"})
    assert _all(reader) == [["a", "1.5"], ["c", "3.5"]]
    assert reader.skipped_records == 1


def test_a_stray_quote_is_refused_unless_quotes_are_plain(tmp_path: Path) -> None:
    path = _file(tmp_path / "f.csv", 'size,n\n5" pipe,1\n6" pipe,2\n')
    with pytest.raises(CorruptDataError, match="byte 8: a quote inside a field") as caught:
        _all(CSVDataReader(path))
    assert "quoting=false" in caught.value.fix
    assert _all(CSVDataReader(path, reader_params={"quoting": False})) == [['5" pipe', "1"], ['6" pipe', "2"]]


def test_spaces_before_quotes_are_skipped_when_asked_for(tmp_path: Path) -> None:
    path = _file(tmp_path / "f.csv", 'n,city\n1, "Paris, FR"\n')
    assert _all(CSVDataReader(path, reader_params={"skip_spaces": True})) == [["1", "Paris, FR"]]


def test_an_open_quote_at_the_end_is_refused_where_it_opened(tmp_path: Path) -> None:
    path = _file(tmp_path / "f.csv", 'a,1\n"b,2\nc,3\n')
    with pytest.raises(CorruptDataError, match="byte 4: a quote opens here"):
        _all(CSVDataReader(path))


def test_a_number_far_down_tells_a_header_too(tmp_path: Path) -> None:
    path = _file(tmp_path / "f.csv", "name,n\n" + "a,\n" * 50 + "a,7\n")
    assert len(_all(CSVDataReader(path))) == 51


def test_text_alone_does_not_tell_whether_there_is_a_header(tmp_path: Path) -> None:
    """It was read as a record: models were trained on the names of columns."""
    path = _file(tmp_path / "f.csv", "name,town\nann,rome\nbob,oslo\n")
    with pytest.raises(ReaderParamsError) as caught:
        CSVDataReader(path)
    assert "['name', 'town']" in caught.value.message
    assert "with_header=true or with_header=false" in caught.value.fix


@pytest.mark.parametrize("text", ["a,b\rc,d\r1,2\n3,4\n", "a,b\r1,2\r3,4\r", 'a,b\r\n"x\r",2\r\n3,4\r5,6\r\n'])
@pytest.mark.parametrize("header", [True, False])
def test_lone_carriage_returns_are_refused(text: str, header: bool, tmp_path: Path) -> None:
    """Also in a folder, where such a file had no record and was left out."""
    _file(tmp_path / "a.csv", "a,b\n1,2\n")
    path = _file(tmp_path / "b.csv", text)
    for block_bytes in (4, 5, 6, 100):
        with pytest.raises(CorruptDataError) as found:
            csv_index.build_index(path, Dialect(), with_header=header, block_bytes=block_bytes)
        assert found.value.offset == text.index("\r", text.index("3,4") if '"' in text else 0)
    with pytest.raises(CorruptDataError) as caught:
        _all(CSVDataReader(str(tmp_path), reader_params={"with_header": False}))
    assert "\\r alone" in caught.value.fix


@pytest.mark.parametrize(
    ("params", "message"),
    [
        ({"sep": ""}, "not one ASCII character"),
        ({"sep": "ab"}, "not one ASCII character"),
        ({"encoding": "utf-16"}, "several bytes"),
        ({"encoding": "nonesuch"}, "no encoding"),
        ({"columns": ["zip"]}, "no column 'zip'"),
        ({"columns": ["a", "a"]}, "twice"),
        ({"columns": 3}, "columns=3"),
        ({"column_names": ["one"]}, "has 2 columns, column_names has 1"),
        ({"label": "z"}, "label 'z'"),
        ({"with_header": "yes"}, "with_header='yes'"),
        ({"on_corrupt": "ignore"}, "on_corrupt='ignore' is not possible"),
        ({"seperator": ";"}, "no parameter 'seperator'"),
    ],
)
def test_impossible_parameters_are_refused(params: dict[str, object], message: str, tmp_path: Path) -> None:
    path = _file(tmp_path / "f.csv", "a,b\n1,2\n")
    with pytest.raises(ReaderParamsError, match=message):
        CSVDataReader(path, reader_params=params)


def test_the_index_is_kept_by_dialect(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(offset_index, "_WORTH_KEEPING_BYTES", 0)
    path = _file(tmp_path / "f.csv", 'a,b\n"x\ny",2\n')
    for _ in range(2):
        assert CSVDataReader(path, reader_params={"with_header": True}).count_records(path) == 1
        assert CSVDataReader(path, reader_params={"with_header": False}).count_records(path) == 2
        plain = {"with_header": True, "quoting": False}
        assert CSVDataReader(path, reader_params=plain).count_records(path) == 2


def test_the_default_feed_gives_numbers(tmp_path: Path) -> None:
    import tensorflow as tf

    path = _file(tmp_path / "f.csv", "a,kind,b\n1,2,0.5\n3,0,1.5\n")
    reader = CSVDataReader(path, reader_params={"label": "kind"})
    assert CSVDataReader(path).default_feed() is None
    feed = reader.default_feed()
    assert feed is not None
    rows = tf.data.Dataset.from_tensor_slices(_all(reader))
    found = [(f.numpy().tolist(), int(y)) for f, y in feed(rows, "evaluation", reader.metadata)]
    assert found == [([1.0, 0.5], 2), ([3.0, 1.5], 0)]
    assert [f.numpy().tolist() for f in feed(rows, "prediction", reader.metadata)] == [[1.0, 0.5], [3.0, 1.5]]


@pytest.mark.parametrize(
    ("values", "kind"),
    [
        (["1", "-2"], "int64"),
        (["1", "2.5e3"], "float"),
        (["nan", ".5"], "float"),
        (["1", ""], "string"),
        ([], "string"),
    ],
)
def test_types_are_inferred(values: list[str], kind: str) -> None:
    assert infer_type(iter(values)) == kind


@pytest.mark.parametrize("value", ["16777217", "-16777219", "9007199254740993", "123456789012345678"])
def test_whole_numbers_that_float32_does_not_have_are_no_features(tmp_path: Path, value: str) -> None:
    import tensorflow as tf

    path = _file(tmp_path / "f.csv", f"id,kind,b\n16777216,2,0.5\n{value},0,16777217.5\n")
    reader = CSVDataReader(path, reader_params={"label": "kind"})
    rows = tf.data.Dataset.from_tensor_slices(_all(reader))
    feed = reader.default_feed()
    assert feed is not None
    with pytest.raises(tf.errors.InvalidArgumentError, match="inexact"):
        list(feed(rows, "training", reader.metadata))
    (shard,) = reader.create_shards()
    found = reader.explain_unreadable(shard)
    assert found is not None
    assert f"record 1: column 'id' holds {value!r}, which is a whole number that float32 does not have" in str(found)
    assert "write a feed that gives the column as int64" in found.fix

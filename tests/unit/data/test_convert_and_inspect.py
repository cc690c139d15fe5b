from __future__ import annotations

import json
from pathlib import Path

import pytest
from typer.testing import CliRunner

from elasticdl.cli.data import app
from elasticdl.data import create_data_reader
from elasticdl.data.convert import convert
from elasticdl.data.errors import DataError
from elasticdl.data.example import decode_example, encode_example
from elasticdl.data.inspection import inspect_data
from elasticdl.data.output import replacing
from elasticdl.data.recordio import Index, Writer

pytestmark = pytest.mark.unit

CSV = "id,price,name\n1,0.5,one\n2,1,two\n-3,2e3,\n"


@pytest.fixture
def source(tmp_path: Path) -> Path:
    path = tmp_path / "source.csv"
    path.write_text(CSV)
    return path


def _records(origin: Path) -> list[object]:
    reader = create_data_reader(str(origin))
    return [record for shard in reader.create_shards() for record in reader.read_records(shard)]


@pytest.mark.parametrize("to", ["recordio", "tfrecord"])
def test_csv_becomes_examples_and_comes_back(to: str, source: Path, tmp_path: Path) -> None:
    done = convert(str(source), tmp_path / f"out.{to}", to)
    assert (done.records, done.types) == (3, {"id": "int64", "price": "float", "name": "bytes"})
    assert [decode_example(record) for record in _records(tmp_path / f"out.{to}")] == [  # type: ignore[arg-type]
        {"id": [1], "price": [0.5], "name": [b"one"]},
        {"id": [2], "price": [1.0], "name": [b"two"]},
        {"id": [-3], "price": [2000.0], "name": [b""]},
    ]
    convert(str(tmp_path / f"out.{to}"), tmp_path / "back.csv", "csv")
    assert (tmp_path / "back.csv").read_text() == "id,name,price\n1,one,0.5\n2,two,1.0\n-3,,2000.0\n"


def test_types_can_be_given(source: Path, tmp_path: Path) -> None:
    convert(str(source), tmp_path / "o.recordio", "recordio", types={"id": "float", "price": "bytes"})
    assert decode_example(_records(tmp_path / "o.recordio")[0]) == {"id": [1.0], "price": [b"0.5"], "name": [b"one"]}  # type: ignore[arg-type]


def test_a_value_of_another_type_is_refused_by_place_and_leaves_nothing(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("a,b\n" + "1,2\n" * 150 + "x,2\n")
    with pytest.raises(DataError, match=r"s\.csv: record 150: column a: 'x' is not int64") as caught:
        convert(str(tmp_path / "s.csv"), tmp_path / "o.recordio", "recordio")
    assert "--types" in caught.value.fix
    assert sorted(path.name for path in tmp_path.iterdir()) == ["s.csv"]


def test_features_of_several_values_become_columns(tmp_path: Path) -> None:
    with Writer(tmp_path / "s.recordio") as writer:
        writer.write(encode_example({"x": [0.1, 2.5], "y": [7]}))
        writer.write(encode_example({"x": [3.5, 4.0], "y": [8]}))
    convert(str(tmp_path / "s.recordio"), tmp_path / "o.csv", "csv")
    assert (tmp_path / "o.csv").read_text() == "x.0,x.1,y\n0.1,2.5,7\n3.5,4.0,8\n"
    with Writer(tmp_path / "s.recordio") as writer:
        writer.write(encode_example({"x": [1]}))
        writer.write(encode_example({"x": [1, 2]}))
    with pytest.raises(DataError, match="record 1: its features or their sizes differ"):
        convert(str(tmp_path / "s.recordio"), tmp_path / "o2.csv", "csv")


def test_records_that_are_no_examples_do_not_become_csv(tmp_path: Path) -> None:
    with Writer(tmp_path / "s.recordio") as writer:
        writer.write(b"\xff\xff")
    with pytest.raises(DataError, match=r"not a tf\.train\.Example"):
        convert(str(tmp_path / "s.recordio"), tmp_path / "o.csv", "csv")


def test_parts_chunks_and_compressors_are_as_asked_for(tmp_path: Path) -> None:
    with Writer(tmp_path / "s.recordio") as writer:
        for n in range(10):
            writer.write(b"%d" % n)
    done = convert(
        str(tmp_path / "s.recordio"), tmp_path / "o", "recordio",
        compressor="gzip", records_per_file=4, records_per_chunk=3,
    )  # fmt: skip
    assert [file.name for file in done.files] == ["part-00000.recordio", "part-00001.recordio", "part-00002.recordio"]
    assert [[chunk.records for chunk in Index(file).chunks] for file in done.files] == [[3, 1], [3, 1], [2]]
    assert {chunk.compressor.name for chunk in Index(done.files[0]).chunks} == {"GZIP"}
    assert _records(tmp_path / "o") == [b"%d" % n for n in range(10)]


def test_what_exists_is_replaced_only_by_force(source: Path, tmp_path: Path) -> None:
    target = tmp_path / "o"
    convert(str(source), target, "recordio", records_per_file=1)
    with pytest.raises(DataError, match="exists already"):
        convert(str(source), target, "recordio")
    convert(str(source), target, "tfrecord", force=True)
    assert [path.name for path in target.iterdir()] == ["part-00000.tfrecord"]
    (target / "thesis.txt").write_text("precious")
    with pytest.raises(DataError, match=r"holds thesis\.txt"):
        convert(str(source), target, "recordio", force=True)
    assert (target / "thesis.txt").read_text() == "precious"


def test_a_failure_while_writing_keeps_the_old_and_removes_the_new(tmp_path: Path) -> None:
    target = tmp_path / "o"
    target.write_text("old")
    with pytest.raises(ZeroDivisionError), replacing(target, force=True) as place:
        place.write_text("half")
        raise ZeroDivisionError
    assert [(path.name, path.read_text()) for path in tmp_path.iterdir()] == [("o", "old")]
    with replacing(target, force=True) as place:
        place.mkdir()
        (place / "new").write_text("")
    assert [path.name for path in tmp_path.iterdir()] == ["o"]
    assert target.is_dir()


def test_corrupt_records_are_skipped_and_counted(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("1,2\n3\n4,5\n")
    done = convert(str(tmp_path / "s.csv"), tmp_path / "o.csv", "csv", reader_params="on_corrupt=skip")
    assert (done.records, done.skipped) == (2, 1)


def test_inspect_reports_what_is_there(source: Path, tmp_path: Path) -> None:
    report = inspect_data(str(source), records=1, verify=True)
    assert (report.kind, report.records, report.bytes, report.verified) == ("csv", 3, len(CSV), 3)
    assert report.columns == {"id": "int64", "price": "float", "name": "string"}
    assert report.first_records == [{"id": "1", "price": "0.5", "name": "one"}]
    convert(str(source), tmp_path / "o", "recordio", records_per_file=2)
    report = inspect_data(str(tmp_path / "o"), records=5)
    assert (report.kind, report.compressors, len(report.files), report.verified) == (
        "recordio",
        {"snappy": 2},
        2,
        None,
    )
    assert report.features == {"id": "int64[1]", "name": "bytes[1]", "price": "float[1]"}
    assert [record["id"] for record in report.first_records] == [[1], [2], [-3]]


def test_inspect_shows_any_bytes_shortly(tmp_path: Path) -> None:
    with Writer(tmp_path / "s.recordio") as writer:
        writer.write(b"plain text")
        writer.write(bytes(range(128, 228)))
    shown = inspect_data(str(tmp_path / "s.recordio")).first_records
    assert shown[0] == "plain text"
    assert shown[1].startswith("80 81 82")
    assert shown[1].endswith("(100 bytes)")


def test_the_command_prints_text_and_json(source: Path) -> None:
    result = CliRunner().invoke(app, ["inspect", str(source), "--records", "1", "--verify"])
    assert result.exit_code == 0
    assert "kind      csv\n" in result.stdout
    assert "verified  3 records are sound" in result.stdout
    result = CliRunner().invoke(app, ["inspect", str(source), "--json"])
    assert json.loads(result.stdout)["records"] == 3


def test_the_command_fails_with_place_and_fix_on_stderr(tmp_path: Path) -> None:
    path = tmp_path / "s.recordio"
    with Writer(path, compressor="none") as writer:
        writer.write(b"x" * 100)
    path.write_bytes(path.read_bytes()[:-1] + b"y")
    assert CliRunner().invoke(app, ["inspect", str(path), "--records", "0"]).exit_code == 0
    result = CliRunner().invoke(app, ["inspect", str(path), "--records", "0", "--verify"])
    assert (result.exit_code, result.stdout) == (1, "")
    assert f"error: {path}: byte 0, chunk 0: the checksum is" in result.stderr
    assert "fix: " in result.stderr


def test_the_convert_command_takes_reader_parameters_and_types(tmp_path: Path) -> None:
    (tmp_path / "s.csv").write_text("a;b\n1;2\n")
    command = ["convert", str(tmp_path / "s.csv"), str(tmp_path / "o.tfrecord"), "--to", "tfrecord"]
    result = CliRunner().invoke(
        app, [*command, "--data_reader_params", 'sep=";"', "--types", "a=float, b=bytes", "--json"]
    )
    assert json.loads(result.stdout)["types"] == {"a": "float", "b": "bytes"}
    result = CliRunner().invoke(app, [*command, "--types", "a"])
    assert (result.exit_code, "is not column=type" in result.stderr) == (1, True)


def test_carriage_returns_are_quoted(tmp_path: Path) -> None:
    """The csv module left them bare before Python 3.11.9, and our reader refused the file."""
    path = tmp_path / "a.csv"
    path.write_bytes(b'a,b\n"x\ry",1\nz,2\n')
    convert(str(path), tmp_path / "b.csv", "csv")
    assert (tmp_path / "b.csv").read_bytes() == b'a,b\n"x\ry","1"\nz,2\n'
    assert inspect_data(str(tmp_path / "b.csv"), verify=True).verified == 2

"""Lines as records, separators that the lines tell, and empty cells."""

from __future__ import annotations

from pathlib import Path

import pytest

from elasticdl.data import DataError, columns_of, create_data_reader
from elasticdl.data.inspection import inspect_data

pytestmark = pytest.mark.unit
LINES = ['{"a": 1}', "b, c", '"no end', "é", "d"]


@pytest.mark.parametrize("end", ["\n", "\r\n"])
def test_each_line_is_a_record(tmp_path: Path, end: str) -> None:
    (tmp_path / "a.jsonl").write_bytes((end.join(LINES[:3]) + end + end).encode())
    (tmp_path / "b.txt").write_bytes(end.join(LINES[3:]).encode())
    reader = create_data_reader(str(tmp_path), 2, "kind=text")
    shards = list(reader.create_shards())
    assert [shard.records for shard in shards] == [2, 1, 2]
    assert [record.decode() for shard in shards for record in reader.read_records(shard)] == LINES
    assert reader.reads_by_index
    assert reader.read_numbers(shards[0].name, [0, 2]) == [LINES[0].encode(), LINES[2].encode()]
    assert columns_of(reader) is None
    assert inspect_data(str(tmp_path), reader_params="kind=text", verify=True).verified == 5


def test_texts_of_a_kind_without_a_reader_are_refused_with_the_way(tmp_path: Path) -> None:
    (tmp_path / "a.jsonl").write_text(LINES[0] + "\n")
    with pytest.raises(DataError) as caught:
        create_data_reader(str(tmp_path))
    assert "kind=text" in caught.value.fix


@pytest.mark.parametrize(("sep", "name"), [(";", "a.csv"), ("\t", "a.csv"), ("|", "a.csv"), (",", "a.tsv")])
def test_a_separator_is_taken_from_the_lines_and_told(tmp_path: Path, sep: str, name: str) -> None:
    rows = [["a", "b", "c"], ["1.5", "", "x"], ["2.5", "4", "y"]]
    (tmp_path / name).write_text("".join(sep.join(row) + "\n" for row in rows))
    reader = create_data_reader(str(tmp_path))
    assert columns_of(reader) == rows[0]
    assert [record for shard in reader.create_shards() for record in reader.read_records(shard)] == rows[1:]
    report = inspect_data(str(tmp_path))
    assert (report.separator, report.empty, report.looked_at) == (sep, {"b": 1}, 2)


def test_two_separators_are_a_question(tmp_path: Path) -> None:
    (tmp_path / "a.csv").write_text("a;b|c\n1;2|3\n")
    with pytest.raises(DataError, match=r"divided by ';' or by '\|'"):
        create_data_reader(str(tmp_path))

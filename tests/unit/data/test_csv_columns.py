"""Columns of CSV files: header or record, names, and where a file has those of the job."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

import pytest

from elasticdl.data import CSVDataReader, DataError, ReaderParamsError, create_data_reader, params_like
from elasticdl.data.csv_columns import is_header, numbered
from elasticdl.data.inspection import inspect_data

pytestmark = pytest.mark.unit


def _file(path: Path, text: str) -> str:
    path.write_text(text)
    return str(path)


def _read(path: str, params: Mapping[str, Any], *, predicting: bool = False) -> list[list[str]]:
    reader = create_data_reader(path, None, params, predicting=predicting)
    return [record for shard in reader.create_shards() for record in reader.read_records(shard)]


@pytest.mark.parametrize(
    ("text", "header"),
    [
        ("a,b|1,2|3,4", True),
        ("1,2|3,4", False),
        ("5.1,3.5,setosa|4.9,3.0,setosa|6.1,2.9,virginica", False),
        ("region,2019,2020|north,5,6|south,7,8", None),  # the numbers may be years, the words regions
        ("region,2019,2020,good|north,5,6,1|south,7,8,0", True),  # "good" stands over numbers
        ("id,2019|1,5.5|2,6.5", True),
        ("2019,2020,2021|5,6,9|7,8,1", None),
        ("2019,2020|5,6|7,8", None),
        (",0,1,2|0,5,6,9|1,7,8,1", None),
        ("1,2,3|2,3,4|5,6,7", False),  # rows of a sequence: all of them count
        ("12,4|5,6|7,8", False),
        ("Ann,5|Bob,6|Cid,7", None),
        ("male,5|female,6|male,7", False),
        ("?,5.5|2.5,6.5|3.5,7.5", False),  # a missing value
        ("bad,5.5|2.5,6.5|3.5,7.5", None),  # a name, or damage
        ("name,code|x,12|y,A3", True),
        ("A3,x|77,x|12,z", None),  # a value comes again, but A3 may be damage
        ("A3,x|77,x|B2,z", False),
        ("name,town|ann,rome|bob,oslo", None),
        ("a,0.5,0.9|x,1,2|y,3,4", None),
        ("1,b", False),
        ("name,n|a,|b,|c,7", True),
    ],
)
def test_the_first_row_is_judged_against_the_rows_below(text: str, header: bool | None, tmp_path: Path) -> None:
    rows = [row.split(",") for row in text.split("|")]
    assert is_header(rows) is header
    path = _file(tmp_path / "f.csv", text.replace("|", "\n") + "\n")
    if header is None:
        with pytest.raises(ReaderParamsError, match="names the columns or is a record") as caught:
            inspect_data(path)
        assert "with_header=true or with_header=false" in caught.value.fix
    else:
        assert inspect_data(path).records == len(rows) - header


def test_columns_of_one_name_are_numbered(tmp_path: Path) -> None:
    assert numbered(["a", "a", "a.1", "a", ""]) == ["a", "a.2", "a.1", "a.3", ""]
    path = _file(tmp_path / "f.csv", "a,a,c,y\n1,2,3,4\n5,6,7,8\n")
    report = inspect_data(path)
    assert list(report.columns) == ["a", "a.1", "c", "y"]
    assert report.first_records[0] == {"a": "1", "a.1": "2", "c": "3", "y": "4"}


@pytest.mark.parametrize("params", [{}, {"label": "y"}, {"columns": ["a", "b", "c", "y"]}])
@pytest.mark.parametrize(
    ("text", "predicting", "expected"),
    [
        ("c,b,a,y\n3,2,1,9\n", False, ["1", "2", "3", "9"]),
        ("y,a,b,c\n9,1,2,3\n", True, ["1", "2", "3", "9"]),
        ("c,b,a\n3,2,1\n", False, None),
        ("c,b,y\n3,2,1\n", False, None),
        ("c,b,a,x\n3,2,1,9\n", True, None),
        ("c,a\n3,1\n", True, None),
        ("1,2,3,9\n4,5,6,9\n", False, ["1", "2", "3", "9"]),  # without a header: by place
        ("1,2\n4,5\n", False, None),
    ],
)
def test_other_data_of_a_job_has_its_columns_by_name(
    params: dict[str, Any], text: str, predicting: bool, expected: list[str] | None, tmp_path: Path
) -> None:
    """They were taken by their places: a model trained on a, b, c was evaluated on c, b, a."""
    train = create_data_reader(_file(tmp_path / "train.csv", "a,b,c,y\n1,2,3,4\n"), None, params)
    path = _file(tmp_path / "other.csv", text)
    if params.get("columns") and text[0].isdigit():
        return  # columns without names have no such columns
    if expected is not None:
        assert _read(path, params_like(train, params), predicting=predicting)[0] == expected
        return
    with pytest.raises(DataError, match=r"other\.csv|no column|not among"):
        create_data_reader(path, None, params_like(train, params), predicting=predicting)


def test_surplus_columns_are_refused_unless_columns_are_chosen(tmp_path: Path) -> None:
    _file(tmp_path / "train.csv", "a,b,y\n1,2,3\n")
    path = _file(tmp_path / "other.csv", "extra,y,b,a\n7,3,2,1\n")
    train = create_data_reader(str(tmp_path / "train.csv"))
    with pytest.raises(DataError, match=r"other\.csv: has the column 'extra' too many"):
        create_data_reader(path, None, params_like(train, {}))
    chosen = {"columns": ["a", "b", "y"]}
    assert _read(path, params_like(train, chosen)) == [["1", "2", "3"]]


@pytest.mark.parametrize("params", [{}, {"label": "y"}, {"columns": ["a", "b", "y"], "label": "y"}])
def test_data_to_predict_need_not_have_the_label(params: dict[str, Any], tmp_path: Path) -> None:
    train = create_data_reader(_file(tmp_path / "train.csv", "y,a,b\n9,1,2\n"), None, params)
    path = _file(tmp_path / "other.csv", "b,a\n2,1\n")
    reader = create_data_reader(path, None, params_like(train, params), predicting=True)
    assert isinstance(reader, CSVDataReader)
    assert reader.columns == ["a", "b"]
    assert _read(path, params_like(train, params), predicting=True) == [["1", "2"]]
    wrong = {"label": "z"}
    with pytest.raises(ReaderParamsError, match="label 'z' is not among"):
        create_data_reader(path, None, params_like(train, wrong), predicting=True)


def test_unnamed_columns_are_as_many_as_the_model_was_trained_on(tmp_path: Path) -> None:
    params = {"label": "c0"}
    train = create_data_reader(_file(tmp_path / "train.csv", "9,1,2\n9,3,4\n"), None, params)
    like = params_like(train, params)
    reader = create_data_reader(_file(tmp_path / "p.csv", "1,2\n3,4\n"), None, like, predicting=True)
    assert isinstance(reader, CSVDataReader)
    assert reader.columns == ["c1", "c2"]
    with pytest.raises(DataError, match="has 4 columns, the model was trained on 3"):
        create_data_reader(_file(tmp_path / "v.csv", "9,1,2,3\n9,4,5,6\n"), None, like)


def test_files_of_one_origin_have_their_columns_in_any_order(tmp_path: Path) -> None:
    _file(tmp_path / "1.csv", "a,b\n1,2\n")
    _file(tmp_path / "2.csv", "b,a\n4,3\n")
    assert _read(str(tmp_path), {}) == [["1", "2"], ["3", "4"]]
    _file(tmp_path / "3.csv", "a,c\n1,2\n")
    with pytest.raises(DataError, match=r"3\.csv: lacks the column 'b' and has the column 'c' too many; its header"):
        _read(str(tmp_path), {})


def test_columns_are_for_files_with_columns_only(tmp_path: Path) -> None:
    """A job says them for all of its data, whatever their kind."""
    reader = create_data_reader("rows", None, {"trained_columns": ["a"]}, custom=_Own)
    assert params_like(reader, {"x": 1}) == {"x": 1}


class _Own:
    def __init__(self, origin: str, records_per_task: int | None = None) -> None: ...

    def create_shards(self) -> dict[str, tuple[int, int]]:
        return {"rows": (0, 1)}

    def read_records(self, task: Any) -> Any:
        yield b""

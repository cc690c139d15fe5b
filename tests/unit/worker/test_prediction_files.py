"""Predictions as files: each format holds the same values, exactly, beside the records that they are of."""

from __future__ import annotations

import csv
import hashlib
import os
from pathlib import Path
from typing import Any

import ml_dtypes  # noqa: F401 - numpy knows its types by name then
import numpy as np
import pyarrow.parquet as pq
import pytest

from elasticdl.data import Shard
from elasticdl.prediction import PredictedTask
from elasticdl_core.errors import InvalidInputError, SpecError, UserCodeError
from elasticdl_core.installation import install_command
from elasticdl_core.job import JobSpec
from elasticdl_worker.trainers import prediction_files
from elasticdl_worker.trainers.output_files import describe_folder
from elasticdl_worker.trainers.predictions import PredictionWriter
from elasticdl_worker.user_code import ModelModule

pytestmark = pytest.mark.unit
SHARD = Shard("/data/tägs, 1.csv", 100, 104)
OUTPUTS = {
    "score": np.array([[0.1], [1 / 3], [np.nan], [1e-30]], np.float32),
    "pair": np.arange(8, dtype=np.float64).reshape(4, 2) / 7,
    "kind": np.array([1, 2, 2**40, -1]),
}


def module(**parts: Any) -> ModelModule:
    return ModelModule(Path("net.py"), (), lambda: None, **parts)


def written(folder: Path, kind: str, *, known: bool = True) -> Path:
    """The file of a task of two minibatches; the place of the second may not be known."""
    sink = PredictionWriter(module(), folder, 0, kind)
    for _ in range(2):  # a task that is done twice leaves the same one file
        with sink.write_task(SHARD) as write:
            write({name: values[:3] for name, values in OUTPUTS.items()}, 100, 3)
            write({name: values[3:] for name, values in OUTPUTS.items()}, 103 if known else None, 1)
    (path,) = folder.iterdir()
    assert [file["name"] for file in sink.list_files()] == [path.name]
    return path


def test_a_long_name_of_the_data_does_not_make_one_that_is_too_long(tmp_path: Path) -> None:
    """Data with a name of 210 bytes failed when its predictions were written."""
    sink = PredictionWriter(module(), tmp_path, 0)
    with sink.write_task(Shard(f"/data/{'ä' * 100}{'n' * 50}.csv", 0, 4)) as write:
        write(OUTPUTS, 0, 4)
    (file,) = sink.list_files()
    assert len(file["name"]) < 200


def test_data_of_one_name_in_two_folders_makes_two_files(tmp_path: Path) -> None:
    sink = PredictionWriter(module(), tmp_path, 0)
    for folder in ("2024-01", "2024-02"):
        with sink.write_task(Shard(f"/data/{folder}/part.csv", 0, 4)) as write:
            write(OUTPUTS, 0, 4)
    origins = set()
    for file in sink.take_new():
        with np.load(file["path"]) as found:
            origins |= set(found["file"].tolist())
    assert origins == {"/data/2024-01/part.csv", "/data/2024-02/part.csv"}


def test_files_whose_names_cannot_be_listed_are_renamed(tmp_path: Path) -> None:
    """A line break in its name made an artifact that was listed and could not be fetched."""
    folder = os.fsdecode(os.fsencode(tmp_path) + b"/d\xff")
    Path(folder).mkdir()
    for name in ("a\nb.txt", "a%0Ab.txt", "plain ä.txt"):
        (Path(folder) / name).write_text(name)
    found = describe_folder(tmp_path)
    assert [file["name"] for file in found] == ["d%FF/a%0Ab.txt", "d%FF/a%0Ab.txt~", "d%FF/plain ä.txt"]
    assert [Path(file["path"]).read_text() for file in found] == ["a%0Ab.txt", "a\nb.txt", "plain ä.txt"]


def test_an_npz_holds_arrays_and_the_records(tmp_path: Path) -> None:
    for kind in ("", "npz"):
        with np.load(written(tmp_path / f"out-{kind}", kind)) as found:
            assert found["file"].tolist() == [SHARD.name] * 4
            assert found["row"].tolist() == [100, 101, 102, 103]
            for name, values in OUTPUTS.items():
                np.testing.assert_array_equal(found[name], values)
                assert found[name].dtype == values.dtype


def test_a_csv_holds_a_column_for_each_value_that_reads_back_exactly(tmp_path: Path) -> None:
    with written(tmp_path / "out", "csv").open(encoding="utf-8", newline="") as file:
        titles, *rows = csv.reader(file)
    assert titles == ["file", "row", "score", "pair.0", "pair.1", "kind"]
    assert [row[:2] for row in rows] == [[SHARD.name, str(number)] for number in range(100, 104)]
    assert rows[0][2] == "0.1", "the shortest text for a float32"
    np.testing.assert_array_equal(np.array([row[2] for row in rows]).astype(np.float32), OUTPUTS["score"][:, 0])
    np.testing.assert_array_equal(np.array([row[3:5] for row in rows]).astype(float), OUTPUTS["pair"])
    assert [int(row[5]) for row in rows] == OUTPUTS["kind"].tolist()


def test_a_parquet_file_has_columns_of_the_outputs_types(tmp_path: Path) -> None:
    found = pq.read_table(written(tmp_path / "out", "parquet"))
    assert found.column_names == ["file", "row", "score", "pair", "kind"]
    assert (str(found.schema.field("score").type), str(found.schema.field("row").type)) == ("float", "int64")
    assert found["row"].to_pylist() == [100, 101, 102, 103]
    np.testing.assert_array_equal(found["score"].to_numpy(), OUTPUTS["score"][:, 0])
    np.testing.assert_array_equal(np.array(found["pair"].to_pylist()), OUTPUTS["pair"])
    assert found["kind"].to_pylist() == OUTPUTS["kind"].tolist()


@pytest.mark.parametrize("kind", ["bfloat16", "float8_e4m3fn", "int4", "uint4", "qint8"])
def test_small_types_are_numbers_in_every_format(tmp_path: Path, kind: str) -> None:
    """bfloat16 was written into an npz as ``|V2``, and crashed Parquet."""
    given = np.array([[1.5, 2.0], [3.0, 4.0]]).astype(np.int8 if kind == "qint8" else np.dtype(kind))
    wanted = given.astype(np.float64)
    if kind == "qint8":
        given = given.view(np.dtype([("qint8", np.int8)]))
    paths = {}
    for form in ("npz", "csv", "parquet"):
        sink = PredictionWriter(module(), tmp_path / form, 0, form)
        with sink.write_task(SHARD) as write:
            write(given, 100, 2)
        (paths[form],) = (tmp_path / form).iterdir()
    with np.load(paths["npz"]) as found:
        np.testing.assert_array_equal(found["predictions"] + 0.0, wanted)
    np.testing.assert_array_equal(np.array(pq.read_table(paths["parquet"])["predictions"].to_pylist()), wanted)
    rows = [[float(value) for value in line.split(",")[-2:]] for line in paths["csv"].read_text().splitlines()[1:]]
    np.testing.assert_array_equal(rows, wanted)


def test_a_record_that_nobody_knows_has_no_number(tmp_path: Path) -> None:
    with np.load(written(tmp_path / "npz", "npz", known=False)) as found:
        assert found["row"].tolist() == [100, 101, 102, -1]
    assert pq.read_table(written(tmp_path / "parquet", "parquet", known=False))["row"].to_pylist()[3] is None
    assert written(tmp_path / "csv", "csv", known=False).read_text().splitlines()[4].split(",")[-5] == ""


def test_an_output_named_as_the_record_is_refused(tmp_path: Path) -> None:
    sink = PredictionWriter(module(), tmp_path / "out", 0)
    with pytest.raises(UserCodeError, match="an output named 'row'"), sink.write_task(SHARD) as write:
        write({"row": np.zeros(4)}, 100, 4)
    assert not (tmp_path / "out").exists()


def test_a_format_that_cannot_be_written_is_refused_before_any_record(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    class Processor:
        def process(self, predictions: Any, worker_id: int) -> None: ...

    with pytest.raises(UserCodeError, match="takes the predictions, so no file in csv is made"):
        PredictionWriter(module(prediction_outputs_processor=Processor), tmp_path, 0, "csv")
    PredictionWriter(module(prediction_outputs_processor=Processor), tmp_path, 0)
    monkeypatch.setitem(__import__("sys").modules, "pyarrow.parquet", None)
    with pytest.raises(InvalidInputError, match="need pyarrow") as caught:
        prediction_files.require_format("parquet")
    assert install_command("parquet") in caught.value.fix


def test_a_processor_of_tasks_gets_each_task_as_a_whole(tmp_path: Path) -> None:
    class Processor:
        def process_task(self, predictions: Any, task: PredictedTask) -> None:
            given.append((predictions.numpy().tolist(), task.name, task.start, task.end, task.rows.tolist()))

    given: list[Any] = []
    sink = PredictionWriter(module(prediction_outputs_processor=Processor), tmp_path, 0)
    for _ in range(2):  # it is done again
        with sink.write_task(SHARD) as write:
            write(np.array([[1.0], [2.0]]), 100, 2)
            write(np.array([[3.0]]), None, 1)
    with pytest.raises(ZeroDivisionError), sink.write_task(SHARD) as write:
        write(np.array([[1.0]]), 100, 1)
        raise ZeroDivisionError  # half of a task is none
    assert given == [([[1.0], [2.0], [3.0]], SHARD.name, SHARD.start, SHARD.end, [100, 101, -1])] * 2
    assert not sink.makes_files
    with pytest.raises(UserCodeError, match="no method process"):
        PredictionWriter(module(prediction_outputs_processor=object), tmp_path, 0)


PREDICT = {"type": "prediction", "model_def": "a.b", "model_zoo": "/zoo", "prediction_data": "/d"}
PREDICT |= {"checkpoint_dir_for_init": "/c"}


@pytest.mark.parametrize(
    ("fields", "kind"),
    [
        ({}, ""),
        ({"output": "/out"}, ""),
        ({"output": "/out.parquet"}, "parquet"),
        ({"output": "/out.CSV/"}, "csv"),
        ({"output": "/x.csv/out"}, ""),
        ({"output": "/.csv"}, ""),
        ({"output_format": "csv"}, "csv"),
        ({"output_format": "csv", "output": "/out.csv"}, "csv"),
    ],
)
def test_the_format_is_named_or_told_by_the_ending_of_the_output(fields: dict[str, str], kind: str) -> None:
    assert JobSpec.from_mapping({**PREDICT, **fields}).prediction_format == kind


@pytest.mark.parametrize(
    "fields",
    [
        {"output_format": "xlsx"},
        {"output_format": "csv", "output": "/out.parquet"},
        {"output_format": "csv", "type": "evaluation", "validation_data": "/d"},
        {"output_format": "csv", "type": "training", "training_data": "/d"},
    ],
)
def test_a_format_that_means_nothing_is_refused(fields: dict[str, str]) -> None:
    with pytest.raises(SpecError) as caught:
        JobSpec.from_mapping({**PREDICT, **fields})
    assert [problem.field for problem in caught.value.problems] == ["output_format"]


def test_a_file_is_described_when_it_is_written_and_never_again(tmp_path: Path) -> None:
    """Each task hashed all files that were written before it, twice."""
    sink = PredictionWriter(module(), tmp_path, 0)
    named = []
    for start in range(0, 40, 4):
        with sink.write_task(Shard("/data/a.csv", start, start + 4)) as write:
            write(OUTPUTS, start, 4)
        (file,) = sink.take_new()
        named.append(file)
        assert file["sha256"] == hashlib.sha256(Path(file["path"]).read_bytes()).hexdigest()
        Path(file["path"]).unlink()  # who looked again would not find it
    assert sink.list_files() == named
    assert sink.take_new() == []
    with sink.write_task(Shard("/data/a.csv", 0, 4)) as write:
        write(OUTPUTS, 0, 4)
    assert [file["name"] for file in sink.take_new()] == [named[0]["name"]], (
        "a task that is done again reports it again"
    )


def test_the_path_in_each_row_of_an_npz_takes_no_room(tmp_path: Path) -> None:
    sink = PredictionWriter(module(), tmp_path, 0)
    name = f"/data/{'d' * 850}.csv"
    values = np.random.default_rng(0).random((1000, 12))
    with sink.write_task(Shard(name, 0, 1000)) as write:
        write(values, 0, 1000)
    (file,) = sink.take_new()
    assert file["size"] < values.nbytes + 8 * 1000 + 20_000
    with np.load(file["path"]) as found:
        assert found["file"].tolist() == [name] * 1000
        np.testing.assert_array_equal(found["predictions"], values)

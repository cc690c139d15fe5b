"""A job's validation data has its columns by name, whatever their order."""

from __future__ import annotations

import json
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from elasticdl.data import TRAINED_COLUMNS, Shard, create_data_reader
from elasticdl.data.tfrecord import TFRecordWriter
from elasticdl.modes import Mode
from elasticdl_core.errors import DataError, UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_worker.local import run_local
from elasticdl_worker.master.client import read_spec
from elasticdl_worker.trainers.job_sources import JobSources
from elasticdl_worker.trainers.tensorflow.model.loading import load_module

pytestmark = pytest.mark.unit

FIRST_COLUMN = """
import tensorflow as tf

def forward():
    inputs = tf.keras.Input((3,))
    return tf.keras.Model(inputs, inputs[:, :1] + 0.0 * tf.keras.layers.Dense(1)(inputs))

def loss(labels, predictions):
    return tf.reduce_mean(tf.square(tf.cast(labels, tf.float32) - predictions))

def optimizer():
    return tf.keras.optimizers.SGD(0.5)

def eval_metrics_fn():
    return {"mae": lambda labels, predictions: tf.abs(tf.cast(labels, tf.float32) - predictions)}
"""


def _spec(folder: Path, validation: str) -> JobSpec:
    (folder / "m.py").write_text(FIRST_COLUMN)
    (folder / "train.csv").write_text("a,b,c,y\n1.5,20,300,1.5\n2,30,400,2\n")
    (folder / "other.csv").write_text(validation)
    return JobSpec.from_mapping(
        {
            "model_def": "m.forward", "model_zoo": str(folder), "training_data": str(folder / "train.csv"),
            "validation_data": str(folder / "other.csv"), "prediction_data": str(folder / "other.csv"),
            "export_formats": "", "data_reader_params": {"label": "y"}, "minibatch_size": 2,
        }
    )  # fmt: skip


@pytest.mark.parametrize("validation", ["a,b,c,y\n5.5,60,700,5.5\n", "c,y,b,a\n700,5.5,60,5.5\n"])
def test_columns_come_in_the_order_of_the_training_data(validation: str, tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    run_local(_spec(tmp_path, validation), tmp_path / "out", events.append)
    assert events[-1]["metrics"]["mae"] == 0.0


def test_other_columns_are_refused_before_the_first_record(tmp_path: Path) -> None:
    events: list[dict[str, Any]] = []
    with pytest.raises(DataError, match=r"other\.csv: has the column 'z' too many"):
        run_local(_spec(tmp_path, "a,b,c,y,z\n5,60,700,5,1\n"), tmp_path / "out", events.append)
    assert not events


def test_a_worker_s_readers_have_the_columns_of_the_job(tmp_path: Path) -> None:
    spec = _spec(tmp_path, "c,b,a\n700,60,5\n")
    sources = JobSources(None, spec, load_module(spec, tmp_path))  # type: ignore[arg-type] # no minibatches are made
    assert sources.reader(Mode.PREDICTION).metadata.column_names == ["a", "b", "c"]
    with pytest.raises(DataError, match="label 'y'"):
        sources.reader(Mode.EVALUATION)


def test_the_columns_of_a_wide_table_reach_the_workers(tmp_path: Path) -> None:
    """They are more than a user may give as parameters."""
    columns = [f"column{number}" for number in range(20_000)]
    spec = replace(_spec(tmp_path, "a,b,c,y\n1,2,3,4\n"), data_reader_params={"label": "y", TRAINED_COLUMNS: columns})
    assert read_spec(json.dumps(spec.to_mapping())) == spec


OWN_FEED = """
def feed(dataset, mode, metadata):
    def parse(row):
        return tf.strings.to_number(row[:3]), tf.strings.to_number(row[3:], tf.int64)
    return dataset.map(parse)
"""


@pytest.mark.parametrize("value", ["21.5", "1e3", "99999999999999999999", "12\u00a0", "\uff11\uff12", "1_0"])
def test_what_is_no_label_like_the_first_ones_is_found(value: str, tmp_path: Path) -> None:
    path = tmp_path / "a.csv"
    path.write_text("x,y\n" + "".join(f"0.5,{value if number == 200 else number}\n" for number in range(300)))
    reader = create_data_reader(str(path), None, {"label": "y"})
    told = reader.explain_unreadable(Shard(str(path), 150, 250))
    assert told is not None
    assert f"record 200: column 'y' holds {value!r}, which is" in told.message
    assert reader.explain_unreadable(Shard(str(path), 0, 200)) is None
    assert reader.locate_value(Shard(str(path), 150, 250), f"cannot convert {value}").startswith("record 200 of ")
    assert reader.locate_value(Shard(str(path), 150, 250), "no such column") == ""


@pytest.mark.parametrize("feed", ["", OWN_FEED])
def test_a_label_unlike_the_first_ones_is_named(feed: str, tmp_path: Path) -> None:
    """A label of 21.5 in row 200 ended the job with "correct feed", where there is none, and other records."""
    spec = _spec(tmp_path, "a,b,c,y\n1,2,3,4\n")
    (tmp_path / "m.py").write_text(FIRST_COLUMN + feed)
    value = "21.5"
    rows = [f"{number},2.5,3,{value if number == 200 else number}\n" for number in range(300)]
    (tmp_path / "train.csv").write_text("a,b,c,y\n" + "".join(rows))
    with pytest.raises(UserCodeError if feed else DataError) as caught:
        run_local(replace(spec, validation_data="", minibatch_size=32), tmp_path / "out", [].append)
    assert "record 200" in caught.value.message
    assert f"column 'y' holds {value!r}" in caught.value.message
    assert "train.csv" in caught.value.message


def test_the_rest_of_a_damaged_file_is_said(tmp_path: Path) -> None:
    """``--local`` said "every record was processed" where the cluster had passed over the rest of a file."""
    spec = _spec(tmp_path, "a,b,c,y\n1,2,3,4\n")
    feed = """
def feed(dataset, mode, metadata):
    return dataset.map(lambda record: (tf.zeros(3), tf.zeros(1)))
"""
    (tmp_path / "m.py").write_text(FIRST_COLUMN + feed)
    with TFRecordWriter(tmp_path / "t.tfrecord") as writer:
        for number in range(20):
            writer.write(f"record {number}".encode())
    data = (tmp_path / "t.tfrecord").read_bytes()
    (tmp_path / "t.tfrecord").write_bytes(data[:-7])
    events: list[dict[str, Any]] = []
    params = {"on_corrupt": "skip"}
    changed = replace(spec, training_data=str(tmp_path / "t.tfrecord"), validation_data="", data_reader_params=params)
    run_local(changed, tmp_path / "out", events.append)
    done = events[-1]
    assert done["reason"] == "all records were processed, but for those that were passed over"
    (skipped,) = [entry for entry in done["skipped"] if entry["records"] is None]
    assert skipped["example"].startswith(f"the rest of {tmp_path}/t.tfrecord: ")


@pytest.mark.parametrize("value", [b"a\0\0", "text"])
def test_bytes_and_text_of_a_custom_reader_keep_all_that_they_have(value: object) -> None:
    from elasticdl_worker.trainers.tensorflow.input.pipeline import _stacked

    assert _stacked(value, value).tolist() == [value, value]

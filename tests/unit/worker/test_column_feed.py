"""A ``feed`` of columns gives what one of records gives, in both frameworks, and is refused where it cannot."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pyarrow as pa
import pyarrow.parquet as pq
import pytest

from elasticdl.data import Shard, create_data_reader
from elasticdl.data.errors import DataError
from elasticdl_core.errors import UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_core.shuffling import RecordOrder, joined_parts
from elasticdl_worker.local import run_local
from elasticdl_worker.trainers.column_feed import ColumnFeed, takes_columns
from elasticdl_worker.user_code import ModelModule
from tests.fakes.frameworks import NEEDS_TORCH

pytestmark = pytest.mark.unit
ROWS = 100
FRAMEWORKS = ["tensorflow", pytest.param("torch", marks=NEEDS_TORCH)]


def by_name(columns: Any, mode: str, metadata: Any) -> Any:
    features = {"x": np.stack([columns["a"], columns["b"]], 1).astype(np.float32), "n": columns["a"]}
    return features if mode == "prediction" else (features, columns["y"])


@pytest.fixture
def table(tmp_path: Path) -> Path:
    numbers = np.arange(ROWS)
    columns = {"a": numbers, "b": numbers / 8, "y": (numbers * 3).astype(np.float32), "word": numbers.astype(str)}
    pq.write_table(pa.table(columns), tmp_path / "t.parquet", 16)
    return tmp_path / "t.parquet"


def pipeline(framework: str, path: Path, feed: Any, mode: str = "training", **params: Any) -> ColumnFeed:
    if framework == "torch":
        from elasticdl_worker.trainers.torch.input.columns import TorchColumnPipeline as Pipeline
    else:
        from elasticdl_worker.trainers.tensorflow.input.columns import ColumnPipeline as Pipeline
    reader = create_data_reader(str(path), None, params)
    return Pipeline(reader, ModelModule(path, (path.parent,), lambda: None, feed=feed), mode, 8)


def test_the_first_argument_tells() -> None:
    assert takes_columns(by_name)
    assert not takes_columns(lambda dataset, mode, metadata: dataset)
    assert not takes_columns(dict)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_minibatches_have_the_rows_of_their_range_in_order(framework: str, table: Path) -> None:
    made = pipeline(framework, table, by_name)
    batches = list(made.minibatches(Shard(str(table), 3, 30)))
    assert [(one.records, one.first) for one in batches] == [(8, 3), (8, 11), (8, 19), (3, 27)]
    labels = np.concatenate([np.asarray(one.labels) for one in batches])
    assert labels.tolist() == [3.0 * number for number in range(3, 30)]
    assert np.concatenate([np.asarray(one.features["x"]) for one in batches])[0].tolist() == [3, 0.375]
    assert made.intake.fed == 27
    elsewhere = made.first(4, 0.5)
    assert elsewhere is not None
    assert np.asarray(elsewhere.labels).tolist() == [150, 153, 156, 159]
    only = next(pipeline(framework, table, by_name, "prediction").minibatches(Shard(str(table), 0, 2)))
    assert only.labels is None
    assert np.asarray(only.features["n"]).tolist() == [0, 1]


@pytest.mark.parametrize("block", [0, 5])
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_shuffled_rows_come_once_in_the_order_of_records(framework: str, block: int, table: Path) -> None:
    made = pipeline(framework, table, by_name)
    shards = list(made._reader.create_shards())
    parts = joined_parts(shards, 32)
    order = RecordOrder(7, block, grain=made._reader.grain)
    order.extend(parts, shards)
    seen = []
    for index, part in enumerate(parts):
        reading = order.reading(0, index, part.start, part.end)
        found = [row for one in made.minibatches(part, reading) for row in np.asarray(one.features["n"]).tolist()]
        made._records.begin(part, reading)
        assert found == [record["a"] for some in made._records.batches(8, list) for record in some]
        seen += found
    assert sorted(seen) == list(range(ROWS))
    assert seen != sorted(seen)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_table_with_a_label_needs_no_feed_and_goes_as_columns(framework: str, table: Path) -> None:
    if framework == "torch":
        from elasticdl_worker.trainers.torch.implementation import TorchFramework as Framework
    else:
        from elasticdl_worker.trainers.tensorflow.implementation import TensorFlowFramework as Framework
    for label, mode in (("y", "training"), ("a", "evaluation"), ("y", "prediction")):
        params = {"label": label, "columns": ["b", "a", "y"]}
        reader = create_data_reader(str(table), None, params, predicting=mode == "prediction")
        module = ModelModule(table, (table.parent,), lambda: None)
        made = Framework().make_source(reader, module, mode, 8)
        assert isinstance(made, ColumnFeed)
        (batch,) = made.minibatches(Shard(str(table), 2, 4))
        others = [name for name in params["columns"] if name != label]
        rows = {"a": [2, 3], "b": [0.25, 0.375], "y": [6, 9]}
        assert np.asarray(batch.features).tolist() == [[rows[name][at] for name in others] for at in range(2)]
        assert str(np.asarray(batch.features).dtype) == "float32"
        if mode == "prediction":
            assert batch.labels is None
            continue
        assert np.asarray(batch.labels).tolist() == rows[label]
        assert str(np.asarray(batch.labels).dtype) == {"y": "float32", "a": "int64"}[label]


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_cells_of_csv_are_text(framework: str, tmp_path: Path) -> None:
    (tmp_path / "t.csv").write_text("a,y\n1,2\n3,4\n")

    def feed(columns: Any, mode: str, metadata: Any) -> Any:
        return columns["a"].astype(np.float32), columns["y"].astype(np.float32)

    (batch,) = pipeline(framework, tmp_path / "t.csv", feed).minibatches(Shard(str(tmp_path / "t.csv"), 0, 2))
    assert (np.asarray(batch.features).tolist(), np.asarray(batch.labels).tolist()) == ([1, 3], [2, 4])


@pytest.mark.parametrize(
    ("feed", "words"),
    [
        (
            lambda columns, mode, metadata: (columns["a"][:-1], columns["y"]),
            "gives (7 and 8|31 and 32) rows",
        ),
        (
            lambda columns, mode, metadata: (columns["a"].sum(), columns["y"]),
            "gives 0 and (8|32) rows",
        ),
        (lambda columns, mode, metadata: columns["a"] * 1.0, r"for each record in mode training"),
        (lambda columns, mode, metadata: (columns["c"], columns["y"]), "'c'"),
        (
            lambda columns, mode, metadata: (columns["b"] - columns["b"].mean(), columns["y"]),
            "makes the row of a record by the other records",
        ),
    ],
)
@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_what_is_not_a_row_for_each_record_is_refused(
    framework: str, feed: Callable[..., Any], words: str, table: Path
) -> None:
    made: list[ColumnFeed] = []
    for _ in range(2):  # a task that failed is tried again
        with pytest.raises(UserCodeError, match=words):
            made = made or [pipeline(framework, table, feed)]
            list(made[0].minibatches(Shard(str(table), 0, 8)))


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_one_that_draws_is_not_taken_for_one_that_combines(framework: str, table: Path) -> None:
    drawing = np.random.default_rng(1)

    def feed(columns: Any, mode: str, metadata: Any) -> Any:
        return columns["b"] + drawing.normal(size=len(columns["b"])), columns["y"]

    assert sum(one.records for one in pipeline(framework, table, feed).minibatches(Shard(str(table), 0, 20))) == 20


def test_what_is_drawn_follows_from_the_seed(table: Path) -> None:
    import tensorflow as tf

    def feed(columns: Any, mode: str, metadata: Any) -> Any:
        more = np.random.normal(size=len(columns["b"]))
        return columns["b"] + more, columns["y"] + tf.random.uniform([len(columns["y"])])

    made = pipeline("tensorflow", table, feed)
    few = Shard(str(table), 0, 8)
    batches = [next(made.seeded_minibatches(few, None, seed)) for seed in (3, 4, 3)]
    first, other, again = ((one.features.numpy().tolist(), one.labels.numpy().tolist()) for one in batches)
    assert first == again != other


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_records_without_columns_are_refused_at_once(framework: str, tmp_path: Path) -> None:
    (tmp_path / "lines").write_text("a\nb\n")
    with pytest.raises(UserCodeError, match="takes columns, which text records do not have"):
        pipeline(framework, tmp_path / "lines", by_name, kind="text")
    (tmp_path / "t.csv").write_text("a,y\n1,2\n3,4\n")
    with pytest.raises(UserCodeError, match="takes columns, which windows do not have"):
        pipeline(framework, tmp_path / "t.csv", by_name, window=2)


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_an_error_of_feed_names_the_records(framework: str, table: Path) -> None:
    def feed(columns: Any, mode: str, metadata: Any) -> Any:
        if (columns["a"] == 50).any():
            raise ValueError("fifty")
        return by_name(columns, mode, metadata)

    with pytest.raises(UserCodeError, match=r"records 48 to 56 of .*t\.parquet.*fifty"):
        list(pipeline(framework, table, feed).minibatches(Shard(str(table), 40, 60)))


def test_a_form_that_changes_is_told(table: Path) -> None:
    def feed(columns: Any, mode: str, metadata: Any) -> Any:
        return columns["a"].astype(np.float32 if columns["a"][0] < 40 else np.float64), columns["y"]

    with pytest.raises(UserCodeError, match=r"gives features .*float64.*, and of the first records .*float32"):
        list(pipeline("tensorflow", table, feed).minibatches(Shard(str(table), 32, 60)))


def test_files_that_cannot_be_read_are_told_as_such(table: Path) -> None:
    made = pipeline("tensorflow", table, by_name)
    table.write_bytes(table.read_bytes() + b"x")
    with pytest.raises(DataError, match="was changed after it was first read"):
        list(made.minibatches(Shard(str(table), 90, 100)))


TENSORFLOW = """
import numpy as np, tensorflow as tf
def forward():
    x = tf.keras.Input((2,))
    return tf.keras.Model(x, tf.keras.layers.Dense(1)(x))
def loss(labels, predictions):
    return tf.reduce_mean(tf.square(tf.reshape(labels, [-1, 1]) - predictions))
def optimizer():
    return tf.keras.optimizers.SGD(0.0001)
def eval_metrics_fn():
    return {"mae": lambda labels, predictions: tf.abs(tf.reshape(labels, [-1, 1]) - predictions)}
"""
TORCH = """
import functools, numpy as np, torch
def forward():
    return torch.nn.Sequential(torch.nn.Linear(2, 1), torch.nn.Flatten(0))
def loss(labels, predictions):
    return torch.nn.functional.mse_loss(predictions, labels)
def optimizer():
    return functools.partial(torch.optim.SGD, lr=0.0001)
def eval_metrics_fn():
    return {"mae": lambda labels, predictions: (labels - predictions).abs()}
"""
COLUMNS = """
def feed(columns, mode, metadata):
    x = np.stack([columns["a"], columns["b"]], 1).astype(np.float32)
    return x if mode == "prediction" else (x, columns["y"])
"""
RECORDS = {
    "tensorflow": """
def feed(dataset, mode, metadata):
    def parse(row):
        x = tf.stack([tf.cast(row["a"], tf.float32), tf.cast(row["b"], tf.float32)])
        return x if mode == "prediction" else (x, row["y"])
    return dataset.map(parse)
""",
    "torch": """
def feed(dataset, mode, metadata):
    for row in dataset:
        x = torch.tensor([float(row["a"]), float(row["b"])])
        yield x if mode == "prediction" else (x, torch.tensor(float(row["y"])))
""",
}


@pytest.mark.parametrize("framework", FRAMEWORKS)
def test_a_job_trains_evaluates_and_predicts_as_with_records(framework: str, table: Path, tmp_path: Path) -> None:
    found = {}
    for name, feed in (("columns", COLUMNS), ("records", RECORDS[framework])):
        module = tmp_path / f"{name}_{framework}.py"
        module.write_text({"tensorflow": TENSORFLOW, "torch": TORCH}[framework] + feed)
        events: list[dict[str, Any]] = []
        spec = {
            "model_def": f"{module.stem}.forward", "model_zoo": str(tmp_path), "training_data": str(table),
            "validation_data": str(table), "export_formats": "", "minibatch_size": 8, "num_epochs": 2,
        }  # fmt: skip
        run_local(JobSpec.from_mapping(spec), tmp_path / name, events.append)
        found[name] = events[-1]
    assert found["columns"]["metrics"] == pytest.approx(found["records"]["metrics"], rel=1e-5)
    assert found["columns"]["records"] == found["records"]["records"] == 2 * ROWS

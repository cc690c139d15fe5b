"""Rows about data: every reader, files of every form, tasks of every size."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from tests.differential.data import (
    columns,
    headed,
    image_files,
    maxcompute_table,
    parquet_files,
    recordio_files,
    sample_archives,
    several_files,
    table,
    tfrecord_files,
    write_csv,
)
from tests.differential.driver import Row
from tests.differential.zoo import module

EXAMPLE = """
def parse(record):
    given = tf.io.parse_single_example(record, {
        "x": tf.io.FixedLenFeature([4], tf.float32),
        "y": tf.io.FixedLenFeature([1], tf.float32),
    })
    return given
"""
PARQUET = """
def parse(record):
    ids = tf.cast(record["ids"], tf.float32)
    return {
        "x": tf.stack([record["x0"], record["x1"], tf.reduce_sum(ids) / 50.0, tf.cast(record["word"] == "red", tf.float32)]),
        "y": tf.reshape(tf.cast(record["y"], tf.float32), [1]),
    }
"""
COLUMNS = """
def feed(columns, mode, metadata):
    ids = np.array([np.sum(one) for one in columns["ids"]], np.float32) / 50.0
    red = (columns["word"] == "red").astype(np.float32)
    x = np.stack([columns["x0"], columns["x1"], ids, red], 1).astype(np.float32)
    return x if mode == "prediction" else (x, columns["y"].astype(np.float32)[:, None])
"""
CELLS = """
def feed(columns, mode, metadata):
    x = np.stack([columns[f"x{number}"] for number in range(4)], 1).astype(np.float32)
    return x if mode == "prediction" else (x, columns["y"].astype(np.float32)[:, None])
"""
IMAGES = """
from elasticdl.data import decode_image


def parse(record):
    pixels = tf.cast(decode_image(record["image"], (2, 2), channels=1), tf.float32) / 255.0
    return {"x": tf.reshape(pixels, [4]), "y": tf.reshape(tf.cast(record["label"], tf.float32), [1])}
"""
SAMPLES = """
def parse(record):
    numbers = tf.ensure_shape(tf.strings.to_number(tf.strings.split(record["txt"], ","), tf.float32), [5])
    return {"x": numbers[1:], "y": numbers[:1]}
"""
NUMBERS = """
def parse(record):
    return {"x": tf.stack([record[f"x{number}"] for number in range(4)]), "y": tf.reshape(record["y"], [1])}
"""
LINES = """
def feed(dataset, mode, metadata):
    return give("x")(dataset.map(lambda line: tf.strings.split(line, ",")).map(lambda r: tf.ensure_shape(r, [10])), mode, metadata)
"""
READER = """
from elasticdl.data import Shard


class Lines:
    metadata = None

    def __init__(self, origin):
        self.lines = open(origin).read().splitlines()

    def create_shards(self):
        half = len(self.lines) // 2
        return {shards}

    def read_records(self, task):
        for line in self.lines[task.start : task.end]:
            yield line


def custom_data_reader(data_origin, records_per_task=None, **params):
    return Lines(data_origin)
"""


def row(name: str, *parts: str, **more: object) -> Row:
    """A row of this file."""
    return Row(name, module(*parts), "readers", **more)  # type: ignore[arg-type]


def reader(shards: str) -> str:
    """A reader of the module's own."""
    return READER.replace("{shards}", shards) + LINES


def ragged(place: Path, alike: bool) -> Mapping[str, Any]:
    """A number of records that no task and no minibatch divides."""
    write_csv(place / "train.csv", table(alike=alike)[:43])
    return {"training_data": str(place / "train.csv")}


def carriage_returns(place: Path, alike: bool) -> Mapping[str, Any]:
    """Lines as Windows ends them."""
    (place / "train.csv").write_text("".join(",".join(record) + "\r\n" for record in table(alike=alike)), newline="")
    return {"training_data": str(place / "train.csv")}


ROWS = [
    row("csv_several_files", data=several_files),
    row(
        "csv_default_feed",
        "del feed",
        data=headed,
        spec={"data_reader_params": {"label": "y", "columns": ["x0", "x1", "x2", "x3", "y"]}},
    ),
    row(
        "csv_columns",
        "def parse(record):\n    n = tf.strings.to_number(record, tf.float32)\n    return {'x': n[1:], 'y': n[:1]}",
        data=headed,
        spec={"data_reader_params": {"columns": ["y", "x3", "x2", "x1", "x0"]}},
    ),
    row("csv_crlf", data=carriage_returns),
    row("csv_ragged", data=ragged, two=""),
    row("csv_one_record_tasks", spec={"minibatch_size": 1, "num_minibatches_per_task": 1, "num_epochs": 2}, two=""),
    row("csv_large_minibatch", spec={"minibatch_size": 100}, two=""),
    row("tfrecord", EXAMPLE, data=tfrecord_files),
    row("recordio", EXAMPLE, data=recordio_files),
    row("text", LINES, spec={"data_reader_params": {"kind": "text"}}),
    row("parquet", PARQUET, data=parquet_files),
    row("parquet_columns", COLUMNS, data=parquet_files),
    row("parquet_columns_shuffled", COLUMNS, data=parquet_files, spec={"shuffle": True}, two=""),
    row("csv_as_columns", CELLS, data=headed),
    row("webdataset", SAMPLES, data=sample_archives),
    row("maxcompute", NUMBERS, data=maxcompute_table),
    row("images", IMAGES, data=image_files),
    row("custom_reader_dict", reader('{"first": (0, half), "second": (half, len(self.lines) - half)}'), two=""),
    row("custom_reader_list", reader('[Shard("all", 0, half), Shard("all", half, len(self.lines))]')),
    row(
        "custom_reader_named",
        reader('[Shard("all", 0, half), Shard("all", half, len(self.lines))]').replace(
            "custom_data_reader(", "my_reader("
        ),
        spec={"custom_data_reader": "my_reader"},
    ),
    row("missing_data", data=lambda place, alike: {"training_data": str(place / "none.csv")}, refused="none.csv"),
    row("bad_number", data=lambda place, alike: _broken(place), refused="oops"),
    row("unknown_parameter", spec={"data_reader_params": {"separator": ";"}}, refused="separator"),
    row("shuffled", spec={"shuffle": True}, two=""),
    row("shuffled_many_tasks", spec={"shuffle": True, "num_minibatches_per_task": 1, "num_epochs": 3}, two=""),
    row("shuffled_files", spec={"shuffle": True}, data=several_files, two=""),
    row("other_seed", spec={"shuffle": True, "seed": 77}, two=""),
]


def _broken(place: Path) -> Mapping[str, Any]:
    fields = columns(place, False)
    path = Path(fields["training_data"])
    lines = path.read_text().splitlines()
    lines[20] = lines[20].replace(lines[20].split(",")[3], "oops", 1)
    path.write_text("\n".join(lines) + "\n")
    return fields

"""The data that rows train on: numbers, ids and words with two labels, in every format that the product reads."""

from __future__ import annotations

import contextlib
import functools
import io
import os
import tarfile
import uuid
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np

from tests.fakes.maxcompute import ENVIRONMENT, PROJECT, FakeMaxCompute, serving_maxcompute

MINIBATCH, MINIBATCHES = 8, 6
NAMES = ("y", "c", "x0", "x1", "x2", "x3", "i0", "i1", "i2", "word")
WORDS = ("red", "green", "blue", "grey", "pink")
IDS = 50


def table(*, alike: bool = False, seed: int = 0) -> list[list[str]]:
    """Records as text; with ``alike`` every minibatch holds the same ones."""
    rng = np.random.default_rng(seed)
    count = MINIBATCH if alike else MINIBATCH * MINIBATCHES
    x = rng.normal(size=(count, 4)).round(4)
    ids = rng.integers(0, IDS, (count, 3)) ** 2 // IDS
    words = rng.integers(0, len(WORDS), count)
    y = (x @ [0.5, -0.3, 0.2, 0.1] + 0.1 * np.sin(ids).sum(1) + 0.1 * words).round(4)
    c = (x.sum(1) > 0).astype(int) + (y > 0.4).astype(int)
    records = [
        [f"{y[i]}", f"{c[i]}", *map(str, x[i].tolist()), *map(str, ids[i].tolist()), WORDS[words[i]]]
        for i in range(count)
    ]
    return records * (MINIBATCHES if alike else 1)


def columns(place: Path, alike: bool) -> Mapping[str, Any]:
    """A CSV file without a header."""
    write_csv(place / "train.csv", table(alike=alike))
    return {"training_data": str(place / "train.csv")}


def late(place: Path, alike: bool) -> Mapping[str, Any]:
    """The same, with the label -9 for all but the last two minibatches: a mask may leave those out."""
    records = table(alike=alike)
    for record in records[: -2 * MINIBATCH]:
        record[0] = "-9"
    write_csv(place / "train.csv", records)
    return {"training_data": str(place / "train.csv")}


def validated(place: Path, alike: bool) -> Mapping[str, Any]:
    """The same, with the training data to validate on."""
    fields = columns(place, alike)
    return {**fields, "validation_data": fields["training_data"]}


def headed(place: Path, alike: bool) -> Mapping[str, Any]:
    """A CSV file whose first line names the columns."""
    write_csv(place / "train.csv", [list(NAMES), *table(alike=alike)])
    return {"training_data": str(place / "train.csv")}


def several_files(place: Path, alike: bool) -> Mapping[str, Any]:
    """Two CSV files in a folder."""
    records = table(alike=alike)
    (place / "data").mkdir()
    write_csv(place / "data" / "a.csv", records[: len(records) // 2])
    write_csv(place / "data" / "b.csv", records[len(records) // 2 :])
    return {"training_data": str(place / "data")}


def tfrecord_files(place: Path, alike: bool) -> Mapping[str, Any]:
    """Examples of TensorFlow in a TFRecord file."""
    import tensorflow as tf

    with tf.io.TFRecordWriter(str(place / "train.tfrecord")) as writer:
        for message in examples(table(alike=alike)):
            writer.write(message)
    return {"training_data": str(place / "train.tfrecord")}


def recordio_files(place: Path, alike: bool) -> Mapping[str, Any]:
    """The same in a RecordIO file."""
    from elasticdl.data import recordio

    with recordio.Writer(str(place / "train.recordio")) as writer:
        for message in examples(table(alike=alike)):
            writer.write(message)
    return {"training_data": str(place / "train.recordio")}


def parquet_files(place: Path, alike: bool) -> Mapping[str, Any]:
    """Two Parquet files of small row groups: numbers, text, and lists of as many ids as the first one says."""
    import pyarrow as pa
    import pyarrow.parquet as pq

    records = table(alike=alike)
    (place / "data").mkdir()
    for name, some in (("a", records[: len(records) // 3]), ("b", records[len(records) // 3 :])):
        numbers = {f"x{i}": pa.array([float(one[2 + i]) for one in some], pa.float32()) for i in range(2)}
        ids = [[int(number) for number in one[6:9]][: int(one[6]) % 4] for one in some]
        more = {"y": [float(one[0]) for one in some], "ids": ids, "word": [one[9] for one in some]}
        pq.write_table(pa.table({**numbers, **more}), place / "data" / f"{name}.parquet", 5)
    return {"training_data": str(place / "data")}


_servers = contextlib.ExitStack()
"""They last as long as this process."""


@functools.cache
def _maxcompute() -> FakeMaxCompute:
    """A MaxCompute for all rows, which the environment names."""
    service = _servers.enter_context(serving_maxcompute())
    os.environ.update(ENVIRONMENT, MAXCOMPUTE_ENDPOINT=service.url)
    return service


def maxcompute_table(place: Path, alike: bool) -> Mapping[str, Any]:
    """A table of MaxCompute in two partitions, ."""
    import pyarrow as pa

    records, name = table(alike=alike), f"t{uuid.uuid4().hex}"
    for day, some in (("1", records[: len(records) // 3]), ("2", records[len(records) // 3 :])):
        at = {"y": 0, **{f"x{number}": 2 + number for number in range(4)}}
        rows = {column: pa.array([float(one[field]) for one in some], pa.float32()) for column, field in at.items()}
        _maxcompute().put(name, pa.table(rows), f"dt={day}")
    return {"training_data": f"odps://{PROJECT}/{name}"}


def sample_archives(place: Path, alike: bool) -> Mapping[str, Any]:
    """Two WebDataset archives of samples with a text of five numbers."""
    records = table(alike=alike)
    (place / "data").mkdir()
    for name, start, end in (("a", 0, len(records) // 3), ("b", len(records) // 3, len(records))):
        with tarfile.open(place / "data" / f"{name}.tar", "w") as archive:
            for number in range(start, end):
                text = ",".join([records[number][0], *records[number][2:6]]).encode()
                member = tarfile.TarInfo(f"{number:03d}.txt")
                member.size = len(text)
                archive.addfile(member, io.BytesIO(text))
    return {"training_data": str(place / "data")}


def image_files(place: Path, alike: bool) -> Mapping[str, Any]:
    """Grey images of four pixels, of two classes, in a list."""
    from PIL import Image

    lines = []
    for number, record in enumerate(table(alike=alike)):
        pixels = np.array([float(value) * 40 + 128 for value in record[2:6]]).clip(0, 255).astype(np.uint8)
        Image.fromarray(pixels.reshape(2, 2)).save(place / f"{number:03d}.png")
        lines.append(f"{number:03d}.png,{'high' if float(record[0]) > 0 else 'low'}\n")
    (place / "train.csv").write_text("".join(lines))
    return {"training_data": str(place / "train.csv"), "data_reader_params": {"kind": "images"}}


def examples(records: list[list[str]]) -> list[bytes]:
    """The numbers of records as messages."""
    import tensorflow as tf

    def floats(values: list[str]) -> tf.train.Feature:
        return tf.train.Feature(float_list=tf.train.FloatList(value=[float(value) for value in values]))

    made = [{"y": floats(record[:1]), "x": floats(record[2:6])} for record in records]
    return [tf.train.Example(features=tf.train.Features(feature=one)).SerializeToString() for one in made]


def write_csv(path: Path, records: list[list[str]]) -> None:
    """Writes lines of comma separated columns."""
    path.write_text("".join(",".join(record) + "\n" for record in records))


def predictions(output: Path) -> list[np.ndarray[Any, Any]]:
    """What the SavedModel of an export says of one minibatch."""
    import tensorflow as tf

    from tests.differential.zoo import features_like

    signature = tf.saved_model.load(str(output / "saved_model")).signatures["serving_default"]
    outputs = signature(**features_like(signature.structured_input_signature[1]))
    return [np.asarray(outputs[name]) for name in sorted(outputs)]

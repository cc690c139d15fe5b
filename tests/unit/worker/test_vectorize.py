"""Feeds on whole minibatches give what they give record by record, or stay record by record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from elasticdl.data import Shard, create_data_reader, recordio
from elasticdl_worker.trainers.tensorflow.input.pipeline import InputPipeline
from elasticdl_worker.trainers.tensorflow.input.vectorize import find_map_chain
from elasticdl_worker.user_code import ModelModule

pytestmark = pytest.mark.unit


def number(columns: Any) -> Any:
    return tf.strings.to_number(columns[1:], tf.int64), tf.strings.to_number(columns[0], tf.float32)


def by_table(dataset: Any) -> Any:
    pairs = tf.lookup.KeyValueTensorInitializer(["0", "1"], [5, 7])
    table = tf.lookup.StaticHashTable(pairs, -1)
    return dataset.map(lambda columns: (table.lookup(columns), tf.strings.to_hash_bucket_fast(columns[0], 10)))


FEEDS: dict[str, tuple[Any, bool]] = {
    "numbers": (lambda d: d.map(number), True),
    "two maps": (lambda d: d.map(number).map(lambda x, y: ({"ids": x + 1}, y * 2.0)).prefetch(1), True),
    "a table and hashes": (by_table, True),
    "control flow": (lambda d: d.map(lambda c: (tf.cond(c[0] == "1", lambda: 2.0, lambda: 3.0), c[1])), True),
    "a random number": (lambda d: d.map(lambda c: (tf.random.uniform([]), number(c)[1])), False),
    "python": (lambda d: d.map(lambda c: (tf.numpy_function(len, [c], tf.int64), c[0])), False),
    "a filter": (lambda d: d.map(number).filter(lambda x, y: y > 0.5), False),
    "a counter": (lambda d: d.enumerate().map(lambda i, c: (i, number(c)[1])), False),
}


@pytest.mark.parametrize("name", list(FEEDS))
def test_minibatches_are_the_same_record_by_record(clicks: Path, name: str) -> None:
    change, whole = FEEDS[name]
    module = ModelModule(clicks, (clicks.parent,), lambda: None, feed=lambda d, mode, meta: change(d))
    reader = create_data_reader(str(clicks))
    pipeline = InputPipeline(reader, module, "training", 50)
    slow = InputPipeline(reader, module, "training", 50)
    slow._chain = None
    shard = Shard(str(clicks), 13, 188)
    got, expected = list(pipeline.minibatches(shard)), list(slow.minibatches(shard))
    assert (pipeline._whole is not None) is whole
    assert [batch.records for batch in got] == [batch.records for batch in expected]
    if name == "a random number":
        return
    for one, other in zip(got, expected, strict=True):
        tf.nest.map_structure(np.testing.assert_array_equal, one.features, other.features)
        np.testing.assert_array_equal(one.labels, other.labels)


def test_examples_are_parsed_in_one_call_before_a_shuffle(tmp_path: Path) -> None:
    """The shape of the original's modules: parse an example, then shuffle."""
    path = tmp_path / "examples.recordio"
    with recordio.Writer(str(path)) as writer:
        for i in range(100):
            feature = {"x": tf.train.Feature(float_list=tf.train.FloatList(value=[i, i / 2]))}
            writer.write(tf.train.Example(features=tf.train.Features(feature=feature)).SerializeToString())

    def feed(dataset: Any, mode: str, metadata: Any) -> Any:
        def parse(record: Any) -> Any:
            x = tf.io.parse_single_example(record, {"x": tf.io.FixedLenFeature([2], tf.float32)})["x"]
            return {"x": x / 10.0}, x[0]

        return dataset.map(parse).shuffle(1000)

    module = ModelModule(path, (tmp_path,), lambda: None, feed=feed)
    pipeline = InputPipeline(create_data_reader(str(path)), module, "training", 32)
    batches = list(pipeline.minibatches(Shard(str(path), 0, 100)))
    assert pipeline._whole is not None
    assert not pipeline.ordered
    assert [batch.records for batch in batches] == [32, 32, 32, 4]
    labels = np.concatenate([batch.labels for batch in batches])
    assert sorted(labels.tolist()) == list(range(100))
    assert labels.tolist() != list(range(100))
    features = np.concatenate([batch.features["x"] for batch in batches])
    np.testing.assert_allclose(features[:, 1], labels / 20.0, rtol=1e-6)


def test_a_bad_record_is_named_either_way(clicks: Path, tmp_path: Path) -> None:
    from elasticdl_core.errors import UserCodeError

    lines = clicks.read_text().splitlines()
    lines[40] = "1,2,oops,4"
    path = tmp_path / "bad.csv"
    path.write_text("\n".join(lines) + "\n")
    module = ModelModule(path, (tmp_path,), lambda: None, feed=lambda d, mode, meta: d.map(number))
    pipeline = InputPipeline(create_data_reader(str(path)), module, "training", 32)
    with pytest.raises(UserCodeError, match="oops"):
        list(pipeline.minibatches(Shard(str(path), 0, 100)))


def test_ragged_records_stay_record_by_record() -> None:
    source = tf.data.Dataset.from_tensors(["a b"])
    assert find_map_chain(source.map(lambda text: tf.strings.split(text)), source) is None

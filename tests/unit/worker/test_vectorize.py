"""Feeds on whole minibatches give what they give record by record, or stay record by record."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import structlog
import tensorflow as tf

from elasticdl.data import Shard, create_data_reader, recordio
from elasticdl_core.errors import UserCodeError
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


def dated(columns: Any) -> Any:
    parts = tf.strings.split(tf.strings.join(["2024", columns[0], columns[1]], separator="-"), "-")
    return tf.strings.to_number(parts[0], tf.int64) * 12 + tf.strings.to_number(parts[1], tf.int64), columns[0]


FEEDS: dict[str, tuple[Any, bool]] = {
    "numbers": (lambda d: d.map(number), True),
    "two maps": (lambda d: d.map(number).map(lambda x, y: ({"ids": x + 1}, y * 2.0)).prefetch(1), True),
    "a table and hashes": (by_table, True),
    "control flow": (lambda d: d.map(lambda c: (tf.cond(c[0] == "1", lambda: 2.0, lambda: 3.0), c[1])), True),
    "a split text": (
        lambda d: d.map(lambda c: (tf.strings.split(tf.strings.join([c[0], "-", c[1]]), "-"), c[0])),
        True,
    ),
    "a split of several": (
        lambda d: d.map(lambda c: (tf.strings.split(c[:2] + "-x", "-").flat_values, c[0])),
        True,
    ),
    "a date": (lambda d: d.map(dated), True),
    "parts of texts": (lambda d: d.map(lambda c: (tf.strings.substr(c + "abc", [1] * 4, [2] * 4), c[0])), True),
    "a part of one": (lambda d: d.map(lambda c: (tf.strings.substr(c[1] + "abc", 1, 2), c[0])), True),
    "joined": (lambda d: d.map(lambda c: (tf.strings.join([c, c[0], "x"], separator="+"), c[0])), True),
    "a random number": (lambda d: d.map(lambda c: (tf.random.uniform([]), number(c)[1])), False),
    "python": (lambda d: d.map(lambda c: (tf.numpy_function(len, [c], tf.int64), c[0])), False),
    "a filter": (lambda d: d.map(number).filter(lambda x, y: y > 0.5), False),
}


@pytest.mark.rotates(turns=3)
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


def pipeline_of(path: Path, change: Any, size: int = 64) -> InputPipeline:
    module = ModelModule(path, (path.parent,), lambda: None, feed=lambda d, mode, meta: change(d))
    return InputPipeline(create_data_reader(str(path)), module, "training", size)


def values_of(batches: Any) -> list[Any]:
    return [np.asarray(value) for batch in batches for value in tf.nest.flatten((batch.features, batch.labels))]


def doubled(column: Any) -> Any:
    """What TensorFlow cannot vectorize: Python, and shapes that follow from the record."""
    row = tf.numpy_function(lambda text: np.float32([float(text), 2 * float(text)]), [column[1]], tf.float32)
    size = tf.cast(tf.strings.length(column[0]) + 1, tf.int32)
    return tf.ensure_shape(row, [2]), tf.reshape(tf.strings.to_number(column[1:3]), [size])


GROUPED = {
    **{name: (change, True) for name, (change, _) in FEEDS.items()},
    "own shapes and python": (lambda d: d.map(doubled), True),
    "python in threads": (lambda d: d.map(doubled, num_parallel_calls=2).prefetch(1), True),
    "a random number": (FEEDS["a random number"][0], False),
    "a filter": (FEEDS["a filter"][0], False),
}


@pytest.mark.rotates(turns=3)
@pytest.mark.parametrize("name", list(GROUPED))
def test_members_of_a_group_read_the_same_without_a_dataset_for_each_microbatch(clicks: Path, name: str) -> None:
    change, without = GROUPED[name]
    pipeline, slow = pipeline_of(clicks, change), pipeline_of(clicks, change)
    slow._chain = None
    if without:
        # Whoever iterates the dataset builds a pipeline of TensorFlow's, which takes longer than a step.
        pipeline._dataset = None  # type: ignore[assignment]
    for number, start in enumerate((13, 45, 0)):
        shard = Shard(str(clicks), start, start + 32)
        found = values_of(pipeline.seeded_minibatches(shard, None, number))
        assert pipeline.intake.fed == len(found[0])
        if name != "a random number":
            for one, other in zip(found, values_of(slow.minibatches(shard)), strict=True):
                np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("buffer", [1000, 7])
@pytest.mark.parametrize("change", [number, doubled], ids=["whole", "one by one"])
def test_the_order_of_a_shuffle_follows_from_the_seed(clicks: Path, buffer: int, change: Any) -> None:
    shard = Shard(str(clicks), 40, 72)

    def shuffled(seed: int, others: int = 0) -> Any:
        pipeline = pipeline_of(clicks, lambda d: d.map(change).shuffle(buffer))
        for other in range(others):
            list(pipeline.seeded_minibatches(Shard(str(clicks), 0, 10), None, other))
        pipeline._dataset = None  # type: ignore[assignment]
        return values_of(pipeline.seeded_minibatches(shard, None, seed))

    features, labels = shuffled(5)
    plain = values_of(pipeline_of(clicks, lambda d: d.map(change)).minibatches(shard))
    rows = [(*np.ravel(x), *np.ravel(y)) for x, y in zip(features, labels, strict=True)]
    straight = [(*np.ravel(x), *np.ravel(y)) for x, y in zip(*plain, strict=True)]
    assert sorted(rows) == sorted(straight) and rows != straight
    assert all(straight.index(row) < place + buffer for place, row in enumerate(rows)), "no further than the buffer"
    np.testing.assert_array_equal(shuffled(5, others=3)[0], features)
    assert not np.array_equal(shuffled(6)[0], features)


def test_a_bad_record_is_named_by_members_of_a_group(clicks: Path, tmp_path: Path) -> None:
    lines = clicks.read_text().splitlines()
    lines[40] = "1,oops,3,4"
    path = tmp_path / "bad.csv"
    path.write_text("\n".join(lines) + "\n")
    pipeline = pipeline_of(path, lambda d: d.map(doubled))
    list(pipeline.seeded_minibatches(Shard(str(path), 0, 32), None, 1))
    with pytest.raises(UserCodeError, match="oops"):
        list(pipeline.seeded_minibatches(Shard(str(path), 32, 64), None, 1))


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


def texts(tmp_path: Path, lines: list[str]) -> Path:
    path = tmp_path / "texts.csv"
    path.write_text("text,label\n" + "".join(f"{line},{number}\n" for number, line in enumerate(lines)))
    return path


@pytest.mark.parametrize(
    "change",
    [
        lambda c: (tf.strings.split(c[0], "-")[0], c[1]),
        lambda c: (tf.io.decode_raw(c[0], tf.uint8)[:2], c[1]),
    ],
    ids=["split", "decode_raw"],
)
def test_a_minibatch_that_fails_as_a_whole_is_made_record_by_record(tmp_path: Path, change: Any) -> None:
    path = texts(tmp_path, ["ab-cd"] * 8 + ["abc", "abcd-e-f"] + ["ab-cd"] * 6)
    pipeline = pipeline_of(path, lambda d: d.map(change), 4)
    slow = pipeline_of(path, lambda d: d.map(change), 4)
    slow._chain = None
    shard = Shard(str(path), 0, 16)
    found, expected = (values_of(one.minibatches(shard)) for one in (pipeline, slow))
    assert pipeline._whole is not None
    for one, other in zip(found, expected, strict=True):
        np.testing.assert_array_equal(one, other)


@pytest.mark.parametrize("sizes", [[4] * 20, [4] * 9 + [5] * 11], ids=["of one size", "of two"])
def test_images_are_decoded_by_the_minibatch(tmp_path: Path, sizes: list[int]) -> None:
    path = tmp_path / "images.recordio"
    with recordio.Writer(str(path)) as writer:
        for number, size in enumerate(sizes):
            pixels = tf.cast(tf.fill([size, 4, 1], number), tf.uint8)
            writer.write(tf.io.encode_png(pixels).numpy())

    def cut(record: Any) -> Any:
        return tf.io.decode_png(record, 1)[:4], tf.strings.length(record)

    found = values_of(pipeline_of(path, lambda d: d.map(cut), 5).minibatches(Shard(str(path), 0, 20)))
    assert [int(value[0, 0, 0]) for batch in found[::2] for value in batch] == list(range(20))


def test_a_record_that_no_way_can_make_is_still_the_feed_s(tmp_path: Path) -> None:
    path = texts(tmp_path, ["1"] * 8 + ["x"] * 2)
    pipeline = pipeline_of(path, lambda d: d.map(lambda c: (tf.strings.to_number(c[0]), c[1])), 4)
    with pytest.raises(UserCodeError, match="could not correctly convert string: x"):
        list(pipeline.minibatches(Shard(str(path), 0, 10)))


@pytest.mark.parametrize(
    ("operation", "cells", "reason"),
    [
        (
            lambda text: tf.strings.unicode_decode(text, "UTF-8")[0],
            ["ab"] * 9,
            "the operation UnicodeDecode ({}) is done",
        ),
        (
            lambda text: tf.size(tf.strings.split(text)),
            ["a b"] * 4 + ["a"] * 5,
            "what StringSplit ({}) gives differs",
        ),
    ],
)
def test_it_is_said_which_operation_of_which_line_is_done_record_by_record(
    tmp_path: Path, operation: Any, cells: list[str], reason: str
) -> None:
    path = texts(tmp_path, cells)
    with structlog.testing.capture_logs() as logs:
        list(
            pipeline_of(path, lambda d: d.map(lambda c: (operation(c[0]), c[1]))).minibatches(Shard(str(path), 0, 9))
        )
    (said,) = (entry for entry in logs if entry["event"] == "feed runs record by record")
    assert said["log_level"] == "warning", "local runs show no more"
    assert said["reason"].startswith(reason.format(f"test_vectorize.py, line {operation.__code__.co_firstlineno}"))


def test_it_is_said_of_a_minibatch_too(tmp_path: Path) -> None:
    path = texts(tmp_path, ["a b"] * 40 + ["a"])
    with structlog.testing.capture_logs() as logs:
        pipeline = pipeline_of(path, lambda d: d.map(lambda c: (tf.size(tf.strings.split(c[0])), c[1])), 41)
        list(pipeline.minibatches(Shard(str(path), 0, 41)))
    assert [one["reason"] for one in logs if "StringSplit (test_vectorize.py, line" in one.get("reason", "")] != []

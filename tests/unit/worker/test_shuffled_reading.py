"""Records in the order of the plan: what workers read, and what it is worth."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.data import DataReader, Shard, create_data_reader, recordio, tfrecord
from elasticdl.data.generate import load_digits
from elasticdl_core.errors import UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_core.shuffling import RecordOrder, cut
from elasticdl_core.task import Task, TaskId, TaskType
from elasticdl_master import servicer
from elasticdl_worker.group.entries import entry_of, lease_of
from elasticdl_worker.master import client
from elasticdl_worker.master.client import LeasedTask
from elasticdl_worker.reporting.traces import TraceWriter
from elasticdl_worker.trainers.shuffled import ShuffledRecords
from elasticdl_worker.trainers.tensorflow.input.pipeline import InputPipeline
from elasticdl_worker.user_code import load_model_module

pytestmark = pytest.mark.unit

RECORDS = 700
SOFTMAX = """
import tensorflow as tf
def forward():
    return tf.keras.Sequential([tf.keras.Input((64,)), tf.keras.layers.Dense(10)])
def loss(labels, predictions):
    return tf.keras.losses.sparse_categorical_crossentropy(labels, predictions, from_logits=True)
def optimizer():
    return tf.keras.optimizers.SGD(0.1)
def feed(dataset, mode, metadata):
    def parse(row):
        numbers = tf.strings.to_number(row)
        return numbers[1:] / 16.0, tf.cast(numbers[0], tf.int64)
    return dataset.map(parse)
def eval_metrics_fn():
    return {"accuracy": tf.keras.metrics.SparseCategoricalAccuracy()}
"""


class Numbers:
    """A custom reader of two sources that notes which ranges it was asked for."""

    def __init__(self) -> None:
        self.asked: list[tuple[str, int, int]] = []

    def create_shards(self) -> dict[str, tuple[int, int]]:
        return {"a": (0, 500), "b": (100, 200)}

    def read_records(self, task: Any) -> Any:
        self.asked.append((task.name, task.start, task.end))
        return (f"{task.name}{number}".encode() for number in range(task.start, task.end))


def make_reader(kind: str, folder: Path) -> DataReader:
    if kind == "custom":
        return create_data_reader("", custom=Numbers())
    texts = [f"{number},x" for number in range(RECORDS)]
    path = folder / f"data.{kind}"
    if kind == "csv":
        path.write_text("\n".join(texts) + "\n")
    else:
        with (recordio.Writer if kind == "recordio" else tfrecord.TFRecordWriter)(path) as writer:
            for text in texts:
                writer.write(text.encode())
    return create_data_reader(str(path), 128)


@pytest.mark.parametrize("kind", ["csv", "recordio", "tfrecord", "custom"])
def test_every_reader_gives_each_record_once_in_an_order_of_its_own(kind: str, tmp_path: Path) -> None:
    reader = make_reader(kind, tmp_path)
    parts = cut(reader.create_shards(), 128)
    order = RecordOrder(seed=1)
    order.extend(parts)
    seen: list[Any] = []
    for index, part in enumerate(parts):
        batches = list(ShuffledRecords(reader).read_batches(part, order.reading(0, index, part.start, part.end), 50))
        assert [len(batch) for batch in batches[:-1]] == [50] * (len(batches) - 1)
        seen += [str(record) for batch in batches for record in batch]
    straight = [str(record) for part in parts for record in reader.read_records(part)]
    assert len(seen) == RECORDS
    assert sorted(seen) == sorted(straight)
    assert seen != straight


def test_a_record_that_is_passed_over_does_not_move_the_others(tmp_path: Path) -> None:
    """The rest of a task must begin where its front ended."""
    path = tmp_path / "some.csv"
    path.write_text("".join(f"{number},x\n" if number % 7 else f"{number}\n" for number in range(1, 301)))
    reader = create_data_reader(str(path), 300, {"on_corrupt": "skip", "with_header": False})
    order = RecordOrder(seed=1)
    order.extend([Shard(str(path), 0, 300)])

    passed_over: list[int] = []

    def numbers(start: int, end: int) -> list[str]:
        shard, reading = Shard(str(path), start, end), order.reading(0, 0, start, end)
        batches = ShuffledRecords(reader).read_batches(shard, reading, 64, on_skipped=passed_over.append)
        return [row[0] for batch in batches for row in batch]

    whole = numbers(0, 300)
    assert sorted(map(int, whole)) == [number for number in range(1, 301) if number % 7]
    assert sum(passed_over) == 300 // 7
    assert numbers(0, 111) + numbers(111, 300) == whole
    assert sum(passed_over) == 2 * (300 // 7)


@pytest.mark.parametrize("block", [0, 12])
def test_who_reads_in_small_parts_reads_each_window_once(block: int) -> None:
    """As members of a group do, a microbatch at a time; what is done again is read again."""
    numbers = Numbers()
    reader = create_data_reader("", custom=numbers)
    parts = cut(reader.create_shards(), 200)
    order = RecordOrder(1, block)
    order.extend(parts)
    reading = order.reading(0, 0, 0, 200)
    whole = [one for batch in ShuffledRecords(reader).read_batches(parts[0], reading, 200) for one in batch]
    numbers.asked.clear()
    records = ShuffledRecords(reader)

    def read(start: int, end: int) -> list[Any]:
        return [one for batch in records.read_batches(Shard("a", start, end), reading, 1 << 30) for one in batch]

    assert [one for start in range(0, 200, 30) for one in read(start, min(start + 30, 200))] == whole
    asked = [(name, number) for name, start, end in numbers.asked for number in range(start, end)]
    assert len(asked) == len(set(asked)), "each record was read once"
    known = len(numbers.asked)
    assert read(60, 90) == whole[60:90]
    assert len(numbers.asked) > known, "a record is given once: whoever gets it may change it"


@pytest.mark.parametrize("block", [0, 5])
def test_readings_are_the_same_at_a_worker_and_at_the_other_members_of_its_group(block: int) -> None:
    order = RecordOrder(1, block)
    order.extend(cut([Shard("a", 0, 95), Shard("b", 10, 20)], 40))
    reading = order.reading(1, 1, 43, 80, 3)
    told = client._reading(servicer._reading(reading))
    assert told == reading
    task = Task(TaskId(TaskType.TRAINING, 1, 1, 43, 80), Shard("a", 43, 80), reading=told)
    assert lease_of(entry_of(LeasedTask(task, "1.1.1"))).task == task


def test_parts_of_a_window_count_their_own_records_that_are_passed_over(tmp_path: Path) -> None:
    path = tmp_path / "some.csv"
    path.write_text("".join(f"{number},x\n" if number % 7 else f"{number}\n" for number in range(1, 301)))
    reader = create_data_reader(str(path), 300, {"on_corrupt": "skip", "with_header": False})
    order = RecordOrder(seed=1)
    order.extend([Shard(str(path), 0, 300)])
    reading = order.reading(0, 0, 0, 300)
    records, found, passed_over = ShuffledRecords(reader), list[str](), list[int]()
    for start in range(0, 300, 25):
        shard = Shard(str(path), start, start + 25)
        for batch in records.read_batches(shard, reading, 1 << 30, on_skipped=passed_over.append):
            found += [row[0] for row in batch]
    assert len(passed_over) == 12 and sum(passed_over) == 300 // 7 and max(passed_over) < 25
    assert sorted(map(int, found)) == [number for number in range(1, 301) if number % 7]


def test_a_trace_names_the_very_records(tmp_path: Path) -> None:
    order = RecordOrder(seed=1)
    order.extend([Shard("a", 0, 400), Shard("b", 0, 100)])
    id_ = TaskId(TaskType.TRAINING, 0, 0, 0, 400)
    task = Task(id_, Shard("a", 0, 400), reading=order.reading(0, 0, 0, 400))
    traces = TraceWriter(tmp_path, "worker-0.0")
    traces.append(task, "1.1.1", 0, 250)
    traces.append(task, "1.1.1", 250, 400)
    traces.close()
    lines = [json.loads(line) for line in (tmp_path / "traces" / "worker-0.0.jsonl").read_text().splitlines()]
    assert [(line["start"], line["end"]) for line in lines] == [(0, 250), (250, 400)]
    named = [
        (name, at) for line in lines for name, ranges in line["records"].items() for lo, hi in ranges
        for at in range(lo, hi)
    ]  # fmt: skip
    assert len(named) == len(set(named)) == 400
    assert {name for name, _ in named} == {"a", "b"}


def test_an_error_of_feed_names_the_records_that_it_was_given(tmp_path: Path) -> None:
    (tmp_path / "softmax.py").write_text(SOFTMAX)
    paths = [tmp_path / f"{name}.csv" for name in "ab"]
    for path in paths:
        path.write_text("1,2\n" * 8 + "1,x\n" * 56)
    reader = create_data_reader(",".join(map(str, paths)), 64, {"with_header": False})
    spec = JobSpec(model_def="softmax.forward", model_zoo=str(tmp_path))
    pipeline = InputPipeline(reader, load_model_module(spec, tmp_path), "training", 32)
    order = RecordOrder(seed=1)
    order.extend(parts := cut(reader.create_shards(), 64))
    reading = order.reading(0, 0, 0, 64)
    with pytest.raises(UserCodeError) as caught:
        list(pipeline.minibatches(parts[0], reading))
    first = reading.records(0, 64)[0]
    assert f"records {first.start} to {first.end} of {first.name}" in caught.value.message
    assert "other ranges" in caught.value.message


@pytest.fixture(scope="module")
def digits() -> Any:
    images, labels = load_digits()
    return np.column_stack([labels, images.reshape(-1, 64).astype(np.int64)])


def write_rows(path: Path, rows: Any) -> str:
    path.write_text("".join(",".join(map(str, row)) + "\n" for row in rows.tolist()))
    return str(path)


def accuracy(zoo: Path, training: str, validation: str, *, shuffle: bool) -> float:
    from elasticdl_worker.local import run_local

    events: list[dict[str, Any]] = []
    spec = JobSpec(
        model_def="softmax.forward", model_zoo=str(zoo), training_data=training, validation_data=validation,
        data_reader_params={"with_header": False}, minibatch_size=32, num_minibatches_per_task=8, num_epochs=8,
        shuffle=shuffle, export_formats="",
    )  # fmt: skip
    run_local(spec, zoo / "out", events.append)
    return float(events[-1]["metrics"]["accuracy"])


def test_data_sorted_by_class_trains_as_well_as_shuffled_data(tmp_path: Path, digits: Any) -> None:
    (tmp_path / "softmax.py").write_text(SOFTMAX)
    rows = digits[np.random.default_rng(0).permutation(len(digits))]
    validation = write_rows(tmp_path / "validation.csv", rows[:300])
    mixed = write_rows(tmp_path / "mixed.csv", rows[300:])
    by_class = write_rows(tmp_path / "sorted.csv", rows[300:][np.argsort(rows[300:, 0], kind="stable")])
    folder = tmp_path / "folder"
    folder.mkdir()
    for label in range(10):  # the form of an image folder: one file a class
        write_rows(folder / f"{label}.csv", rows[300:][rows[300:, 0] == label])
    expected = accuracy(tmp_path, mixed, validation, shuffle=False)
    assert expected > 0.85
    assert accuracy(tmp_path, by_class, validation, shuffle=False) < expected - 0.1
    assert accuracy(tmp_path, by_class, validation, shuffle=True) > expected - 0.05
    assert accuracy(tmp_path, str(folder), validation, shuffle=True) > expected - 0.05

"""Records that are passed over: those of bad minibatches, and unreadable ones; the same words locally."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl_core.errors import DataError, UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_core.skips import Skip, SkipReason, Skips, doublings
from elasticdl_worker.local import run_local
from elasticdl_worker.loop import ExitReason
from elasticdl_worker.parameters import StateChange
from elasticdl_worker.trainers.not_finite import NanPolicy, NotFiniteError, find_not_finite
from tests.fakes.master import FakeMaster
from tests.fakes.parameters import MemoryParameters
from tests.unit.worker.test_ps_training import add_training, work

pytestmark = pytest.mark.unit
MODEL = """
import keras
import tensorflow as tf

from elasticdl.data import DataReader


def custom_model():
    inputs = keras.Input((1,))
    hidden = keras.layers.Dense(1, kernel_initializer="ones")(inputs)
    hidden = keras.layers.BatchNormalization(trainable=False)(hidden)
    return keras.Model(inputs, hidden)


def loss(labels, predictions):
    # At a label of 1 the loss is 0, and the gradient of the root is none.
    distance = tf.abs(predictions[:, 0]) * tf.where(labels > 0.5, 0.0, labels)
    return tf.reduce_mean(tf.where(labels == 1.0, tf.sqrt(distance), predictions[:, 0] ** 2 + labels))


def optimizer():
    return keras.optimizers.SGD(0.1)


def feed(dataset, mode, metadata):
    def split(row):
        numbers = tf.strings.to_number(row)
        return numbers[:1] if mode == "prediction" else (numbers[:1], numbers[1])

    return dataset.map(split)


def eval_metrics_fn():
    return {"zero": lambda labels, predictions: tf.zeros_like(labels)}
"""
BAD = {"loss": "nan", "gradient": "1"}
WORDS = {"loss": "the loss is nan in", "gradient": "is not finite (the loss is"}


def write(folder: Path, records: int = 64, bad: dict[int, str] | None = None) -> Path:
    folder.mkdir(parents=True, exist_ok=True)
    rows = [f"{0.01 * i:.2f},0" for i in range(records)]
    for at, label in (bad or {}).items():
        rows[at] = f"0.5,{label}"
    path = folder / "train.csv"
    path.write_text("x,y\n" + "\n".join(rows) + "\n")
    return path


def spec_of(folder: Path, data: Path, **fields: Any) -> JobSpec:
    (folder / "zoo").mkdir(parents=True, exist_ok=True)
    (folder / "zoo" / "roots.py").write_text(MODEL)
    base = {
        "model_zoo": str(folder / "zoo"),
        "model_def": "roots.custom_model",
        "training_data": str(data),
        "minibatch_size": 8,
        "num_minibatches_per_task": 4,
        "shuffle": False,
        "export_formats": "",
    }
    return JobSpec.from_mapping(base | fields)


async def on_cluster(spec: JobSpec, folder: Path) -> tuple[FakeMaster, MemoryParameters]:
    master, parameters = FakeMaster(spec, folder), MemoryParameters()
    await master.start()
    try:
        add_training(master, spec)
        assert await work(master, parameters) is ExitReason.FINISHED
    finally:
        await master.stop()
    return master, parameters


@pytest.mark.parametrize("what", ["loss", "gradient"])
@pytest.mark.parametrize("steps", [1, 3])
async def test_a_bad_minibatch_fails_the_task_with_its_records(tmp_path: Path, what: str, steps: int) -> None:
    data = write(tmp_path, bad={20: BAD[what]})
    master, _ = await on_cluster(spec_of(tmp_path, data, get_model_steps=steps), tmp_path)
    (failure,) = master.failures
    assert failure.kind == "nan"
    assert WORDS[what] in failure.message
    assert f"in the minibatch of records 16 to 24 of {data}, at model version" in failure.message
    assert "--on_nan skip" in failure.fix
    assert [report.task_id for report in master.reports] == ["t:0:1:32:64"]


@pytest.mark.parametrize("what", ["loss", "gradient"])
@pytest.mark.parametrize("steps", [1, 3])
async def test_a_bad_minibatch_is_left_out_and_counted(tmp_path: Path, what: str, steps: int) -> None:
    data = write(tmp_path, bad={20: BAD[what], 21: BAD[what]})
    master, parameters = await on_cluster(spec_of(tmp_path, data, get_model_steps=steps, on_nan="skip"), tmp_path)
    assert not master.failures
    first, second = (report.account for report in master.reports)
    assert (first.fed, first.applied) == (32, 24)
    (skip,) = first.skipped
    assert (skip.reason, skip.records) == ("nan", 8)
    assert skip.example.startswith(f"records 16 to 24 of {data}: ")
    assert (second.fed, second.applied, len(second.skipped)) == (32, 32, 0)
    assert all(np.isfinite(value).all() for value in parameters.dense.values())


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_local_run_says_the_same(tmp_path: Path, what: str) -> None:
    data = write(tmp_path, bad={20: BAD[what]})
    with pytest.raises(NotFiniteError) as caught:
        run_local(spec_of(tmp_path, data), tmp_path, lambda event: None)
    assert WORDS[what] in caught.value.message
    assert f"in the minibatch of records 16 to 24 of {data}, at model version 2" in caught.value.message
    assert "--on_nan skip" in caught.value.fix


@pytest.mark.parametrize("what", ["loss", "gradient"])
def test_a_local_run_leaves_out_and_counts(tmp_path: Path, what: str) -> None:
    data = write(tmp_path, bad={20: BAD[what]})
    events: list[dict[str, Any]] = []
    run_local(spec_of(tmp_path, data, on_nan="skip", validation_data=str(data)), tmp_path, events.append)
    done = events[-1]
    assert (done["records"], done["steps"]) == (56, 7)
    (skip,) = done["skipped"]
    assert (skip["of"], skip["reason"], skip["records"]) == ("main", "nan", 8)
    assert skip["example"].startswith(f"records 16 to 24 of {data}: ")
    (told,) = [event["message"] for event in events if event["event"] == "skipped"]
    assert told.startswith("8 records passed over (nan), such as records 16 to 24")
    assert np.isfinite(done["metrics"]["zero"])


async def test_corrupt_records_are_counted_with_an_example(tmp_path: Path) -> None:
    data = write(tmp_path)
    lines = data.read_text().splitlines()
    lines[1 + 40] += ",too many"
    lines[1 + 41] += ",too many"
    data.write_text("\n".join(lines) + "\n")
    spec = spec_of(tmp_path, data, data_reader_params={"on_corrupt": "skip"})
    master, _ = await on_cluster(spec, tmp_path)
    first, second = (report.account for report in master.reports)
    assert (first.fed, first.applied, len(first.skipped)) == (32, 32, 0)
    assert (second.fed, second.applied) == (30, 30)
    (skip,) = second.skipped
    assert (skip.reason, skip.records, skip.example) == ("corrupt", 2, f"record 40 of {data}")
    events: list[dict[str, Any]] = []
    run_local(spec, tmp_path, events.append)
    assert events[-1]["records"] == 62
    assert events[-1]["skipped"] == [
        {"of": "main", "reason": "corrupt", "records": 2, "example": f"record 40 of {data}"}
    ]


READER = """

class Short(DataReader):
    def __init__(self, data_origin=None, records_per_task=None, **params):
        self.given = GIVEN

    def create_shards(self):
        from elasticdl.data import Shard

        yield Shard("all", 0, 16)

    def read_records(self, task):
        for i in range(task.start, min(task.end, task.start + self.given)):
            yield ["0.5", "0"]

    @property
    def metadata(self):
        from elasticdl.data.reader import Metadata

        return Metadata()

    @property
    def records_kind(self):
        from elasticdl.data.reader import RecordSpec

        return RecordSpec("columns", 2)


def custom_data_reader(data_origin=None, records_per_task=None, **params):
    return Short(data_origin)
"""


def test_a_reader_that_gives_other_records_than_its_shards_say_is_refused(tmp_path: Path) -> None:
    spec = spec_of(tmp_path, write(tmp_path))
    (tmp_path / "zoo" / "roots.py").write_text(MODEL + READER.replace("GIVEN", "12"))
    with pytest.raises(DataError, match="gave 12 records for the range 0 to 16 of all, which has 16"):
        run_local(spec, tmp_path, lambda event: None)


def test_too_many_bad_minibatches_in_a_row_are_no_training() -> None:
    policy = NanPolicy("skip", limit=3)
    for _ in range(2):
        policy.handle("the loss is nan", "records 0 to 8 of a", 8, 5)
    policy.reset()
    for _ in range(2):
        policy.handle("the loss is nan", "records 0 to 8 of a", 8, 5)
    with pytest.raises(NotFiniteError, match="3 minibatches in a row were left out"):
        policy.handle("the loss is nan", "records 0 to 8 of a", 8, 5)


def test_what_is_not_finite_is_named_and_large_numbers_are_none_of_it() -> None:
    large = np.full(4, 3e38, np.float32)
    assert find_not_finite([1.0], {"kernel": large}, {"count": StateChange(1.0, np.array([1]))}) == ""
    broken = np.array([1, np.inf], np.float32)
    assert find_not_finite([1.0], {"kernel": broken}, {}) == "the gradient of kernel is not finite (the loss is 1)"
    assert find_not_finite([1.0], {}, {"mean": StateChange(0.9, broken)}).startswith("the new value of mean")
    assert find_not_finite([1.0], {}, {"high": StateChange(math.inf, broken)}) == ""
    assert find_not_finite([1.0], {}, {"high": StateChange(0.0, np.array([np.nan], np.float32))}).startswith(
        "the new value of high"
    )
    assert find_not_finite([1.0, float("inf")], {}, {}) == "the loss is inf"


def test_skips_add_up_and_are_told_at_each_doubling() -> None:
    one = Skips.of(SkipReason.NAN, 3, "here") + Skips.of(SkipReason.CORRUPT, 1, "there")
    two = one + Skips.of(SkipReason.NAN, 2, "later")
    assert two.reasons[SkipReason.NAN] == Skip(5, "here")
    assert two.records == 6
    assert Skips.from_json(two.to_json()) == two
    assert not Skips()
    assert doublings(Skips(), one) == [
        "1 record passed over (corrupt), such as there",
        "3 records passed over (nan), such as here",
    ]
    assert doublings(one, two) == ["5 records passed over (nan), such as here"]
    assert doublings(two, two + Skips.of(SkipReason.NAN, 1)) == []


FEEDS = {
    "repeats": "dataset.map(split).flat_map(lambda x, y: tf.data.Dataset.from_tensors((x, y)).repeat(2))",
    "filters": "dataset.map(split).filter(lambda x, y: tf.cast(tf.round(x[0] * 100), tf.int32) % 2 == 0)",
}


@pytest.mark.parametrize(("feed", "fed", "left_out", "filtered"), [("repeats", 64, 4, 0), ("filters", 16, 8, 16)])
async def test_what_is_left_out_counts_in_records_where_feed_makes_other_rows(
    feed: str, fed: int, left_out: int, filtered: int, tmp_path: Path
) -> None:
    """Eight rows are four records of a feed that repeats; all counts of a job are of records."""
    data = write(tmp_path, bad={20: "nan"})
    spec = spec_of(tmp_path, data, on_nan="skip")
    (tmp_path / "zoo" / "roots.py").write_text(MODEL.replace("dataset.map(split)", FEEDS[feed]))
    master, _ = await on_cluster(spec, tmp_path)
    first = master.reports[0].account
    assert (first.fed, first.applied) == (fed, fed - 8)
    told = Skips.from_json([{"reason": one.reason, "records": one.records} for one in first.skipped])
    found = told.in_records(32, first.fed)
    assert (found.count(SkipReason.NAN), found.count(SkipReason.FEED)) == (left_out, filtered)
    events: list[dict[str, Any]] = []
    run_local(spec, tmp_path / "out", events.append)
    skipped = {one["reason"]: one["records"] for one in events[-1]["skipped"]}
    assert skipped == {"nan": left_out} | ({"feed": 2 * filtered} if filtered else {})
    assert events[-1]["records"] == 64 - left_out - 2 * filtered
    assert events[-1]["reason"] == "all records were processed, but for those that were passed over"


async def test_a_feed_that_does_not_suit_evaluations_is_refused_before_training(tmp_path: Path) -> None:
    data = write(tmp_path)
    spec = spec_of(tmp_path, data, validation_data=str(data))
    few = 'dataset.map(split).take(5) if mode == "evaluation" else dataset.map(split)'
    (tmp_path / "zoo" / "roots.py").write_text(MODEL.replace("dataset.map(split)", few))
    events: list[dict[str, Any]] = []
    with pytest.raises(UserCodeError, match="uses take, which counts records from the beginning"):
        run_local(spec, tmp_path / "out", events.append)
    assert not events
    with pytest.raises(UserCodeError, match="uses take, which counts records from the beginning"):
        await on_cluster(spec, tmp_path)


def test_files_of_one_row_make_whole_minibatches(tmp_path: Path) -> None:
    """And each row is trained once in an epoch; without shuffling minibatches end with their file, which is said."""
    folder = tmp_path / "rows"
    header, *lines = write(tmp_path).read_text().splitlines()
    folder.mkdir()
    for number, line in enumerate(lines):
        (folder / f"{number:03}.csv").write_text(f"{header}\n{line}\n")
    for shuffle, steps in ((True, 2 * 64 // 8), (False, 2 * 64)):
        spec = spec_of(tmp_path, folder, shuffle=shuffle, num_epochs=2)
        events: list[dict[str, Any]] = []
        run_local(spec, tmp_path / "out", events.append)
        assert (events[-1]["steps"], events[-1]["records"]) == (steps, 2 * 64)
        (started,) = [event["message"] for event in events if event["event"] == "started"]
        assert f"{steps // 2} updates an epoch" in started

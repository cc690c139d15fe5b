"""A Keras model as a replica: equal to plain Keras, and to the last bit whoever computes the microbatches."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from elasticdl.data import create_data_reader
from elasticdl_core.errors import DataError, InvalidInputError, UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_core.job.fields import default_of
from elasticdl_core.shard import Shard
from elasticdl_core.task import Task, TaskId, TaskType
from elasticdl_worker.group.alone import steps_of
from elasticdl_worker.group.replica import copied
from elasticdl_worker.local import run_local
from elasticdl_worker.local_group import LocalGroup
from elasticdl_worker.trainers.framework import Preparation
from elasticdl_worker.trainers.in_group import make_replica, warm_up
from elasticdl_worker.trainers.job_sources import JobSources
from elasticdl_worker.trainers.tensorflow.implementation import TensorFlowFramework
from tests.fakes import group_steps
from tests.fakes.group_steps import MICROBATCH, RECORDS
from tests.fakes.shared_device import shared_device
from tests.integration.worker.small_jobs import make_job

pytestmark = pytest.mark.integration
MODEL = """
import keras

class Counted(tf.keras.layers.Layer):
    def build(self, shape):
        self.seen = self.add_weight(name="seen", shape=(), dtype="int64", initializer="zeros", trainable=False)
        self.flag = self.add_weight(name="flag", shape=(), dtype="bool", initializer="zeros", trainable=False)
        self.unused = self.add_weight(name="unused", shape=(3,), trainable=False)

    def call(self, x, training=False):
        if training:
            self.seen.assign_add(70000)
            self.flag.assign(True)
        return x

def forward(dropout=0.0):
    inputs = tf.keras.Input((3,))
    ids = keras.ops.cast(keras.ops.abs(inputs[:, 0]) * 3, "int32")
    rows = tf.keras.layers.Embedding(50, 4)(ids)
    x = tf.keras.layers.Concatenate()([inputs, rows])
    x = tf.keras.layers.Dense(8, activation="relu", kernel_regularizer="l2")(x)
    x = tf.keras.layers.BatchNormalization()(x)
    x = Counted()(x)
    x = tf.keras.layers.Dropout(dropout)(x)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(x))

def optimizer(rate=0.05):
    return tf.keras.optimizers.Adam(
        tf.keras.optimizers.schedules.ExponentialDecay(rate, 3, 0.9), global_clipnorm=1.0, amsgrad=True
    )
"""
DRAWING = """
def feed(dataset, mode, metadata):
    def parse(columns):
        values = tf.strings.to_number(columns[1:])
        return values + tf.random.uniform([3]) * 0.1, tf.strings.to_number(columns[0])
    return dataset.map(parse).shuffle(8)
"""


def records() -> np.ndarray:
    return np.random.default_rng(5).normal(size=(RECORDS, 4)).round(4)


def preparation_of(spec: JobSpec) -> Preparation:
    framework = TensorFlowFramework()
    module = framework.load_module(spec, Path(spec.model_zoo))
    reader = create_data_reader(spec.training_data, spec.records_per_task)
    source = framework.make_source(reader, module, "training", MICROBATCH * 4)
    callbacks = framework.callbacks_of(module, spec)
    return Preparation(spec, module, source, callbacks, keeps_predictions=module.eval_metrics_fn is not None)


def replica_of(spec: JobSpec) -> Any:
    return TensorFlowFramework().prepare_replica(preparation_of(spec))


def slice_of(shard: Shard, number: int) -> Shard:
    return Shard(shard.name, number * MICROBATCH, (number + 1) * MICROBATCH)


def task_of(spec: JobSpec) -> Task:
    (shard,) = create_data_reader(spec.training_data, RECORDS).create_shards()
    return Task(TaskId(TaskType.TRAINING, 0, 0, 0, RECORDS), Shard(shard.name, 0, RECORDS))


def make_step(members: Sequence[Any], spec: JobSpec, *how: int, **options: int) -> None:
    task = task_of(spec)
    group_steps.make_step(members, lambda member, start, end: member.read(task, start, end), *how, **options)


@pytest.fixture
def job(tmp_path: Path) -> Any:
    def make(module: str = MODEL, **fields: Any) -> JobSpec:
        return make_job(tmp_path, module, records(), **fields)

    return make


def test_one_microbatch_a_step_is_a_step_of_a_local_run(job: Any) -> None:
    spec = job()
    replica = replica_of(spec)
    for step in range(6):
        make_step([replica], spec, step, microbatches=1)

    preparation = preparation_of(dataclasses.replace(spec, distribution_strategy="AllReduceStrategy"))
    local: Any = TensorFlowFramework().prepare_local(preparation)
    shard = Shard(task_of(spec).shard.name, 0, 6 * MICROBATCH)
    for batch in (batch for start in range(6) for batch in preparation.source.minibatches(slice_of(shard, start))):
        local.train(batch)
    wanted = local.model.values()
    assert replica.state().values.keys() == wanted.keys()
    for name, value in replica.state().values.items():
        np.testing.assert_allclose(value, wanted[name], atol=1e-5, err_msg=name)
    assert replica.version == local.version == 6
    assert replica.learning_rate() == pytest.approx(0.05 * 0.9 ** (5 / 3))


@pytest.mark.parametrize("fields", [{}, {"eager": True}], ids=["compiled", "eager"])
def test_members_end_in_the_same_bits_as_one_alone(job: Any, fields: dict[str, Any]) -> None:
    parts = {**IN_PARTS, "minibatch_size": 4 * MICROBATCH, "microbatches": 4}
    spec = job(model_params={"dropout": 0.5}, **parts, **THRESHOLD, **fields)
    alone = replica_of(spec)
    first = alone.digest()
    for step in range(4):
        make_step([alone], spec, step)
    members = [replica_of(spec) for _ in range(3)]
    assert {member.digest() for member in members} == {first}
    make_step(members, spec, 0)
    make_step(members[:2], spec, 1)
    newcomer = replica_of(spec)
    newcomer.load(members[0].state())
    assert newcomer.version == 2
    make_step([newcomer, members[1]], spec, 2)
    make_step([newcomer], spec, 3)
    assert newcomer.digest() == alone.digest() != first
    assert members[1].digest() != alone.digest()
    state = alone.state()
    for name, value in newcomer.state().values.items():
        np.testing.assert_array_equal(value, state.values[name], err_msg=name)
    counters = {name.rpartition("/")[2]: value for name, value in state.values.items()}
    assert (int(counters["seen"]), bool(counters["flag"])) == (4 * 70000, True)


PLAIN = """
def forward():
    inputs = tf.keras.Input((3,))
    x = tf.keras.layers.Dense(8, activation="tanh", kernel_regularizer="l2")(inputs)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(x))

def optimizer():
    return tf.keras.optimizers.SGD(0.1, momentum=0.9, global_clipnorm=1.0)
"""


def test_minibatches_computed_in_one_pass_make_the_same_update_but_for_rounding(job: Any) -> None:
    spec = job(PLAIN)
    exact, fused = [replica_of(spec)], [replica_of(spec) for _ in range(2)]
    first = exact[0].state().values
    for step in range(6):
        make_step(exact, spec, step)
        make_step(fused, spec, step, fused=2)
    assert fused[0].digest() == fused[1].digest(), "members stay equal to each other"
    for name, value in exact[0].state().values.items():
        np.testing.assert_allclose(fused[0].state().values[name], value, rtol=1e-4, atol=1e-6, err_msg=name)
        assert not np.allclose(value, first[name], atol=1e-3), name


def test_microbatches_computed_at_once_have_the_bits_that_each_has_by_itself(
    job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(64))
    spec = job(PLAIN)
    replica = replica_of(spec)
    assert replica.most_at_once(1) > replica.most_at_once(4) >= 1
    assert replica.most_at_once(1000) == 1
    data = [replica.read(task_of(spec), start, start + MICROBATCH) for start in range(0, 64, MICROBATCH)]

    def bits(parts: Sequence[Any]) -> list[Any]:
        return [(part.rows, part.loss, [array.tobytes() for array in part.arrays]) for part in parts]

    for step in range(3):
        one_by_one = [bits([replica.compute(step, number, one, 0)]) for number, one in enumerate(data)]
        at_once = replica.compute_at_once(step, list(enumerate(data)), 0)
        assert bits(at_once) == [one for (one,) in one_by_one]
        sums = [sum(array) for array in zip(*(part.arrays for part in at_once), strict=True)]
        replica.apply(sums, RECORDS, 0)


def test_what_a_microbatch_changes_for_a_moment_keeps_others_waiting(
    job: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("os.sched_getaffinity", lambda _: range(64))
    for fields in ({"module": MODEL}, {"module": PLAIN, "eager": True}):
        assert replica_of(job(**fields)).most_at_once(1) == 1


def test_a_microbatch_that_is_not_finite_is_left_out_among_others(job: Any) -> None:
    spec = job(PLAIN, on_nan="skip")
    replica = replica_of(spec)
    good = replica.read(task_of(spec), 0, MICROBATCH)
    batch = good.content
    poisoned = type(batch)(batch.features, batch.labels * np.inf, batch.records, batch.shard, batch.first)
    bad = type(good)(good.fed, good.skips, poisoned)
    first, second, third = replica.compute_at_once(0, [(0, good), (1, bad), (2, good)], 0)
    assert (first.rows, second.rows, third.rows) == (MICROBATCH, 0, MICROBATCH)
    assert (list(second.arrays), second.skips.records) == ([], MICROBATCH)
    np.testing.assert_array_equal(first.arrays[0], third.arrays[0])


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_local_run_makes_the_updates_of_the_group(job: Any, tmp_path: Path, deterministic: bool) -> None:
    spec = job(
        PLAIN,
        distribution_strategy="AllReduceStrategy",
        minibatch_size=24,
        num_minibatches_per_task=2,
        microbatches=3,
        deterministic=deterministic,
        num_epochs=2,
        export_formats="",
        embedding_threshold_bytes=default_of("embedding_threshold_bytes"),
    )
    assert spec.records_per_task == 48, "two tasks: one of two whole updates, one of a part of an update"
    events: list[Any] = []
    run_local(spec, tmp_path / "out", events.append)
    assert (events[-1]["records"], events[-1]["steps"]) == (2 * RECORDS, 2 * 3)


THRESHOLD = {"embedding_threshold_bytes": default_of("embedding_threshold_bytes")}
IN_PARTS = {"distribution_strategy": "AllReduceStrategy", "minibatch_size": 2 * MICROBATCH, "microbatches": 2}


def test_a_local_run_of_a_group_has_the_bits_of_its_members(job: Any) -> None:
    """Batch normalisation sees a part of the update at a time, and dropout is seeded by it."""
    spec = job(model_params={"dropout": 0.5}, **IN_PARTS, **THRESHOLD)
    members = [replica_of(spec) for _ in range(2)]
    framework = TensorFlowFramework()
    local = LocalGroup(framework, spec, framework.load_module(spec, Path(spec.model_zoo)))
    for number, step in enumerate(steps_of(task_of(spec), 2, 2 * MICROBATCH)):
        make_step(members, spec, number, microbatches=2)
        made = local.update(task_of(spec), step)
        assert (made.fed, made.rows) == (2 * MICROBATCH, 2 * MICROBATCH)
    assert local.steps == RECORDS // (2 * MICROBATCH)
    assert local._replica.digest() == members[0].digest() == members[1].digest()


@pytest.mark.parametrize(
    ("strategy", "fields", "updates", "told"),
    [
        (
            "AllReduceStrategy",
            {"max_workers": 2},
            4,
            "as by AllReduceStrategy: 16 records an update (minibatch_size) in 2",
        ),
        (
            "auto",
            {"max_workers": 2},
            4,
            "as by AllReduceStrategy: 16 records an update (minibatch_size) in 2 microbatches",
        ),
        ("auto", {}, 4, "in this process: 16 records an update (minibatch_size), 4 updates an epoch"),
        (
            "ParameterServerStrategy",
            {"max_workers": 3},
            4,
            "in this process: 16 records an update (minibatch_size), 4",
        ),
        (
            "ParameterServerStrategy",
            {"use_async": False, "grads_to_wait": 2},
            2,
            "32 records an update (2 minibatches of",
        ),
    ],
)
def test_a_local_run_makes_as_many_updates_as_a_cluster(
    job: Any, tmp_path: Path, strategy: str, fields: dict[str, Any], updates: int, told: str
) -> None:
    validation = {"validation_data": str(tmp_path / "data.csv"), "export_formats": "keras"}
    events: list[Any] = []
    spec = job(PLAIN, distribution_strategy=strategy, minibatch_size=16, **fields, **validation, **THRESHOLD)
    run_local(spec, tmp_path / "out", events.append)
    assert (events[-1]["records"], events[-1]["steps"]) == (RECORDS, updates)
    (started,) = [event["message"] for event in events if event["event"] == "started"]
    assert told in started
    assert events[-1]["metrics"]["loss"] > 0
    assert (tmp_path / "out" / "model.keras").is_file()


def test_dropout_follows_step_and_microbatch_alone(job: Any) -> None:
    spec = job(model_params={"dropout": 0.5})
    replica = replica_of(spec)
    data = replica.read(task_of(spec), 0, MICROBATCH)

    def gradient(step: int, microbatch: int) -> bytes:
        return b"".join(array.tobytes() for array in replica.compute(step, microbatch, data, 0).arrays)

    once = gradient(3, 1)
    assert gradient(3, 2) != once != gradient(4, 1)
    assert gradient(3, 1) == once


@pytest.mark.parametrize(("dropout", "differs"), [(0.5, True), (0.0, False)])
def test_dropout_follows_the_seed_of_the_job(job: Any, dropout: float, differs: bool) -> None:
    found, states = set(), []
    for seed in (0, 7):
        spec = job(model_params={"dropout": dropout}, seed=seed)
        replica = replica_of(spec)
        states.append(copied(replica.state()))
        replica.load(states[0])
        data = replica.read(task_of(spec), 0, MICROBATCH)
        found.add(b"".join(array.tobytes() for array in replica.compute(3, 1, data, 0).arrays))
    assert (len(found) == 2) is differs


def test_what_feed_draws_follows_from_the_records_alone(job: Any) -> None:
    spec = job(MODEL + DRAWING)
    one, other = replica_of(spec), replica_of(spec)

    def read(replica: Any, start: int) -> Any:
        return replica.read(task_of(spec), start, start + MICROBATCH).content.features.numpy()

    first = read(one, 0)
    read(other, 16)
    read(other, 8)
    np.testing.assert_array_equal(read(other, 0), first)
    exact = records().astype(np.float32)[:, 1:]
    drawn = [np.sort(read(one, start), 0) - np.sort(exact[start : start + MICROBATCH], 0) for start in (0, 8)]
    assert not np.allclose(drawn[0], drawn[1], atol=1e-3), "not the same numbers for each microbatch"


@pytest.mark.parametrize("deterministic", [True, False])
def test_a_feed_that_leaves_records_out_is_read_as_one_minibatch(job: Any, deterministic: bool) -> None:
    """In a moment: a batch of TensorFlow's takes time for each row that it might have."""
    filtering = "\nfeed_all = feed\ndef feed(dataset, mode, metadata):\n" + (
        "    return feed_all(dataset, mode, metadata).filter(lambda x, y: y > 0.0)\n"
    )
    fields = {"distribution_strategy": "AllReduceStrategy", "microbatches": 4, "deterministic": deterministic}
    spec = job(PLAIN + filtering, **fields, embedding_threshold_bytes=default_of("embedding_threshold_bytes"))
    framework = TensorFlowFramework()
    module = framework.load_module(spec, Path(spec.model_zoo))
    replica = make_replica(framework, spec, module, JobSources(framework, spec, module))
    for start in range(0, RECORDS, MICROBATCH):
        assert replica.read(task_of(spec), start, start + MICROBATCH).fed < MICROBATCH
    assert replica.read(task_of(spec), 0, RECORDS).fed == (records()[:, 0] > 0).sum()


def test_xla_is_refused(job: Any) -> None:
    with pytest.raises(InvalidInputError, match="--xla on"):
        replica_of(job(xla="on"))


def test_mixed_precision_metrics_and_rates_by_epoch(job: Any) -> None:
    """Two members, bfloat16 inside, a rate of 0 in the second epoch, where nothing moves."""
    module = """
import keras
keras.mixed_precision.set_global_policy("mixed_bfloat16")

def forward():
    x = inputs = tf.keras.Input((3,))
    x = tf.keras.layers.Dense(8, activation="relu")(x)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1, dtype="float32")(x))

def optimizer():
    return tf.keras.optimizers.SGD(0.1)

def eval_metrics_fn():
    return {"error": lambda labels, predictions: tf.abs(labels - predictions[:, 0])}

def callbacks():
    return [tf.keras.callbacks.LearningRateScheduler(lambda epoch: 0.1 if epoch == 0 else 0.0)]
"""
    spec = job(module)
    try:
        members = [replica_of(spec) for _ in range(2)]
        data = members[0].read(task_of(spec), 0, MICROBATCH)
        part = members[0].compute(0, 0, data, 0)
        assert part.measure is not None
        assert part.measure(True)["error"] > 0
        for epoch in (0, 1):
            before = members[0].digest()
            for member in members:
                sums = [array.copy() for array in member.compute(epoch, 0, data, epoch).arrays]
                member.apply(sums, MICROBATCH, epoch)
            assert members[0].digest() == members[1].digest()
            assert (before != members[0].digest()) is (epoch == 0)
        assert members[0].learning_rate() == 0.0
    finally:
        tf.keras.mixed_precision.set_global_policy("float32")


def test_slots_are_those_of_parameter_servers(job: Any) -> None:
    replica = replica_of(job())
    assert replica.layout.slots == ("momentum", "velocity", "velocity_hat")
    assert replica.layout.optimizer.name == "adam"
    state = replica.state()
    assert {spec.name for spec in replica.layout.dense} == set(state.values)
    assert all(len(slots) == 3 and slots[0].shape == state.values[name].shape for name, slots in state.slots.items())


def test_a_state_of_another_model_or_optimizer_is_refused(job: Any) -> None:
    replica = replica_of(job())
    state = replica.state()
    name = next(iter(state.slots))
    with pytest.raises(DataError, match="slots"):
        replica.load(type(state)(1, state.values, dict(state.slots) | {name: []}))
    with pytest.raises(DataError, match="has the shape None in the state"):
        replica.load(type(state)(1, {k: v for k, v in state.values.items() if k != name}, state.slots))
    assert replica.version == 0


def test_a_minibatch_that_is_not_finite_is_left_out_or_fails(job: Any, tmp_path: Path) -> None:
    spec = job(on_nan="skip")
    replica = replica_of(spec)
    data = replica.read(task_of(spec), 0, MICROBATCH)
    before = replica.digest()
    batch = data.content
    poisoned = type(batch)(batch.features, batch.labels * np.inf, batch.records, batch.shard, batch.first)
    part = replica.compute(0, 0, type(data)(data.fed, data.skips, poisoned), 0)
    assert (part.rows, list(part.arrays), part.skips.records) == (0, [], MICROBATCH)
    assert replica.digest() == before


@pytest.mark.parametrize(
    ("module", "message"),
    [
        (
            "import elasticdl\n"
            "def forward():\n"
            "    x = tf.keras.Input((3,))\n"
            "    rows = elasticdl.layers.Embedding(4)(tf.keras.ops.cast(x[:, 0], 'int64'))\n"
            "    return tf.keras.Model(x, tf.keras.layers.Dense(1)(rows))\n",
            "has no bound on its ids",
        ),
        (
            "class Noise(tf.keras.layers.Layer):\n"
            "    def call(self, x):\n"
            "        return x + tf.random.normal(tf.shape(x))\n"
            "def forward():\n"
            "    x = tf.keras.Input((3,))\n"
            "    return tf.keras.Model(x, tf.keras.layers.Dense(1)(Noise()(x)))\n",
            "keeps a state of its own",
        ),
    ],
    ids=["open embedding", "stateful draws"],
)
def test_what_no_member_can_do_is_refused(job: Any, module: str, message: str) -> None:
    optimizer = "def optimizer():\n    return tf.keras.optimizers.SGD(0.1)\n"
    with pytest.raises(UserCodeError, match=message):
        replica_of(job(module + optimizer))


def test_warming_up_leaves_nothing_behind(tmp_path: Path) -> None:
    spec = make_job(tmp_path, MODEL, records(), model_params={"dropout": 0.3}, minibatch_size=MICROBATCH)
    replica, other = replica_of(spec), replica_of(spec)
    before = replica.digest()
    first = Shard(spec.training_data, 0, MICROBATCH)
    warm_up(replica, Task(TaskId(TaskType.TRAINING, 0, 0, first.start, first.end), first))
    assert (replica.version, replica.digest()) == (0, before)
    later = Task(TaskId(TaskType.TRAINING, 0, 0, 0, RECORDS), Shard(spec.training_data, 0, RECORDS))
    for one in (replica, other):
        given = one.compute(1, 0, one.read(later, 8, 16), 0)
        one.apply([np.array(array) for array in given.arrays], given.rows, 0)
    assert replica.digest() == other.digest() != before


def test_what_cannot_be_warmed_up_with_is_left_to_the_step_that_counts(tmp_path: Path) -> None:
    replica = replica_of(make_job(tmp_path, MODEL, records(), minibatch_size=MICROBATCH))
    before = replica.digest()
    nowhere = Shard(str(tmp_path / "nowhere.csv"), 0, 8)
    warm_up(replica, Task(TaskId(TaskType.TRAINING, 0, 0, 0, 8), nowhere))
    assert replica.digest() == before


def test_a_model_is_updated_in_the_turn_of_its_device(tmp_path: Path) -> None:
    spec = make_job(tmp_path, MODEL, records(), minibatch_size=MICROBATCH)
    replica, seen = replica_of(spec), []
    with shared_device(tmp_path) as device:
        apply = replica._steps.apply

        def watched(*arguments: Any) -> None:
            seen.append(device.is_taken())
            apply(*arguments)

        replica._steps.apply = watched
        make_step([replica], spec, 0)
        assert not device.is_taken()
    assert seen == [True]

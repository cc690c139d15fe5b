"""A member that is alone makes updates in one compiled function: to the last bit those that it makes among others."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest

from elasticdl.data import create_data_reader
from elasticdl_core.job import JobSpec
from elasticdl_core.job.fields import default_of
from elasticdl_core.shard import Shard
from elasticdl_core.task import Task, TaskId, TaskType
from elasticdl_worker.group.replica import AppliesWhileComputing, MicrobatchData, ReplicaState, copied
from elasticdl_worker.reporting.failures import NotFiniteError
from elasticdl_worker.trainers.tensorflow.replica import replica as replicas
from tests.integration.worker.small_jobs import make_job
from tests.integration.worker.test_replica import replica_of

pytestmark = pytest.mark.integration
RECORDS, ROWS = 64, 7
"""Rows that no float divides exactly by."""
STEPS = 50
DENSE = """
def forward():
    inputs = tf.keras.Input((3,))
    x = tf.keras.layers.Dense(37, activation="tanh", kernel_regularizer="l2")(inputs)
    x = tf.keras.layers.Dense(19, activation="relu")(x)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(x))
"""
STATEFUL = """
def forward():
    inputs = tf.keras.Input((3,))
    ids = tf.keras.ops.cast(tf.keras.ops.abs(inputs[:, 0]) * 3, "int32")
    x = tf.keras.layers.Concatenate()([inputs, tf.keras.layers.Embedding(50, 4)(ids)])
    x = tf.keras.layers.BatchNormalization()(tf.keras.layers.Dense(8, activation="relu")(x))
    x = tf.keras.layers.Dropout(0.5)(x)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(x))
"""
CONVOLUTIONS = """
def forward():
    inputs = tf.keras.Input((3,))
    x = tf.keras.layers.Reshape((6, 6, 1))(tf.keras.layers.Dense(36)(inputs))
    x = tf.keras.layers.Conv2D(5, 3, activation="relu")(x)
    x = tf.keras.layers.MaxPooling2D()(x)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(tf.keras.layers.Flatten()(x)))
"""
RECURRENT = """
def forward():
    inputs = tf.keras.Input((3,))
    x = tf.keras.layers.LSTM(6)(tf.keras.layers.Reshape((3, 1))(inputs))
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(x))
"""
HALVES = """
def forward():
    inputs = tf.keras.Input((3,))
    x = tf.keras.layers.Dense(8, activation="relu", dtype="mixed_bfloat16")(inputs)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1, dtype="float32")(x))
"""
ADAM = "Adam(0.01)"
OPTIMIZERS = {
    "sgd": "SGD(0.05)",
    "momentum": "SGD(0.05, momentum=0.9, nesterov=True, clipvalue=0.5)",
    "amsgrad": "Adam(0.01, amsgrad=True, clipnorm=0.3)",
    "adamw": "AdamW(0.01, weight_decay=0.02, global_clipnorm=0.7)",
    "adagrad": "Adagrad(0.05)",
    "rmsprop": "RMSprop(tf.keras.optimizers.schedules.ExponentialDecay(0.01, 3, 0.9), momentum=0.3)",
}
CASES = {
    "stateful": (STATEFUL, ADAM),
    "convolutions": (CONVOLUTIONS, ADAM),
    "recurrent": (RECURRENT, ADAM),
    "halves": (HALVES, ADAM),
    **{name: (DENSE, optimizer) for name, optimizer in OPTIMIZERS.items()},
}


@pytest.fixture
def job(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    monkeypatch.setattr(replicas, "_ALONE_STEPS", 0)
    data = np.random.default_rng(5).normal(size=(RECORDS, 4)).round(4)

    def make(model: str, optimizer: str = ADAM, **fields: Any) -> JobSpec:
        module = f"{model}\ndef optimizer():\n    return tf.keras.optimizers.{optimizer}\n"
        return make_job(tmp_path, module, data, minibatch_size=ROWS, **fields)

    return make


def data_of(replica: Any, spec: JobSpec, step: int) -> MicrobatchData:
    (shard,) = create_data_reader(spec.training_data, RECORDS).create_shards()
    task = Task(TaskId(TaskType.TRAINING, 0, 0, 0, RECORDS), Shard(shard.name, 0, RECORDS))
    start = step * ROWS % (RECORDS - ROWS)
    given: MicrobatchData = replica.read(task, start, start + ROWS)
    return given


def bits_of(state: ReplicaState) -> dict[str, list[bytes]]:
    return {
        name: [value.tobytes(), *(slot.tobytes() for slot in state.slots.get(name, ()))]
        for name, value in state.values.items()
    }


def make_step(replica: Any, spec: JobSpec, *, alone: bool) -> None:
    version, data = replica.version, data_of(replica, spec, replica.version)
    part = (replica.update if alone else replica.compute)(version, 0, data, 0)
    assert part.rows == ROWS
    replica.apply(part.arrays, part.rows, 0)
    assert replica.version == version + 1


@pytest.mark.parametrize(("model", "optimizer"), CASES.values(), ids=CASES.keys())
def test_updates_alone_have_the_bits_of_updates_among_others(job: Any, model: str, optimizer: str) -> None:
    # Fused jobs do not compare before they go over to it.
    threshold = default_of("embedding_threshold_bytes")
    group = {"distribution_strategy": "AllReduceStrategy", "embedding_threshold_bytes": threshold}
    spec = job(model, optimizer, deterministic=False, **group)
    assert spec.fuses
    alone, among = replica_of(spec), replica_of(spec)
    assert isinstance(alone, AppliesWhileComputing)
    for step in range(STEPS):
        # Others may come and go at any time.
        make_step(alone, spec, alone=step % 10 < 7)
        make_step(among, spec, alone=False)
        assert bits_of(alone.state()) == bits_of(among.state()), f"step {step}"
    assert alone.learning_rate() == among.learning_rate()


def test_it_is_one_function_after_some_time_alone(job: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(replicas, "_ALONE_STEPS", 3)
    spec = job(DENSE)
    replica = replica_of(spec)
    given, announced = [], []
    for _ in range(6):
        announced.append(replica.about_to_compile)
        part = replica.update(replica.version, 0, data_of(replica, spec, replica.version), 0)
        given.append(len(part.arrays))
        replica.apply(part.arrays, part.rows, 0)
    assert given == [1, 1, 1, 0, 0, 0], "what is applied already is not handed out"
    assert announced == [False, False, False, True, False, False]


def test_what_would_give_other_bits_is_not_used(job: Any) -> None:
    """A loss that is another one each time that it is traced."""
    odd = f"""
{DENSE}
TRACED = []
def loss(labels, predictions):
    TRACED.append(1)
    return tf.reduce_mean(tf.square(tf.reshape(labels, [-1, 1]) - predictions)) * len(TRACED)
"""
    spec = job(odd)
    alone, among = replica_of(spec), replica_of(spec)
    among.load(copied(alone.state()))
    for step in range(5):
        make_step(alone, spec, alone=True)
        make_step(among, spec, alone=False)
        assert bits_of(alone.state()) == bits_of(among.state()), f"step {step}"


@pytest.mark.parametrize("fields", [{"on_nan": "skip"}, {"eager": True}], ids=["skips", "eager"])
def test_who_leaves_minibatches_out_or_compiles_nothing_applies_afterwards(job: Any, fields: dict[str, Any]) -> None:
    spec = job(DENSE, **fields)
    replica = replica_of(spec)
    part = replica.update(0, 0, data_of(replica, spec, 0), 0)
    assert [len(array) for array in part.arrays] == list(replica.lengths)


@pytest.mark.parametrize("poisoned", ["labels", "gradients"])
def test_what_is_not_finite_fails_with_the_same_words(job: Any, poisoned: str) -> None:
    root = """
def loss(labels, predictions):
    return tf.reduce_mean(tf.sqrt(tf.abs(tf.reshape(labels, [-1, 1]) - predictions) * 0.0))
"""
    spec = job(DENSE + root if poisoned == "gradients" else DENSE)
    said = []
    for alone in (False, True):
        replica = replica_of(spec)
        replica._compares = False
        data = data_of(replica, spec, 0)
        batch = data.content
        factor = np.inf if poisoned == "labels" else 1.0
        bad = type(batch)(batch.features, batch.labels * factor, batch.records, batch.shard, batch.first)
        with pytest.raises(NotFiniteError) as caught:
            (replica.update if alone else replica.compute)(0, 0, type(data)(data.fed, data.skips, bad), 0)
        said.append(str(caught.value))
    assert said[0] == said[1]
    assert ("gradient of" if poisoned == "gradients" else "loss is inf") in said[0]


def test_metrics_are_those_of_computing_alone(job: Any) -> None:
    measured = f"""
{DENSE}
def eval_metrics_fn():
    return {{"error": lambda labels, predictions: tf.abs(labels - predictions[:, 0])}}
"""
    spec = job(measured)
    replica, other = replica_of(spec), replica_of(spec)
    data = data_of(replica, spec, 0)
    told = replica.update(0, 0, data, 0)
    wanted = other.compute(0, 0, data, 0)
    assert told.measure is not None
    assert wanted.measure is not None
    metrics = told.measure(True)
    assert (metrics, told.loss, told.rows) == (wanted.measure(True), wanted.loss, wanted.rows)
    assert metrics["error"] > 0

"""State of models: what several workers make of it becomes one, without diverging and without losing a minibatch."""

from __future__ import annotations

import asyncio
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from elasticdl_core.errors import UserCodeError
from elasticdl_core.model import DenseKind, OptimizerSpec, UpdateMode
from elasticdl_ps.kernels import load_kernels
from elasticdl_ps.store import merging
from elasticdl_ps.store.partition import DenseInit, Partition
from elasticdl_worker.local import run_local
from elasticdl_worker.loop import ExitReason
from elasticdl_worker.trainers.framework import Lookups, StepResult
from elasticdl_worker.trainers.tensorflow.step.programs import Programs
from tests.fakes.master import FakeMaster
from tests.fakes.parameters import MemoryParameters
from tests.unit.worker.test_embeddings import loss, prepared
from tests.unit.worker.test_ps_training import add_training, work

pytestmark = pytest.mark.unit
Layers = tf.keras.layers
VALUES = tf.TensorSpec([None, 3], tf.float32)
LABELS = tf.TensorSpec([None], tf.float32)
AVERAGES = ("moving_mean", "moving_variance")


def normalised(**options: Any) -> Any:
    def make() -> Any:
        values = tf.keras.Input((3,))
        layer = Layers.BatchNormalization(momentum=0.9, name="normal", **options)
        return tf.keras.Model(values, Layers.Dense(1)(layer(values)))

    return make


class Twice(tf.keras.Model):
    """Normalises two inputs by one layer."""

    def __init__(self) -> None:
        super().__init__()
        self.normal, self.head = Layers.BatchNormalization(momentum=0.9, name="normal"), Layers.Dense(1)

    def call(self, values: Any, training: bool = False) -> Any:
        first = self.normal(values, training=training)
        return self.head(first + self.normal(values * 2, training=training))


class Within(tf.keras.Model):
    """Normalises inside a branch of the graph, where nobody can tell how often it is done."""

    def __init__(self) -> None:
        super().__init__()
        self.normal, self.head = Layers.BatchNormalization(momentum=0.9, name="normal"), Layers.Dense(1)

    def build(self, shape: Any) -> None:
        self.normal.build(shape)
        self.head.build(shape)

    def call(self, values: Any, training: bool = False) -> Any:
        changed = tf.cond(
            tf.reduce_sum(values) > -1e9, lambda: self.normal(values, training=training), lambda: values
        )
        return self.head(changed)


class Server:
    """One real partition that holds a model, and the worker's side of it without a wire."""

    def __init__(self, model: Any, mode: UpdateMode | None = None) -> None:
        self.partition = Partition(load_kernels())
        values = model.values()
        dense = [
            DenseInit(spec, 0, spec.size, np.asarray(values[spec.name]).reshape(-1)) for spec in model.dense_specs()
        ]
        self.partition.push_model(dense, [], OptimizerSpec("sgd", {"learning_rate": 0.0}), mode or UpdateMode())

    def apply(self, result: StepResult) -> None:
        self.partition.apply([self.changes(result)])

    def changes(self, result: StepResult, records: int = 1) -> merging.Changes:
        state = {
            name: merging.StateUpdate(change.keep, np.asarray(change.add).reshape(-1))
            for name, change in result.state.items()
        }
        dense = {name: np.asarray(gradient).reshape(-1) for name, gradient in result.dense.items()}
        return merging.Changes(dense, state=state, records=records)

    def state(self) -> dict[str, Any]:
        """Values by the last part of the name."""
        return {
            part.spec.name.rpartition("/")[2]: part.values.copy().reshape(part.spec.shape)
            for part in self.partition.dense.changed(-1)
            if part.spec.kind is DenseKind.STATE
        }


def batches(count: int, seed: int) -> list[tuple[Any, Any]]:
    rng = np.random.default_rng(seed)
    return [
        (tf.constant(rng.normal(rng.uniform(-1, 1), rng.uniform(0.2, 2), (16, 3)), tf.float32), tf.zeros(16))
        for _ in range(count)
    ]


def reset(model: Any, server: Server) -> None:
    """What a pull does."""
    state = server.state()
    model.assign({name: state[name.rpartition("/")[2]] for name in model.state})


def run(programs: Programs, group: Sequence[tuple[Any, Any]]) -> StepResult:
    return programs.steps(group, {}, {}, Lookups())


@pytest.mark.parametrize(
    ("make", "workers", "local_steps"),
    [(normalised(), 17, 1), (normalised(), 4, 8), (Twice, 4, 8), (Within, 4, 2)],
    ids=["many workers", "local steps", "used twice", "in a branch"],
)
def test_moving_averages_of_any_number_of_workers_stay_among_the_batches_values(
    make: Any, workers: int, local_steps: int
) -> None:
    """All workers compute on the same old parameters and push one after the other, as badly as it can be."""
    model = prepared(make, VALUES)
    server, programs = Server(model), Programs(model, loss, LABELS, group=local_steps)
    seen = {"moving_mean": [np.zeros(3)], "moving_variance": [np.ones(3)]}
    for round_ in range(6):
        results = []
        for worker in range(workers):
            reset(model, server)
            group = batches(local_steps, 100 * round_ + worker)
            for values, _ in group:
                for scale in (1, 2) if make is Twice else (1,):
                    seen["moving_mean"].append(scale * values.numpy().mean(0))
                    seen["moving_variance"].append((scale * values.numpy()).var(0))
            results.append(run(programs, group))
        for result in results:
            server.apply(result)
        for name in AVERAGES:
            value = server.state()[name]
            assert (value >= np.min(seen[name], 0) - 1e-5).all(), name
            assert (value <= np.max(seen[name], 0) + 1e-5).all(), name


@pytest.mark.parametrize("options", [{}, {"renorm": True}], ids=["plain", "renormalised"])
def test_workers_one_after_the_other_are_one_worker(options: dict[str, Any]) -> None:
    """Each pulls what the one before has pushed: nothing may differ from Keras' own averages, to rounding."""
    model = prepared(normalised(**options), VALUES)
    server, programs = Server(model), Programs(model, loss, LABELS)
    for number in range(30):
        reset(model, server)
        server.apply(run(programs, batches(1, number)))
    after = server.state()
    fresh = prepared(normalised(**options), VALUES)
    alone = Programs(fresh, loss, LABELS)
    for number in range(30):
        run(alone, batches(1, number))
    for name, variable in fresh.state.items():
        np.testing.assert_allclose(after[name.rpartition("/")[2]], variable.numpy(), rtol=1e-6, atol=1e-7)


def test_late_updates_count_as_if_they_came_in_turn() -> None:
    """Of N updates at once, none is lost and none counts double: what is kept is momentum to the power of N."""
    model = prepared(normalised(), VALUES)
    server, programs = Server(model), Programs(model, loss, LABELS)
    results = []
    for worker in range(5):
        reset(model, server)
        results.append(run(programs, batches(1, worker)))
    for result in results:
        server.apply(result)
    expected = np.zeros(3)
    for worker in range(5):
        expected = 0.9 * expected + 0.1 * batches(1, worker)[0][0].numpy().mean(0)
    np.testing.assert_allclose(server.state()["moving_mean"], expected, rtol=1e-5, atol=1e-7)


def test_a_round_takes_the_mean_of_averages_and_the_sum_of_counters() -> None:
    def change(keep: float, *numbers: float, dtype: Any = np.float32) -> merging.StateUpdate:
        return merging.StateUpdate(keep, np.array(numbers, dtype))

    members = [
        merging.Changes(
            state={
                "average": change(0.9, 0.1 * number),
                "count": change(1, number, dtype=np.int32),
                "last": change(0, number),
            },
            records=number,
        )
        for number in (1, 2, 5)
    ]
    merged = merging.merge(members, load_kernels())
    state = {name: np.array([10.0], found.add.dtype) for name, found in merged.state.items()}
    for name, found in merged.state.items():
        found.apply(state[name])
    assert state["average"][0] == pytest.approx(0.9 * 10 + 0.1 * (1 * 1 + 2 * 2 + 5 * 5) / 8)
    assert (state["count"][0], state["count"].dtype) == (18, np.int32)
    assert state["last"][0] == 5


class Aggregated(tf.keras.Model):
    """Says itself how its variables are merged."""

    def __init__(self) -> None:
        super().__init__()
        self.head = Layers.Dense(1)
        self.weight = self.add_weight(name="weight", initializer="zeros", trainable=False, aggregation="sum")
        self.code = self.add_weight(
            name="code", dtype="int32", initializer="zeros", trainable=False, aggregation="only_first_replica"
        )
        self.flag = self.add_weight(name="flag", dtype="bool", initializer="zeros", trainable=False)

    def call(self, values: Any, training: bool = False) -> Any:
        if training:
            self.weight.assign_add(0.5)
            self.code.assign(7)
            self.flag.assign(True)
        return self.head(values)


def test_a_variable_can_say_how_it_is_merged() -> None:
    model = prepared(Aggregated, VALUES)
    server, programs = Server(model), Programs(model, loss, LABELS)
    results = []
    for worker in range(3):
        reset(model, server)
        results.append(run(programs, batches(1, worker)))
    for result in results:
        server.apply(result)
    state = server.state()
    assert (state["weight"], state["code"], state["flag"]) == (1.5, 7, True)
    assert state["flag"].dtype == np.bool_


def test_state_that_cannot_be_shared_is_refused_by_name() -> None:
    class Textual(tf.keras.Model):
        def __init__(self) -> None:
            super().__init__()
            self.head = Layers.Dense(1)
            self.phase = self.add_weight(
                name="phase",
                dtype="complex64",
                initializer=lambda shape, dtype=None: tf.zeros(shape, tf.complex64),
                trainable=False,
            )

        def call(self, values: Any, training: bool = False) -> Any:
            return self.head(values)

    with pytest.raises(UserCodeError, match=r"phase .*complex64"):
        prepared(Textual, VALUES)


def test_what_does_not_change_is_not_sent() -> None:
    model = prepared(normalised(trainable=False), VALUES)
    assert not run(Programs(model, loss, LABELS), batches(1, 0)).state


def test_two_workers_with_unequal_minibatches_are_one_with_all_records() -> None:
    model = prepared(normalised(), VALUES)
    names = [*model.trainable, *model.state]
    mode = UpdateMode(use_async=False, grads_to_wait=2)
    rng = np.random.default_rng(1)
    values, labels = rng.normal(size=(32, 3)).astype(np.float32), rng.normal(size=32).astype(np.float32)
    # The first records repeat, so that both parts are normalised alike, as the whole is.
    values[16:24] = values[:8]
    values[24:] = values[:8]
    values[8:16] = values[:8]
    first = model.values()
    updated = []
    for parts in ([slice(0, 32)], [slice(0, 24), slice(24, 32)]):
        model.assign(first)
        server, programs = Server(model, mode), Programs(model, loss, LABELS)
        members = []
        for part in parts:
            model.assign(first)
            result = programs.gradients(tf.constant(values[part]), tf.constant(labels[part]), {}, Lookups())
            members.append(server.changes(result, records=part.stop - part.start))
        server.partition.apply(members, [0.5])
        updated.append({p.spec.name: p.values.copy() for p in server.partition.dense.changed(-1)})
    assert updated[0].keys() == set(names)
    for name in names:
        np.testing.assert_allclose(updated[0][name], updated[1][name], rtol=1e-5, atol=1e-6, err_msg=name)
        assert name in model.state or (updated[0][name] != first[name].reshape(-1)).any() or "beta" in name


@pytest.mark.parametrize("how", [{}, {"get_model_steps": 4, "xla": "on"}], ids=["step by step", "groups, XLA"])
async def test_one_worker_and_a_local_run_agree_on_state(make_spec: Any, tmp_path: Path, how: dict[str, Any]) -> None:
    spec = make_spec(model_def="stateful.custom_model", max_staleness=0, **how)
    master, parameters = FakeMaster(spec, tmp_path), MemoryParameters()
    await master.start()
    add_training(master, spec)
    assert await work(master, parameters) is ExitReason.FINISHED
    await master.stop()
    local = make_spec(model_def="stateful.custom_model")
    await asyncio.to_thread(run_local, local, tmp_path / "local", lambda event: None)
    trained = tf.keras.models.load_model(tmp_path / "local" / "model.keras", compile=False, custom_objects=custom())
    assert sum(gradients.records for _, gradients, _ in parameters.pushes) == 600
    assert parameters.dense["observer/minibatches"] == 19
    assert parameters.dense["observer/minibatches"].dtype == np.int64
    for variable in trained.weights:
        np.testing.assert_allclose(
            parameters.dense[variable.path], variable.numpy(), rtol=1e-6, atol=1e-6, err_msg=variable.path
        )


def custom() -> dict[str, Any]:
    import sys

    return {"Observer": sys.modules["stateful"].Observer}

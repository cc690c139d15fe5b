"""The step of XLA: the same gradients, padding that leaves no trace, and the plain step where XLA cannot run."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf
from structlog.testing import capture_logs

from elasticdl_core.errors import DataError, UserCodeError
from elasticdl_worker.trainers.framework import Lookups, StepResult
from elasticdl_worker.trainers.tensorflow.model.build import BuildOptions, PreparedModel, build_model
from elasticdl_worker.trainers.tensorflow.model.optimizers import Clipping
from elasticdl_worker.trainers.tensorflow.step.programs import Programs
from elasticdl_worker.trainers.tensorflow.step.step_choice import (
    TRIAL_STEPS,
    WATCHED_S,
    WATCHED_STEPS,
    StepChoice,
    StepKind,
)
from elasticdl_worker.trainers.tensorflow.step.xla import bucket, padded
from elasticdl_worker.user_code import ModelModule

pytestmark = pytest.mark.unit
Layers = tf.keras.layers
IDS, LABELS = tf.TensorSpec([None, 4], tf.int64), tf.TensorSpec([None], tf.float32)
BATCH = 16


def deepfm() -> Any:
    ids = tf.keras.Input((4,), dtype="int64")
    vectors = Layers.Embedding(500, 8)(ids)
    linear = Layers.Flatten()(Layers.Embedding(500, 1)(ids))
    total = tf.keras.ops.sum(vectors, axis=1)
    pairs = tf.keras.ops.square(total) - tf.keras.ops.sum(tf.keras.ops.square(vectors), axis=1)
    deep = Layers.Dense(16, activation="relu")(Layers.Flatten()(vectors))
    return tf.keras.Model(ids, Layers.Dense(1)(Layers.Concatenate()([linear, pairs, deep])))


def convolution() -> Any:
    image = tf.keras.Input((8, 8, 1))
    x = Layers.BatchNormalization()(Layers.Conv2D(4, 3, activation="relu")(image))
    return tf.keras.Model(image, Layers.Dense(1)(Layers.Flatten()(Layers.MaxPooling2D()(x))))


def loss(labels: Any, predictions: Any) -> Any:
    return tf.reduce_mean(tf.square(labels - predictions[:, 0]))


def model_of(make: Any, spec: Any, threshold: int | None = 0) -> PreparedModel:
    return build_model(ModelModule(Path(__file__), (Path(__file__).parent,), make), spec, BuildOptions(threshold))


def programs_of(model: PreparedModel, choice: StepChoice | None, clipping: Clipping | None = None) -> Programs:
    return Programs(model, loss, LABELS, clipping, choice=choice, minibatch_size=BATCH)


def labels_for(records: int, seed: int = 1) -> Any:
    return tf.constant(np.random.default_rng(seed).normal(size=records).astype(np.float32))


def ids_of(records: int, most: int, seed: int = 0) -> Any:
    return tf.constant(np.random.default_rng(seed).integers(0, most, (records, 4)))


def rows_for(model: PreparedModel, lookups: Lookups) -> dict[str, Any]:
    """A row depends on its id alone."""
    return {
        table: np.sin(ids[:, None] * 0.7 + np.arange(model.tables[table].dim)).astype(np.float32)
        for table, ids in lookups.unique.items()
    }


def step(programs: Programs, features: Any, labels: Any) -> StepResult:
    lookups = programs.collect(features, training=True)
    return programs.gradients(features, labels, rows_for(programs.model, lookups), lookups)


def assert_same(result: StepResult, expected: StepResult) -> None:
    assert result.loss == pytest.approx(expected.loss, rel=1e-5)
    for kind in ("dense", "rows", "state"):
        found, wanted = getattr(result, kind), getattr(expected, kind)
        assert found.keys() == wanted.keys()
        if kind == "state":
            assert {name: one.keep for name, one in found.items()} == {name: one.keep for name, one in wanted.items()}
            found, wanted = ({name: one.add for name, one in side.items()} for side in (found, wanted))
        for name, value in wanted.items():
            assert found[name].shape == value.shape
            # Sums in another order round by their largest terms, so the tolerance follows the largest element.
            scale = max(1.0, float(np.abs(value).max(initial=0)))
            np.testing.assert_allclose(found[name], value, rtol=1e-5, atol=1e-5 * scale, err_msg=name)


@pytest.mark.parametrize(
    ("count", "size"), [(0, 8), (8, 8), (9, 12), (12, 12), (13, 16), (17, 24), (25, 32), (1025, 1536), (1537, 2048)]
)
def test_buckets_are_powers_of_two_and_the_middles_between(count: int, size: int) -> None:
    assert bucket(count) == size


def test_padding_is_zero_and_comes_last() -> None:
    rows = np.ones((3, 2), np.float32)
    assert padded(rows, 5).tolist() == [[1, 1]] * 3 + [[0, 0]] * 2
    assert padded(rows, 3).tolist() == rows.tolist()


@pytest.mark.parametrize("clipping", [Clipping(), Clipping(global_clipnorm=0.1)], ids=["unclipped", "clipped"])
def test_gradients_of_a_factorization_machine_equal_the_plain_ones(clipping: Clipping) -> None:
    model, choice = model_of(deepfm, IDS), StepChoice("on")
    plain, xla = programs_of(model, None, clipping), programs_of(model, choice, clipping)
    assert len(model.tables) == 2
    for seed, most in enumerate([20, 24, 12]):
        ids, labels = ids_of(BATCH, most, seed), labels_for(BATCH, seed)
        assert_same(step(xla, ids, labels), step(plain, ids, labels))
    assert choice.settled is StepKind.XLA


def test_gradients_and_moving_averages_of_a_convolution_equal_the_plain_ones() -> None:
    spec = tf.TensorSpec([None, 8, 8, 1], tf.float32)
    model, choice = model_of(convolution, spec), StepChoice("on")
    start = model.values()
    plain, xla = programs_of(model, None), programs_of(model, choice)
    images = tf.constant(np.random.default_rng(3).normal(size=(BATCH, 8, 8, 1)).astype(np.float32))
    expected = step(plain, images, labels_for(BATCH))
    model.assign(start)
    result = step(xla, images, labels_for(BATCH))
    assert len(result.state) == 2
    assert_same(result, expected)
    assert choice.settled is StepKind.XLA


def xla_runs(programs: Programs, monkeypatch: pytest.MonkeyPatch) -> list[bool]:
    """Notes for each minibatch that is given to the step of XLA whether it computed it."""
    from elasticdl_worker.trainers.tensorflow.step.xla import XlaStep

    ran: list[bool] = []
    original = XlaStep.run

    def run(self: XlaStep, *arguments: Any) -> tuple[Any, bool]:
        outputs, compiled = original(self, *arguments)
        ran.append(outputs is not None)
        return outputs, compiled

    monkeypatch.setattr(XlaStep, "run", run)
    return ran


def test_minibatches_of_another_size_run_the_plain_step(monkeypatch: pytest.MonkeyPatch) -> None:
    model = model_of(deepfm, IDS)
    plain, xla = programs_of(model, None), programs_of(model, StepChoice("on"))
    ran = xla_runs(xla, monkeypatch)
    for records in (5, BATCH, BATCH + 1):
        ids, labels = ids_of(records, 30), labels_for(records)
        assert_same(step(xla, ids, labels), step(plain, ids, labels))
    assert ran == [True]


def test_minibatches_of_more_rows_run_the_plain_step_until_they_are_common(monkeypatch: pytest.MonkeyPatch) -> None:
    model, choice = model_of(deepfm, IDS), StepChoice("on")
    plain, xla = programs_of(model, None), programs_of(model, choice)
    ran = xla_runs(xla, monkeypatch)
    step(xla, ids_of(BATCH, 5), labels_for(BATCH))
    for seed in range(21):
        ids = ids_of(BATCH, 400, seed)
        assert_same(step(xla, ids, labels_for(BATCH)), step(plain, ids, labels_for(BATCH)))
    assert ran == [True] + [False] * 20 + [True]
    assert choice.settled is StepKind.XLA


def test_a_model_that_xla_cannot_compile_runs_plain_with_a_warning() -> None:
    def through_text() -> Any:
        numbers = tf.keras.Input((4,))
        read = Layers.Lambda(lambda x: tf.strings.to_number(tf.strings.as_string(x)), output_shape=(4,))(numbers)
        return tf.keras.Model(numbers, Layers.Dense(1)(read))

    model, choice = model_of(through_text, tf.TensorSpec([None, 4], tf.float32)), StepChoice("on")
    plain, xla = programs_of(model, None), programs_of(model, choice)
    numbers = tf.reshape(tf.range(4.0 * BATCH), [BATCH, 4])
    with capture_logs() as logs:
        for _ in range(2):
            assert_same(step(xla, numbers, labels_for(BATCH)), step(plain, numbers, labels_for(BATCH)))
    assert choice.settled is StepKind.PLAIN
    (warning,) = [entry for entry in logs if entry["log_level"] == "warning"]
    assert "AsString" in warning["reason"]


def test_string_features_run_plain() -> None:
    def texts() -> Any:
        words = tf.keras.Input((4,), dtype="string")
        lengths = Layers.Lambda(lambda w: tf.cast(tf.strings.length(w), tf.float32), output_shape=(4,))(words)
        return tf.keras.Model(words, Layers.Dense(1)(lengths))

    model, choice = model_of(texts, tf.TensorSpec([None, 4], tf.string)), StepChoice("on")
    with capture_logs() as logs:
        step(programs_of(model, choice), tf.constant([["a", "bb", "ccc", ""]] * BATCH), labels_for(BATCH))
    assert choice.settled is StepKind.PLAIN
    assert "no strings" in logs[-1]["reason"]


def test_features_of_open_shape_run_plain() -> None:
    def ragged() -> Any:
        ids = tf.keras.Input((None,), dtype="int64")
        return tf.keras.Model(ids, Layers.Dense(1)(Layers.GlobalAveragePooling1D()(Layers.Embedding(50, 4)(ids))))

    model, choice = model_of(ragged, tf.TensorSpec([None, None], tf.int64)), StepChoice("on")
    with capture_logs() as logs:
        step(programs_of(model, choice), ids_of(BATCH, 9), labels_for(BATCH))
    assert choice.settled is StepKind.PLAIN
    assert "fixed shapes" in logs[-1]["reason"]


def test_a_mistake_of_the_user_is_raised_by_the_plain_step() -> None:
    model = model_of(deepfm, IDS)
    broken = Programs(model, lambda labels, predictions: 0.0, LABELS, choice=StepChoice("on"), minibatch_size=BATCH)
    with pytest.raises(UserCodeError, match="depends on no trainable parameter"):
        step(broken, ids_of(BATCH, 9), labels_for(BATCH))


def about_to_try() -> StepChoice:
    choice = StepChoice("auto")
    for _ in range(WATCHED_STEPS):
        choice.record(StepKind.PLAIN, WATCHED_S / WATCHED_STEPS + 0.001)
    return choice


@pytest.mark.parametrize("threshold", [0, None], ids=["on PS", "in graph"])
def test_auto_tries_xla_only_where_it_drops_no_check(threshold: int | None) -> None:
    """XLA moves an id that is out of range into it; the plain step raises, as the worker does for rows of PS."""
    model, choice = model_of(deepfm, IDS, threshold), about_to_try()
    plain, programs = programs_of(model, None), programs_of(model, choice)
    with capture_logs() as logs:
        for number in range(2 * TRIAL_STEPS + 1):
            ids, labels = ids_of(BATCH, 20, number), labels_for(BATCH, number)
            assert_same(step(programs, ids, labels), step(plain, ids, labels))
    assert choice.settled is not None
    if threshold is None:
        assert choice.settled is StepKind.PLAIN
        assert "drop a check" in logs[-1]["reason"]
        with pytest.raises(DataError, match="the id 5000 is outside"):
            step(programs, tf.constant([[0, 1, 2, 5000]] * BATCH), labels_for(BATCH))
    else:
        assert logs[-1]["event"].startswith("compiled step: plain ")


def test_on_uses_xla_where_it_drops_a_check_but_says_so() -> None:
    model, choice = model_of(deepfm, IDS, None), StepChoice("on")
    plain, xla = programs_of(model, None), programs_of(model, choice)
    with capture_logs() as logs:
        for _ in range(2):
            assert_same(
                step(xla, ids_of(BATCH, 9), labels_for(BATCH)), step(plain, ids_of(BATCH, 9), labels_for(BATCH))
            )
    assert choice.settled is StepKind.XLA
    assert [(entry["log_level"], "embedding" in entry["operation"]) for entry in logs] == [("warning", True)]


def test_auto_tries_a_convolution() -> None:
    spec = tf.TensorSpec([None, 8, 8, 1], tf.float32)
    model, choice = model_of(convolution, spec), about_to_try()
    programs = programs_of(model, choice)
    images = tf.zeros([BATCH, 8, 8, 1])
    with capture_logs() as logs:
        for _ in range(2 * TRIAL_STEPS + 1):
            step(programs, images, labels_for(BATCH))
    assert logs[-1]["event"].startswith("compiled step: plain ")


def test_an_eager_run_compiles_nothing() -> None:
    model, choice = model_of(deepfm, IDS), StepChoice("on")
    eager = Programs(model, loss, LABELS, eager=True, choice=choice, minibatch_size=BATCH)
    assert_same(
        step(eager, ids_of(BATCH, 9), labels_for(BATCH)),
        step(programs_of(model, None), ids_of(BATCH, 9), labels_for(BATCH)),
    )
    assert choice.settled is StepKind.XLA  # never asked

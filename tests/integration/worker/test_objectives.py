"""The objective of an update in parts is that of its minibatch in Keras, for every loss, or the job is refused."""

from __future__ import annotations

import dataclasses
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from elasticdl_core.errors import UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_worker.reporting.failures import NotFiniteError
from elasticdl_worker.trainers.tensorflow.step.denominators import KerasDenominators
from tests.fakes.group_steps import MICROBATCH
from tests.integration.worker.small_jobs import make_job
from tests.integration.worker.test_replica import make_step, records, replica_of, task_of

pytestmark = pytest.mark.integration
MODEL = """
def forward(decay=None):
    inputs = tf.keras.Input((3,))
    x = tf.keras.layers.Dense(4, activation="tanh", kernel_regularizer=decay)(inputs)
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(x))

def optimizer():
    return tf.keras.optimizers.SGD(0.1)

def squares(labels, predictions):
    return tf.square(labels - predictions[:, 0])

def weighed(labels, predictions):
    weights = tf.where(labels > 0.5, 20.0, 1.0)
    return tf.reduce_sum(weights * squares(labels, predictions)) / tf.reduce_sum(weights)

def covered(labels, predictions):
    mask = tf.cast(labels > 0.5, tf.float32)
    return tf.reduce_sum(mask * squares(labels, predictions)) / tf.reduce_sum(mask)

def added(labels, predictions):
    return tf.reduce_sum(squares(labels, predictions)) * 0.1

def root(labels, predictions):
    return tf.sqrt(tf.reduce_mean(squares(labels, predictions)))

def largest(labels, predictions):
    return tf.reduce_max(squares(labels, predictions))

def contrastive(labels, predictions):
    alike = predictions @ tf.transpose(predictions)
    return tf.reduce_mean(tf.nn.sparse_softmax_cross_entropy_with_logits(tf.range(tf.shape(alike)[0]), alike))
"""
MASKED = (
    MODEL.replace("inputs = tf.keras.Input((3,))", "inputs = tf.keras.Input((3, 1))").replace(
        "(inputs)\n", "(tf.keras.layers.Masking()(inputs))\n"
    )
    + """
def loss(labels, predictions):
    return tf.keras.losses.MeanSquaredError()(tf.repeat(labels[:, None, None], 3, 1), predictions)

def feed(dataset, mode, metadata):
    def parse(columns):
        values = tf.nn.relu(tf.strings.to_number(columns[1:]))
        return values[:, None], tf.strings.to_number(columns[0])
    return dataset.map(parse)
"""
)


@pytest.fixture
def job(tmp_path: Path) -> Any:
    def make(module: str = MODEL, data: Any = None, **fields: Any) -> JobSpec:
        group = {"distribution_strategy": "AllReduceStrategy", "microbatches": 2, "max_workers": 2}
        spec = make_job(tmp_path, module, records() if data is None else data, **fields)
        return dataclasses.replace(spec, minibatch_size=2 * MICROBATCH, **group)

    return make


@pytest.mark.parametrize("fused", [1, 2])
@pytest.mark.parametrize("loss", ["weighed", "added", "masked"])
def test_the_parts_of_an_update_train_what_keras_trains_on_all_of_it(loss: str, fused: int, job: Any) -> None:
    spec = job(MASKED if loss == "masked" else MODEL, **({} if loss == "masked" else {"loss": loss}))
    replica = replica_of(dataclasses.replace(spec, deterministic=fused == 1))
    net, module = replica.model.keras_model, replica._module
    batch = replica.read(task_of(spec), 0, 2 * MICROBATCH).content
    with tf.GradientTape() as tape:
        whole = module.loss(batch.labels, net(batch.features, training=True))
    wanted = [
        (variable - 0.1 * gradient).numpy()
        for variable, gradient in zip(
            net.trainable_variables, tape.gradient(whole, net.trainable_variables), strict=True
        )
    ]
    make_step([replica], spec, 0, microbatches=2, fused=fused)
    for variable, value in zip(net.trainable_variables, wanted, strict=True):
        np.testing.assert_allclose(variable.numpy(), value, atol=2e-6, err_msg=variable.name)


def test_a_part_that_is_masked_as_a_whole_leaves_the_update_to_the_others(job: Any) -> None:
    spec = job(loss="covered")
    replica = replica_of(spec)
    data = replica.read(task_of(spec), 0, MICROBATCH)
    nothing = dataclasses.replace(data, content=dataclasses.replace(data.content, labels=tf.zeros(MICROBATCH)))
    given = replica.compute(0, 0, nothing, 0)
    assert (given.rows, given.loss, given.denominator) == (MICROBATCH, 0.0, 0.0)
    assert not any(array.any() for array in given.arrays[:-1])
    with pytest.raises(NotFiniteError, match="nan in each part"):
        replica.apply(given.arrays, MICROBATCH, 0)


@pytest.mark.parametrize("length", [3, 5])
def test_a_part_of_one_record_counts_one_also_where_it_is_longer(length: int) -> None:
    """As of texts that are padded to the longest of a minibatch."""
    draw = np.random.default_rng(1)

    def some(rows: int, length: int) -> tuple[Any, Any]:
        return (tf.constant(draw.normal(size=(rows, length)).astype("float32")) for _ in range(2))

    def loss(labels: Any, given: Any) -> Any:
        return tf.reduce_mean(tf.square(labels - given))

    denominators = KerasDenominators(loss, *some(16, 3), rows=16)
    labels, given = some(1, length)
    assert denominators.of(denominators.measure(labels, given), 1, labels, given) == 1.0


def test_a_loss_may_take_no_labels() -> None:
    given = tf.constant(np.random.default_rng(1).normal(size=(32, 2)).astype("float32"))
    denominators = KerasDenominators(lambda _, outputs: tf.reduce_mean(tf.square(outputs)), None, given, rows=32)
    assert denominators.of(denominators.measure(None, given[:8]), 8, None, given[:8]) == 8.0


@pytest.mark.parametrize("loss", ["root", "contrastive", "largest", "added"])
def test_a_loss_that_parts_cannot_make_is_refused_before_the_first_update(loss: str, job: Any) -> None:
    regularised = {"model_params": {"decay": "l2"}} if loss == "added" else {}
    spec = job(loss=loss, **regularised)
    with pytest.raises(
        UserCodeError, match="no sum over records" if regularised else "neither a sum nor a"
    ) as refused:
        replica_of(spec)
    assert "--microbatches 1" in refused.value.fix


ADDING = (
    MODEL.replace("return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(x))", "return Adding(inputs, x)")
    + """
def Adding(inputs, x):
    class Layer(tf.keras.layers.Layer):
        def call(self, x, training=False):
            if training or not ONLY:
                self.add_loss(0.1 * ADDED)
            return x
    return tf.keras.Model(inputs, tf.keras.layers.Dense(1)(Layer()(x)))
"""
)
SUM, MEAN, ROOT = (
    "tf.reduce_sum(tf.square(x))",
    "tf.reduce_mean(tf.abs(x))",
    "tf.sqrt(tf.reduce_mean(tf.square(x)))",
)


@pytest.mark.parametrize("only", ["False", "True"])
@pytest.mark.parametrize(("loss", "added"), [("squares", MEAN), ("added", SUM)])
def test_what_a_model_adds_trains_in_parts_as_a_whole(loss: str, added: str, only: str, job: Any) -> None:
    """A sum beside a sum was refused."""
    spec = job(ADDING.replace("ADDED", added).replace("ONLY", only), loss=loss)
    replica = replica_of(spec)
    net, module = replica.model.keras_model, replica._module
    batch = replica.read(task_of(spec), 0, 2 * MICROBATCH).content
    with tf.GradientTape() as tape:
        whole = tf.reduce_mean(module.loss(batch.labels, net(batch.features, training=True))) + net.losses[0]
    gradients = tape.gradient(whole, net.trainable_variables)
    wanted = [
        (one - 0.1 * gradient).numpy() for one, gradient in zip(net.trainable_variables, gradients, strict=True)
    ]
    make_step([replica], spec, 0, microbatches=2)
    for variable, value in zip(net.trainable_variables, wanted, strict=True):
        np.testing.assert_allclose(variable.numpy(), value, atol=2e-6, err_msg=variable.name)


DRAWN = "tf.reduce_{}(tf.square(x + keras.random.normal(tf.shape(x), stddev=0.3, seed=self.seed)))"


@pytest.mark.parametrize("only", ["False", "True"])
def test_what_goes_by_random_numbers_is_told_by_its_size(only: str, job: Any) -> None:
    """As the loss of a variational autoencoder that the model adds."""
    made = "        def build(self, shape):\n            self.seed = keras.random.SeedGenerator(1)\n        def call"
    source = "import keras\n" + ADDING.replace("ONLY", only).replace("        def call", made)
    replica_of(job(source.replace("ADDED", DRAWN.format("mean")), loss="squares"))
    with pytest.raises(UserCodeError, match="adds to the loss"):
        replica_of(job(source.replace("ADDED", DRAWN.format("sum")), loss="squares"))


ENDPOINT = """
def nothing(labels, predictions):
    return 0.0 * tf.reduce_sum(predictions)
"""


@pytest.mark.parametrize("added", [MEAN, SUM])
def test_a_loss_that_is_added_alone_trains_in_parts_as_a_whole(added: str, job: Any) -> None:
    """By a layer at the end, with a loss of 0; it was refused."""
    spec = job(ADDING.replace("ADDED", added).replace("ONLY", "True") + ENDPOINT, loss="nothing")
    replica = replica_of(spec)
    net = replica.model.keras_model
    batch = replica.read(task_of(spec), 0, 2 * MICROBATCH).content
    with tf.GradientTape() as tape:
        net(batch.features, training=True)
        whole = net.losses[0]
    first = net.trainable_variables[0]
    wanted = (first - 0.1 * tape.gradient(whole, first)).numpy()
    make_step([replica], spec, 0, microbatches=2)
    np.testing.assert_allclose(first.numpy(), wanted, atol=2e-6)
    with pytest.raises(UserCodeError, match="0 on the first records"):
        replica._denominators.of(tf.constant([0.5, 0.0, -1.0, 0.0], tf.float64), MICROBATCH, None, None)


@pytest.mark.parametrize("only", ["False", "True"])
@pytest.mark.parametrize(
    ("loss", "added"), [("squares", SUM), ("squares", ROOT), ("added", MEAN)], ids=["sum", "root", "mean"]
)
def test_what_a_model_adds_otherwise_than_the_loss_is_refused_in_parts(
    loss: str, added: str, only: str, job: Any
) -> None:
    """All but the mean trained another objective than one process, and said nothing."""
    spec = job(ADDING.replace("ADDED", added).replace("ONLY", only), loss=loss)
    with pytest.raises(UserCodeError, match="adds to the loss") as refused:
        replica_of(spec)
    assert "--microbatches 1" in refused.value.fix
    replica_of(dataclasses.replace(spec, microbatches=1))


def test_a_mask_over_later_records_is_found_in_what_a_model_adds(job: Any) -> None:
    """The trial saw the first records alone, none of which the mask leaves out."""
    data = np.tile(records(), (4, 1))
    data[len(data) // 2 + 5 :: 7, 1] = -9e3
    kept = "tf.cast(tf.abs(x[:, 0]) < 1.0, tf.float32)"  # of a tanh
    mean = f"tf.reduce_sum({kept} * tf.abs(x[:, 1])) / tf.reduce_sum({kept})"
    source = ADDING.replace("ADDED", mean).replace("ONLY", "False")
    replica_of(job(source, loss="squares"))
    with pytest.raises(UserCodeError, match="adds to the loss"):
        replica_of(job(source, data, loss="squares"))


BENT = (
    MODEL.replace("Dense(1)(x)", "Dense(1)(Own()(x))")
    + """
@tf.custom_gradient
def own(x):
    return tf.identity(x), lambda gradient: {gradient}

class Own(tf.keras.layers.Layer):
    def call(self, x):
        return own(x)

loss = squares
"""
)


def test_gradients_that_are_changed_by_their_size_in_the_backward_pass_are_refused_in_parts(job: Any) -> None:
    source = BENT.replace("{gradient}", "tf.clip_by_norm(gradient, 0.01)")
    with pytest.raises(UserCodeError, match="does not grow as the loss does") as refused:
        replica_of(job(source))
    assert "GradientClipping" in str(refused.value.fix)
    replica_of(dataclasses.replace(job(source), microbatches=1))


def test_gradients_that_are_turned_around_in_the_backward_pass_train_in_parts(job: Any) -> None:
    replica_of(job(BENT.replace("{gradient}", "-0.5 * gradient")))

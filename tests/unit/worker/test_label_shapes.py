"""Labels and predictions of shapes that broadcast to a table."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import numpy as np
import pytest
import tensorflow as tf

from elasticdl_core.errors import DataError, UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_worker.local import run_local
from elasticdl_worker.trainers.tensorflow.model.label_shapes import align, aligned_loss, refuse_outer
from elasticdl_worker.trainers.tensorflow.model.metrics import make_metrics
from elasticdl_worker.user_code import ModelModule

pytestmark = pytest.mark.unit


def squared(labels: Any, predictions: Any) -> Any:
    return tf.reduce_mean(tf.square(labels - predictions))


def pairs(labels: Any, predictions: Any) -> Any:
    """Each pair of records on purpose, as ranking losses have it."""
    scores = predictions - tf.transpose(predictions)
    order = labels[:, None] - labels[None, :]
    return tf.reduce_mean(tf.nn.relu(1.0 - scores * tf.sign(order))) + tf.reduce_mean(
        predictions - tf.squeeze(predictions, 1)
    )


def contrastive(labels: Any, predictions: Any) -> Any:
    same = tf.cast(labels[:, None] == labels[None, :], tf.float32)
    return tf.reduce_mean((tf.matmul(predictions, predictions, transpose_b=True) - same) ** 2)


def sparse(labels: Any, predictions: Any) -> Any:
    return tf.nn.sparse_softmax_cross_entropy_with_logits(tf.cast(labels, tf.int32), predictions)


@pytest.mark.parametrize("shapes", [((None,), (None, 1)), ((None, 1), (None,)), ((8,), (8, 1))])
@pytest.mark.parametrize(
    "function",
    [squared, lambda a, b: tf.abs(b - a), lambda a, b: tf.math.squared_difference(a, tf.sigmoid(b)) * 2.0],
)
def test_what_meets_every_record_is_refused_with_both_shapes(shapes: Any, function: Any) -> None:
    labels, predictions = (tf.TensorSpec(shape, tf.float32) for shape in shapes)
    shown = ["[N]" if len(shape) == 1 else "[N, 1]" for shape in shapes]
    with pytest.raises(UserCodeError) as caught:
        refuse_outer("the loss", function, labels, predictions)
    assert f"labels have the shape {shown[0]}, predictions {shown[1]}" in caught.value.message
    assert "the same shape" in caught.value.fix


@pytest.mark.parametrize("function", [tf.function(squared), lambda a, b: 2.0 * tf.function(squared)(a, b)])
def test_it_is_found_in_functions_that_are_compiled_already(function: Any) -> None:
    labels, column = tf.TensorSpec((None,), tf.float32), tf.TensorSpec((None, 1), tf.float32)
    with pytest.raises(UserCodeError, match=r"the shape \[N\], predictions \[N, 1\]"):
        refuse_outer("the loss", function, labels, column)
    refuse_outer("the loss", function, column, column)
    refuse_outer("the loss", tf.function(pairs), labels, column)


def test_arguments_that_are_named_the_other_way_round_are_refused() -> None:
    def loss(y_pred: Any, y_true: Any) -> Any:
        return squared(y_true, y_pred)

    module = ModelModule(Path("m.py"), (), lambda: None, loss=loss, eval_metrics_fn=lambda: {"mine": loss})
    for what, make in (("the loss", aligned_loss), ("the metric mine", lambda one: make_metrics(one, None))):
        with pytest.raises(UserCodeError, match=rf"{what} names its arguments \(y_pred, y_true\)") as caught:
            make(module)
        assert "(labels, predictions)" in caught.value.fix


def test_a_loss_that_is_a_class_is_refused() -> None:
    """Called with labels and predictions it made an object, and TensorFlow's words came out."""
    module = ModelModule(Path("m.py"), (), lambda: None, loss=tf.keras.losses.MeanSquaredError)
    with pytest.raises(UserCodeError, match="the loss is the class MeanSquaredError") as caught:
        aligned_loss(module)
    assert caught.value.fix == "give an object: MeanSquaredError()"


@pytest.mark.parametrize(
    ("function", "labels", "predictions"),
    [
        (squared, (None, 1), (None, 1)),
        (squared, (None,), (None,)),
        (squared, (None, 3), (None, 3)),
        (sparse, (None,), (None, 5)),
        (pairs, (None,), (None, 1)),
        (contrastive, (None,), (None, 16)),
        (lambda a, b: squared(tf.reshape(a, tf.shape(b)), b), (None,), (None, 1)),
        (lambda a, b: squared(a, b[:, 0]), (None,), (None, 1)),
        (tf.keras.losses.MeanSquaredError(), (None,), (None, 1)),
        (tf.keras.losses.BinaryCrossentropy(from_logits=True), (None,), (None, 1)),
        (lambda a, b: np.mean(a.numpy() - b.numpy()), (None,), (None, 1)),
        (lambda a, b: squared(a["x"], b["x"]), {"x": (None,)}, {"x": (None,), "y": (None, 1)}),
    ],
)
def test_what_is_meant_is_let_through(function: Any, labels: Any, predictions: Any) -> None:
    def specs(shapes: Any) -> Any:
        if isinstance(shapes, dict):
            return {name: specs(shape) for name, shape in shapes.items()}
        return tf.TensorSpec(shapes, tf.float32)

    refuse_outer("the loss", function, specs(labels), specs(predictions))


def test_labels_are_aligned_with_a_single_prediction_only() -> None:
    labels = tf.constant([1.0, 2.0])
    assert align(labels, tf.zeros((2, 1))).shape == (2, 1)
    assert align(labels, tf.zeros((2, 3))).shape == (2,)
    assert align(labels, tf.zeros(2)).shape == (2,)


LINE = """
import tensorflow as tf
def forward():
    return tf.keras.Sequential([tf.keras.Input((1,)), tf.keras.layers.Dense(1)])
def loss(labels, predictions):
    return tf.reduce_mean(tf.square(labels - predictions))
def optimizer():
    return tf.keras.optimizers.SGD(0.5)
def eval_metrics_fn():
    return {"error": lambda labels, predictions: tf.abs(labels - predictions)}
"""
FEED = """
def feed(dataset, mode, metadata):
    def parse(row):
        numbers = tf.strings.to_number(row)
        return numbers[:1], numbers[1]
    return dataset.map(parse)
"""


@pytest.fixture
def line(tmp_path: Path) -> Any:
    """Trains on y = 3 x; gives the metrics."""
    x = np.random.default_rng(0).uniform(-1, 1, 512)
    data = tmp_path / "line.csv"
    data.write_text("x,y\n" + "".join(f"{value:.4f},{3 * value:.4f}\n" for value in x))

    def train(module: str, **fields: Any) -> Any:
        (tmp_path / "line.py").write_text(module)
        events: list[dict[str, Any]] = []
        spec = JobSpec(
            model_def="line.forward", model_zoo=str(tmp_path), training_data=str(data), validation_data=str(data),
            num_epochs=4, export_formats="", data_reader_params={"label": "y"}, **fields,
        )  # fmt: skip
        run_local(spec, tmp_path / "out", events.append)
        return events[-1]["metrics"]

    return train


def test_the_built_in_feed_gives_labels_in_the_shape_of_the_predictions(line: Any) -> None:
    metrics = line(LINE)
    assert metrics["loss"] < 0.01
    assert metrics["error"] < 0.1


@pytest.mark.parametrize("eager", [False, True])
def test_a_feed_of_ones_own_is_told(line: Any, eager: bool) -> None:
    with pytest.raises(UserCodeError) as caught:
        line(LINE + FEED, eager=eager)
    assert "the loss compares each label with the prediction of every record" in caught.value.message


def test_the_built_in_feed_names_the_field_that_is_no_number(tmp_path: Path) -> None:
    """It named a feed that the user does not have, and no row."""
    (tmp_path / "line.py").write_text(LINE)
    data = tmp_path / "line.csv"
    data.write_text("x,y\n" + "1,2.5\n" * 150 + "1.5,two\n" + "1,2.5\n" * 50)
    spec = JobSpec(
        model_def="line.forward", model_zoo=str(tmp_path), training_data=str(data), export_formats="",
        data_reader_params={"label": "y"},
    )  # fmt: skip
    with pytest.raises(DataError) as caught:
        run_local(spec, tmp_path / "out", lambda event: None)
    assert f"{data}: record 150: column 'y' holds 'two'" in caught.value.message
    assert "columns" in caught.value.fix

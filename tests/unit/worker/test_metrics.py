"""Metrics give the same however records are divided into minibatches and over workers, or are refused."""

from __future__ import annotations

from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest
import tensorflow as tf

from elasticdl_core.errors import UserCodeError
from elasticdl_worker.local import run_local
from elasticdl_worker.trainers.tensorflow.model.metrics import make_metrics
from elasticdl_worker.user_code import ModelModule
from tests.fakes.master import FakeMaster
from tests.fakes.parameters import MemoryParameters
from tests.unit.worker.test_contract import BASE, FEED
from tests.unit.worker.test_ps_training import add_training, work

pytestmark = pytest.mark.unit
LABELS = np.array([1.0, 0.0, 1.0, 1.0, 0.0, 1.0, 0.0], np.float32)
GUESSES = np.array([9.0, 1.0, 4.0, 0.5, 2.0, -1.0, 3.0], np.float32)


class Largest(keras.metrics.Metric):
    """A state that is no sum."""

    def __init__(self) -> None:
        super().__init__(name="largest")
        self.value = self.add_variable((), "zeros", name="value")

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.value.assign(tf.maximum(self.value.value, tf.reduce_max(tf.abs(y_true - y_pred))))

    def result(self) -> Any:
        return self.value


class Last(Largest):
    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.value.assign(tf.reduce_mean(y_pred))


class Squares(Largest):
    """A state that is one."""

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        self.value.assign_add(tf.reduce_sum(tf.square(y_pred)))


def metrics(given: Any, outputs: tuple[str, ...] | None = ()) -> Any:
    module = ModelModule(Path("net.py"), (), lambda: None, eval_metrics_fn=lambda: given)
    return make_metrics(module, None, outputs)


def over(given: Any, *sizes: int) -> dict[str, float]:
    """The metrics of the records, divided into minibatches of these sizes, each on a worker of its own."""
    merged: dict[str, Any] = {}
    one = metrics(given)
    start = 0
    for size in sizes:
        one.reset()
        one.update(tf.constant(LABELS[start : start + size]), tf.constant(GUESSES[start : start + size]), size)
        for name, state in one.state().items():
            sums = merged.get(name, {"sum": None})["sum"]
            added = state["sum"] if sums is None else add(sums, state["sum"])
            merged[name] = {**state, "sum": added}
        start += size
    return one.results(merged)


def add(first: Any, second: Any) -> Any:
    return [add(a, b) for a, b in zip(first, second, strict=True)] if isinstance(first, list) else first + second


@pytest.mark.parametrize(
    "function",
    [
        lambda labels, guesses: tf.reduce_mean(tf.square(labels - guesses)),
        lambda labels, guesses: float(np.mean((labels.numpy() - guesses.numpy()) ** 2)),
        lambda labels, guesses: tf.square(labels - guesses),
        keras.losses.MeanSquaredError(),
    ],
    ids=["mean", "number", "values", "loss"],
)
def test_a_mean_is_the_same_however_records_are_divided(function: Any) -> None:
    expected = {"mse": pytest.approx(float(np.mean((LABELS - GUESSES) ** 2)), rel=1e-5)}
    assert over({"mse": function}, 7) == expected
    assert over({"mse": function}, 4, 3) == expected
    assert over({"mse": function}, 3, 3, 1) == expected


@pytest.mark.parametrize(
    "function",
    [
        lambda labels, guesses: tf.sqrt(tf.reduce_mean(tf.square(labels - guesses))),
        lambda labels, guesses: tf.reduce_max(guesses),
        lambda labels, guesses: tf.reduce_sum(guesses),
    ],
    ids=["root", "largest", "sum"],
)
def test_a_number_that_is_no_mean_is_refused(function: Any) -> None:
    with pytest.raises(UserCodeError, match=r"the metric own is .* on 7 records and .* on average") as caught:
        over({"own": function}, 7)
    assert "one value for each record" in caught.value.fix


TABLE = np.arange(28.0, dtype=np.float32).reshape(7, 4)


@pytest.mark.parametrize(
    "function",
    [
        lambda labels, guesses: tf.reduce_mean(tf.abs(labels - guesses), axis=0),
        lambda labels, guesses: tf.reduce_max(guesses, axis=0),
        lambda labels, guesses: guesses / tf.reduce_max(guesses),
    ],
    ids=["of each class", "largest of each", "by the largest of all"],
)
@pytest.mark.parametrize("records", [4, 7])  # as many as classes too
def test_values_that_are_not_of_the_records_are_refused(function: Any, records: int) -> None:
    given = tf.constant(TABLE[:records] * 0 + 1.0), tf.constant(TABLE[:records])
    words = rf"the metric own gives \d+ values .* for {records} records, and .* for its halves: .* no mean over its"
    with pytest.raises(UserCodeError, match=words) as caught:
        metrics({"own": function}).update(*given, records)
    assert "one value for each record" in caught.value.fix


@pytest.mark.parametrize(
    "function",
    [
        lambda labels, guesses: tf.abs(labels - guesses),
        lambda labels, guesses: tf.reduce_mean(guesses, axis=1) - 13.5,  # of which the sum is none
        lambda labels, guesses: tf.boolean_mask(guesses[:, 1], guesses[:, 0] > 8),
        lambda labels, guesses: tf.transpose(guesses),
    ],
    ids=["all", "of each record", "of some", "turned"],
)
def test_values_of_records_are_taken(function: Any) -> None:
    right = float(np.mean(function(tf.constant(TABLE * 0), tf.constant(TABLE))))
    for sizes in ((7,), (4, 3), (2, 4, 1)):
        one, start = metrics({"own": function}), 0
        for size in sizes:
            piece = tf.constant(TABLE[start : start + size])
            one.update(piece * 0, piece, size)
            start += size
        assert one.results(one.state())["own"] == pytest.approx(right, abs=1e-5)


def test_a_number_that_shows_nothing_yet_is_tried_again() -> None:
    found = metrics({"own": lambda labels, guesses: tf.reduce_max(guesses)})
    found.update(tf.zeros(4), tf.zeros(4), 4)
    with pytest.raises(UserCodeError, match="no mean over its records"):
        found.update(tf.zeros(4), tf.constant([1.0, 2.0, 3.0, 4.0]), 4)


def masked(labels: Any, guesses: Any) -> Any:
    counts = tf.cast(labels >= 0, tf.float32)
    return tf.reduce_sum(counts * tf.abs(labels - guesses)) / tf.reduce_sum(counts)


def masked_values(labels: Any, guesses: Any) -> Any:
    counts = tf.cast(labels >= 0, tf.float32)
    return counts * tf.abs(labels - guesses) / tf.reduce_mean(counts)


@pytest.mark.parametrize("metric", [masked, masked_values, keras.metrics.MeanMetricWrapper(masked, name="own")])
def test_a_mask_that_a_later_minibatch_has_is_found(metric: Any) -> None:
    found = metrics({"own": metric})
    guesses = tf.constant([0.0, 1.0, 2.0, 3.0])
    for _ in range(2):
        found.update(tf.constant([2.0, 1.0, 4.0, 3.0]), guesses, 4)
    with pytest.raises(UserCodeError, match=r"the metric own .* no mean over its records"):
        found.update(tf.constant([2.0, 5.0, -1.0, 3.0]), guesses, 4)


class Counted(keras.metrics.Metric):
    """Keeps its state in attributes, and by choice a part of it in a variable."""

    def __init__(self, *, half: bool) -> None:
        super().__init__(name="counted")
        self.hits = self.add_variable((), "zeros", name="hits") if half else 0.0
        self.half = half
        self.seen = 0.0

    def update_state(self, y_true: Any, y_pred: Any, sample_weight: Any = None) -> None:
        hits = tf.reduce_sum(tf.cast(tf.equal(y_true > 0, y_pred > 2), tf.float32))
        if self.half:
            self.hits.assign_add(hits)
        else:
            self.hits += float(hits)
        self.seen += len(y_true)

    def reset_state(self) -> None:
        super().reset_state()
        self.seen = 0.0

    def result(self) -> Any:
        return self.hits / self.seen if self.seen else 0.0


@pytest.mark.parametrize(("half", "words"), [(False, "keeps no variables"), (True, "from more than its variables")])
def test_a_state_in_attributes_is_refused(half: bool, words: str) -> None:
    with pytest.raises(UserCodeError, match=rf"the metric own \(Counted\) .*{words}") as caught:
        over({"own": Counted(half=half)}, 7)
    assert "add_variable" in caught.value.fix


@pytest.mark.parametrize(
    "kind",
    [
        keras.metrics.MeanSquaredError,
        keras.metrics.MeanAbsoluteError,
        keras.metrics.MeanSquaredLogarithmicError,
        keras.metrics.LogCoshError,
        keras.metrics.BinaryAccuracy,
        keras.metrics.Hinge,
        keras.metrics.RootMeanSquaredError,
        lambda: keras.metrics.MeanMetricWrapper(lambda y, p: tf.reduce_mean(tf.abs(y - p)), name="own"),
    ],
)
@pytest.mark.rotates(turns=4)
def test_means_of_keras_weigh_records_whatever_their_rank(kind: Any) -> None:
    """Of predictions ``[N]`` Keras makes one value a minibatch, which counted as much for one record as for four."""
    whole = kind()
    whole.update_state(LABELS[:, None], GUESSES[:, None])
    assert over({"m": kind()}, 4, 1, 2) == {"m": pytest.approx(float(whole.result()), rel=1e-5)}
    columns = metrics({"m": kind()})
    for start, end in ((0, 4), (4, 5), (5, 7)):
        piece = [tf.constant(values[start:end, None]) for values in (LABELS, GUESSES)]
        columns.update(*piece, end - start)
    assert columns.results(columns.state()) == {"m": pytest.approx(float(whole.result()), rel=1e-5)}


def test_a_mean_of_minibatches_that_is_none_of_records_is_refused() -> None:
    found = metrics({"cosine": keras.metrics.CosineSimilarity()})
    with pytest.raises(UserCodeError, match=r"the metric cosine is .* no mean over its records"):
        found.update(tf.constant(LABELS), tf.constant(GUESSES), len(LABELS))


@pytest.mark.parametrize("kind", [Largest, Last])
def test_a_state_that_is_no_sum_is_refused_with_its_variable(kind: Any) -> None:
    with pytest.raises(UserCodeError, match=rf"the metric own \({kind.__name__}\): .* its variable value") as caught:
        over({"own": kind()}, 4, 3)
    assert "keep sums and counts" in caught.value.fix


def test_a_state_that_is_a_sum_is_taken_and_trying_it_leaves_no_trace() -> None:
    expected = {"own": pytest.approx(float(np.sum(GUESSES**2)), rel=1e-6)}
    assert over({"own": Squares()}, 7) == over({"own": Squares()}, 2, 4, 1) == expected


@pytest.mark.parametrize(
    ("given", "outputs", "message"),
    [
        ({"price": {"mae": lambda labels, guesses: guesses}}, None, "outputs have no names"),
        ({"price": {"mae": lambda labels, guesses: guesses}}, (), "a single output, without a name"),
        ({"prize": {"mae": lambda labels, guesses: guesses}}, ("price", "click"), "has outputs price, click"),
        ({"auc": keras.metrics.AUC()}, ("price", "click"), "takes one output, but the model has price, click"),
        ({"auc": keras.metrics.AUC()}, None, "takes one output, but the model has several"),
        ({"auc": keras.metrics.AUC}, (), "is the class AUC"),
        ({"accuracy": "accuracy"}, (), "resolves by the shapes"),
        ({"own": "nonsense"}, (), "'nonsense', which Keras does not know"),
        ({"own": 3}, (), "is a int"),
    ],
)
def test_what_cannot_be_evaluated_is_refused_before_training(given: Any, outputs: Any, message: str) -> None:
    with pytest.raises(UserCodeError, match=message) as caught:
        metrics(given, outputs)
    assert caught.value.fix


def test_a_metric_that_gives_nothing_is_told() -> None:
    """It was shown as NaN."""
    with pytest.raises(UserCodeError, match="the metric own gives None") as caught:
        over({"own": lambda labels, guesses: None}, 4, 3)
    assert caught.value.fix == "return its value"


def test_names_of_keras_metrics_and_functions_work() -> None:
    given = {"a": "mean_squared_error", "b": "MeanSquaredError", "c": keras.metrics.mean_squared_error}
    one = metrics(given)
    for cut in (slice(0, 4), slice(4, 7)):
        one.update(tf.constant(LABELS[cut, None]), tf.constant(GUESSES[cut, None]), cut.stop - cut.start)
    expected = pytest.approx(float(np.mean((LABELS - GUESSES) ** 2)), rel=1e-5)
    assert one.results(one.state()) == {"a": expected, "b": expected, "c": expected}


LISTS = (
    BASE
    + """
def custom_model():
    ids = keras.Input((3,), dtype="int64")
    x = keras.layers.Rescaling(0.001)(ids)
    return keras.Model(ids, [keras.layers.Dense(1, name="price")(x), keras.layers.Dense(1, name="click")(x)])

class Nameless(Net):
    def call(self, ids, training=False):
        logit = super().call(ids)
        return [logit, logit + 1.0]

def loss(labels, predictions):
    return tf.reduce_mean(tf.square(predictions[0]))

def eval_metrics_fn():
    return {"price": {"own": lambda labels, p: p[:, 0]}, "click": {"own": lambda labels, p: p[:, 0] - p[:, 0] + 2.0}}
"""
)


async def test_a_list_of_named_outputs_is_evaluated_and_one_without_names_refused_before_training(
    make_spec: Any, more_clicks: Path, tmp_path: Path
) -> None:
    zoo = tmp_path / "zoo"
    zoo.mkdir()
    (zoo / "deepfm.py").write_text(FEED)
    (zoo / "net.py").write_text(LISTS)
    fields = {"model_zoo": str(zoo), "validation_data": str(more_clicks), "export_formats": "", "max_steps": 2}
    events: list[dict[str, Any]] = []
    run_local(make_spec(model_def="net.custom_model", **fields), tmp_path / "out", events.append)
    assert events[-1]["metrics"]["click.own"] == 2.0
    assert np.isfinite(events[-1]["metrics"]["price.own"])

    spec = make_spec(model_def="net.Nameless", **fields)
    events.clear()
    with pytest.raises(UserCodeError, match="whose outputs have no names") as local:
        run_local(spec, tmp_path / "out", events.append)
    assert not events
    master = FakeMaster(spec, tmp_path)
    await master.start()
    add_training(master, spec)
    with pytest.raises(UserCodeError) as cluster:
        await work(master, MemoryParameters())
    await master.stop()
    assert not master.reports
    assert cluster.value.message == local.value.message


@pytest.mark.parametrize("given", [{"m" * 181: "mse"}, {"out": {"m" * 177: "mse"}}])
def test_a_name_that_no_series_can_have_is_refused(given: Any) -> None:
    with pytest.raises(UserCodeError, match="name of a metric has 181 characters"):
        metrics(given, ("out",))

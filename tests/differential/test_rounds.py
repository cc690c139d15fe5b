"""Rounds of parameter servers train the objective of all their records, as the local run of the same records does.

One worker brings all gradients of a round, so both have the same records in each update. A task has three minibatches
and an epoch six: rounds go across tasks, and end with the epoch.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from tests.differential.data import late, table, validated, write_csv
from tests.differential.driver import Bench, Row, differences
from tests.differential.rows import embeddings
from tests.differential.rows.legacy import ROWS as LEGACY_ROWS
from tests.differential.rows.torch_models import module_of
from tests.differential.zoo import module
from tests.fakes.frameworks import NEEDS_TORCH

pytestmark = [pytest.mark.integration, pytest.mark.timeout(300), pytest.mark.filterwarnings("ignore")]
TWO = {"use_async": False, "grads_to_wait": 2}
FOUR = {"use_async": False, "grads_to_wait": 4}
TABLES = ("table_adam", "table_momentum", "table_ftrl", "embedding_shared", "embedding_masked_table")
LEGACY = ("legacy_adam",)
OPEN = """
import elasticdl.layers

feed = give("ids")


def forward():
    ids = keras.Input((3,), name="ids", dtype="int64")
    rows = elasticdl.layers.Embedding(3, embeddings_initializer="uniform")(ids)
    return keras.Model(ids, layers.Dense(1)(layers.Flatten()(rows)))


def optimizer():
    return keras.optimizers.Adam(0.01)
"""
IN_TORCH = {**TWO, "export_formats": "safetensors", "embedding_threshold_bytes": 0}
LOSS = """
def loss(labels, predictions):
    weights = {where}(labels > 0.5, 20.0, {other})
    squares = weights * (labels - predictions) ** 2
    return {loss}
"""
KERAS = LOSS.replace("{where}", "tf.where")
TORCH = LOSS.replace("{where}", "torch.where")
ROOT = "def loss(labels, predictions):\n    return {mean}((labels - predictions) ** 2) ** 0.5"
TABLE = """
feed = give(lambda x, ids: ids)


class Net(nn.Module):
    def __init__(self):
        super().__init__()
        self.rows, self.out = nn.Embedding(50, 3), nn.Linear(9, 1)

    def forward(self, ids):
        return self.out(self.rows(ids).flatten(1)).squeeze(-1)


forward = Net
"""
KERAS_WEIGHED = KERAS.format(other=1.0, loss="tf.reduce_sum(squares) / tf.reduce_sum(weights)")
KERAS_SUMMED = KERAS.format(other=0.1, loss="0.01 * tf.reduce_sum(squares)")
TORCH_WEIGHED = TORCH.format(other=0.0, loss="squares.sum() / weights.sum()")
TORCH_SUMMED = TORCH.format(other=0.1, loss="0.01 * squares.sum()")


def _torch(name: str, *parts: str, **spec: object) -> object:
    row = Row(f"torch_{name}", module_of(*parts), "rounds", {**IN_TORCH, **spec}, tolerance=1e-5)
    return pytest.param(row, marks=NEEDS_TORCH)


KERAS_NORM = """
def forward():
    x = keras.Input((4,), name="x")
    return keras.Model(x, layers.Dense(1)(layers.BatchNormalization()(layers.Dense(6, activation="tanh")(x))))
"""
TORCH_NORM = """
def forward():
    return nn.Sequential(nn.Linear(4, 6), nn.BatchNorm1d(6), nn.Tanh(), nn.Linear(6, 1), nn.Flatten(0))
"""
TORCH_OWN = """
class Judging(nn.Module):
    def __init__(self):
        super().__init__()
        self.net = nn.Linear(4, 1)

    def forward(self, x):
        found = self.net(x).squeeze(-1)
        weights = torch.where(x[:, 0] > 0, 10.0, 1.0)
        return found, (weights * found ** 2).sum() / weights.sum()


forward = Judging


def loss(labels, predictions):
    return predictions[1]
"""
ROWS = [
    Row("normalised", module(KERAS_NORM), "rounds", FOUR),
    _torch("normalised", TORCH_NORM, **FOUR),
    _torch("own", TORCH_OWN),
    Row("weighed", module(KERAS_WEIGHED), "rounds", TWO),
    Row("summed", module(KERAS_SUMMED), "rounds", TWO),
    _torch("weighed", TABLE, TORCH_WEIGHED),
    _torch("summed", TORCH_SUMMED),
]


@pytest.mark.parametrize("row", ROWS, ids=lambda row: row.name)
def test_a_round_trains_the_loss_of_all_its_records(bench: Bench, row: Row) -> None:
    local, servers = bench.local(row), bench.cluster(row, workers=1)
    assert differences(row, local, servers) == []
    assert local.steps == servers.steps > 1


def _clipped(option: str) -> Row:
    made = f"def optimizer():\n    return keras.optimizers.SGD(0.3, momentum=0.5, {option})"
    return Row(f"clipped_{option.partition('=')[0]}", module(KERAS_WEIGHED, made), "rounds", TWO)


def _clipped_in_torch(name: str, options: str, *parts: str) -> object:
    made = f"def callbacks():\n    return [elasticdl.callbacks.GradientClipping({options})]"
    return _torch(f"clipped_{name}", *parts, TORCH_WEIGHED, made)


CLIPPED = [
    _clipped("global_clipnorm=0.05"),
    _clipped("clipnorm=0.05"),
    _clipped("clipvalue=0.02"),
    _clipped_in_torch("norm", "max_norm=0.05", TABLE),
    _clipped_in_torch("most", "0.05, float('inf')"),
    _clipped_in_torch("value", "clip_value=0.01", TABLE),
]


@pytest.mark.rotates(turns=3)
@pytest.mark.parametrize("row", CLIPPED, ids=lambda row: row.name)
def test_the_gradient_of_a_round_is_clipped_once(bench: Bench, row: Row) -> None:
    local, servers = bench.local(row), bench.cluster(row, workers=1)
    assert differences(row, local, servers) == []


def _with_bad_record(place: Path, alike: bool) -> Mapping[str, Any]:
    """The label of the tenth record is no number."""
    records = table(alike=alike)
    records[9][0] = "nan"
    write_csv(place / "train.csv", records)
    return {"training_data": str(place / "train.csv")}


KERAS_DROPPING = """
def forward():
    x = keras.Input((4,), name="x")
    return keras.Model(x, layers.Dense(1)(layers.Dense(6, activation="tanh", kernel_regularizer="l2")(x)))


def optimizer():
    rate = keras.optimizers.schedules.ExponentialDecay(0.1, 2, 0.5)
    return keras.optimizers.Adam(rate)
"""
ADAM = "def optimizer():\n    return functools.partial(torch.optim.Adam, lr=0.01, weight_decay=0.1)"
ADAGRAD = "def optimizer():\n    return functools.partial(torch.optim.Adagrad, lr=0.05)"
STEPS = "def optimizer():\n    return torch.optim.NAdam, functools.partial(lr_scheduler.StepLR, step_size=2)"
CAST = (
    "def loss(labels, predictions):\n    return tf.reduce_mean(tf.square(labels - tf.cast(predictions, tf.float32)))"
)
HALVES = "keras.config.set_dtype_policy('mixed_bfloat16')"
EVALUATED = {"evaluation_steps": 2, "max_steps": 5, "num_epochs": 4}
MORE = [
    Row("schedule_regulariser", module(KERAS_DROPPING), "rounds", {**FOUR, "minibatch_size": 5}),
    Row("shuffled", module(KERAS_NORM), "rounds", {**TWO, "shuffle": True, "minibatch_size": 5}),
    Row("bad_record", module(KERAS_NORM), "rounds", {**TWO, "on_nan": "skip"}, data=_with_bad_record),
    Row("limited", module(KERAS_DROPPING), "rounds", {**TWO, **EVALUATED}, data=validated),
    Row("halves", module(HALVES, KERAS_NORM, CAST), "rounds", TWO, tolerance=2e-2),
    Row("open_table", module("import elasticdl.layers", OPEN), "rounds", {**FOUR, "export_formats": "saved_model"}),
    *(
        replace(one, name=f"rounds_{one.name}", spec={**one.spec, **FOUR})
        for one in embeddings.ROWS
        if one.name in TABLES
    ),
    *(
        replace(one, name=f"rounds_{one.name}", spec={**one.spec, **FOUR})
        for one in LEGACY_ROWS
        if one.name in LEGACY
    ),
    _torch("table_adam", TABLE, ADAM, **FOUR),
    _torch("sparse_table", TABLE.replace("nn.Embedding(50, 3)", "nn.Embedding(50, 3, sparse=True)"), ADAGRAD, **FOUR),
    _torch("schedule", STEPS, **FOUR, minibatch_size=5),
    _torch("halves", TORCH_NORM, **FOUR, autocast="bfloat16"),
    _torch("compiled", **FOUR, torch_compile="on"),
    _torch("shuffled_bad_record", TORCH_NORM, **TWO, shuffle=True, on_nan="skip"),
]


@pytest.mark.rotates(turns=6)
@pytest.mark.parametrize("row", MORE, ids=lambda row: row.name)
def test_rounds_are_alike_in_all_else(bench: Bench, row: Row) -> None:
    """Rows of tables, rates by version, minibatches that are cut or left out, limits, and in 16 bits."""
    local, servers = bench.local(row), bench.cluster(row, workers=1)
    assert differences(row, local, servers) == []
    assert (local.steps, local.skipped) == (servers.steps, servers.skipped)


LATE = """
def loss(labels, predictions):
    weights = {where}(labels > -9.0, 1.0, 0.0)
    return {sum}(weights * (labels - predictions) ** 2) / {clipped}
"""
LATE_ROWS = [
    Row(
        "late",
        module(LATE.format(where="tf.where", sum="tf.reduce_sum", clipped="tf.maximum(tf.reduce_sum(weights), 1.0)")),
        "rounds",
        TWO,
        data=late,
    ),
    pytest.param(
        Row(
            "torch_late",
            module_of(LATE.format(where="torch.where", sum="torch.sum", clipped="weights.sum().clamp(min=1.0)")),
            "rounds",
            {**TWO, "export_formats": "safetensors"},
            tolerance=1e-5,
            data=late,
        ),
        marks=NEEDS_TORCH,
    ),
]


@pytest.mark.rotates(turns=2)
@pytest.mark.parametrize("row", LATE_ROWS, ids=lambda row: row.name)
def test_the_first_records_may_have_no_gradient(bench: Bench, row: Row) -> None:
    """By others it is known what denominator the loss has."""
    local, servers = bench.local(row), bench.cluster(row, workers=1)
    assert differences(row, local, servers) == []
    alone = replace(row, spec={key: value for key, value in row.spec.items() if key not in TWO})
    assert differences(alone, bench.local(alone), bench.group(alone)) == []


REFUSED = [
    Row("root", module(ROOT.format(mean="tf.reduce_mean")), "rounds", TWO),
    _torch("root", ROOT.format(mean="torch.mean")),
]


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.name)
def test_a_loss_that_no_round_can_make_is_refused(bench: Bench, row: Row) -> None:
    """By ``--local`` too, which trained it."""
    local, servers = bench.local(row), bench.cluster(row, workers=1)
    assert local.error == servers.error
    assert "neither a sum nor a mean" in local.error[0]
    assert "--grads_to_wait" in local.error[1]


CLAMPED = [
    Row(
        "clamped",
        module(
            """
@tf.custom_gradient
def clamped(x):
    return tf.identity(x), lambda gradient: tf.clip_by_value(gradient, -1e-3, 1e-3)


class Clamped(layers.Layer):
    def call(self, x):
        return clamped(x)


def forward():
    x = keras.Input((4,), name="x")
    return keras.Model(x, layers.Dense(1)(Clamped()(layers.Dense(6, activation="tanh")(x))))
"""
        ),
        "rounds",
        TWO,
    ),
    _torch(
        "clamped",
        """
def loss(labels, predictions):
    if predictions.requires_grad:
        predictions.register_hook(lambda gradient: gradient.clamp(-1e-3, 1e-3))
    return torch.mean((labels - predictions) ** 2)
""",
    ),
]


@pytest.mark.parametrize("row", CLAMPED, ids=lambda row: row.name)
def test_gradients_that_are_clipped_in_the_backward_pass_are_refused_in_rounds(bench: Bench, row: Row) -> None:
    assert "does not grow as the loss does" in bench.cluster(row, workers=1).error[0]

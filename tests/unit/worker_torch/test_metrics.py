"""Metrics of PyTorch: how their states merge, and which are refused."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import torch
import torchmetrics

from elasticdl_core.errors import UserCodeError
from elasticdl_core.json_numbers import to_json
from elasticdl_master.state.metric_states import merge, states_of
from elasticdl_worker.trainers.torch.model.metrics import make_metrics, to_numpy
from elasticdl_worker.user_code import ModelModule

pytestmark = pytest.mark.unit


class Hits:
    """Counts without a ``reset`` or anything else of torchmetrics."""

    def __init__(self) -> None:
        self.threshold = 0.5
        self.hits = 0
        self.seen = torch.zeros(())

    def update(self, predictions: Any, labels: Any) -> None:
        self.hits += int(((predictions > self.threshold) == (labels > 0)).sum())
        self.seen += len(labels)

    def compute(self) -> Any:
        return self.hits / self.seen


def metrics_fn() -> dict[str, Any]:
    return {
        "accuracy": torchmetrics.classification.BinaryAccuracy(),
        "auc": torchmetrics.classification.BinaryAUROC(thresholds=100),
        "own": Hits(),
        "function": lambda labels, predictions: (predictions > 0.5) == (labels > 0),
        "all": torchmetrics.MetricCollection([torchmetrics.classification.BinaryPrecision()]),
        "range": Range(),
    }


class Range(torchmetrics.Metric):
    """The largest prediction less the smallest, and how many there are: each state merges in a way of its own."""

    def __init__(self) -> None:
        super().__init__()
        self.add_state("largest", torch.tensor(-torch.inf), dist_reduce_fx="max")
        self.add_state("smallest", torch.tensor(torch.inf), dist_reduce_fx="min")
        self.add_state("seen", torch.zeros(()), dist_reduce_fx="sum")

    def update(self, predictions: Any, labels: Any) -> None:
        self.largest = torch.maximum(self.largest, predictions.max())
        self.smallest = torch.minimum(self.smallest, predictions.min())
        self.seen += len(predictions)

    def compute(self) -> Any:
        return self.largest - self.smallest + self.seen


def test_states_of_workers_merge_to_what_one_process_gives() -> None:
    module = ModelModule(Path("m.py"), (), lambda: None, eval_metrics_fn=metrics_fn)
    labels, predictions = torch.randint(0, 2, (90,)), torch.rand(90)
    whole, first, second = (make_metrics(module, None, ()) for _ in range(3))
    whole.update(labels, predictions, 90)
    for metrics, part in ((first, slice(0, 30)), (second, slice(30, 70)), (second, slice(70, 90))):
        metrics.update(labels[part], predictions[part], len(labels[part]))
    one, two = first.state(), second.state()
    merged = {name: merge(name, as_told(state), as_told(two[name])) for name, state in one.items()}
    expected = whole.results(whole.state())
    assert set(expected) == {"accuracy", "auc", "own", "function", "all.BinaryPrecision", "range"}
    assert whole.results(merged) == pytest.approx(expected)


def test_a_metric_made_of_others_is_what_torchmetrics_computes() -> None:
    kinds = torchmetrics.classification

    def given() -> dict[str, Any]:
        both = kinds.BinaryPrecision() + kinds.BinaryRecall()
        return {"both": both, "each": torchmetrics.wrappers.MultioutputWrapper(torchmetrics.MeanSquaredError(), 2)}

    labels, predictions = torch.randint(0, 2, (60, 2)), torch.rand(60, 2)
    made = make_metrics(ModelModule(Path("m.py"), (), lambda: None, eval_metrics_fn=given), None, ())
    plain = given()
    for part in (slice(0, 40), slice(40, 60)):
        made.update(labels[part], predictions[part], len(labels[part]))
        for one in plain.values():
            one.update(predictions[part], labels[part])
    found = made.results(made.state())
    assert found["both"] == pytest.approx(float(plain["both"].compute()))
    each = [value for name, value in found.items() if name.startswith("each")]
    assert each == pytest.approx(plain["each"].compute().tolist())


def as_told(state: Any) -> Any:
    return states_of(json.dumps({"states": {"one": to_json(state)}}).encode())["one"]


def test_a_state_that_keeps_all_predictions_is_refused() -> None:
    keeps = torchmetrics.classification.BinaryAUROC()
    module = ModelModule(Path("m.py"), (), lambda: None, eval_metrics_fn=lambda: {"auc": keeps})
    with pytest.raises(UserCodeError, match="auc") as raised:
        make_metrics(module, None, ())
    assert "thresholds" in raised.value.fix


class Keeps:
    """Counts, and keeps what it computes from in a list besides."""

    def __init__(self) -> None:
        self.seen = 0
        self.values: list[Any] = []

    def update(self, predictions: Any, labels: Any) -> None:
        self.seen += len(labels)
        self.values.append(predictions)

    def compute(self) -> Any:
        return torch.cat(self.values).median()


class Late(Keeps):
    """Makes its state when it is first needed."""

    def __init__(self) -> None:
        super().__init__()
        self.total: Any = None

    def update(self, predictions: Any, labels: Any) -> None:
        self.seen += len(labels)
        self.total = predictions.sum() if self.total is None else self.total + predictions.sum()


class Largest(Keeps):
    """A largest value that is not declared."""

    def update(self, predictions: Any, labels: Any) -> None:
        self.seen = max(self.seen, int(predictions.max() * 100))


class Wraps(Keeps):
    """Counts, and leaves the rest to a metric of torchmetrics that nobody sees."""

    def __init__(self) -> None:
        super().__init__()
        self.inner = torchmetrics.MeanMetric()

    def update(self, predictions: Any, labels: Any) -> None:
        self.seen += len(labels)
        self.inner.update(predictions)

    def compute(self) -> Any:
        return self.inner.compute()


@pytest.mark.parametrize(
    ("metric", "said"),
    [
        (Wraps, "computes from more than"),
        (Keeps, "its values"),
        (Late, "its total"),
        (Largest, "not twice"),
        (lambda: torchmetrics.CatMetric(), "its value"),
        (lambda: torchmetrics.regression.PearsonCorrCoef(), "its mean_x"),
    ],
    ids=["inner", "list", "late", "largest", "cat", "mean"],
)
def test_a_state_that_does_not_merge_is_refused_by_name(metric: Any, said: str) -> None:
    module = ModelModule(Path("m.py"), (), lambda: None, eval_metrics_fn=lambda: {"one": metric()})
    with pytest.raises(UserCodeError, match=said) as raised:
        made = make_metrics(module, None, ())
        made.update(torch.ones(4), torch.rand(4), 4)
    assert "one" in raised.value.message
    assert raised.value.fix


@pytest.mark.filterwarnings("ignore:torch.quantize_per_tensor")
def test_small_and_quantised_types_are_the_numbers_that_they_stand_for() -> None:
    """float8 and quantised outputs could not be predicted, and metrics of bfloat16 not be computed."""
    values = torch.tensor([[0.5, -2.0], [1.0, 3.0]])
    kinds: list[Any] = [values.to(torch.bfloat16), values.to(torch.float8_e4m3fn), values.to_sparse()]
    kinds.append(torch.quantize_per_tensor(values, 0.5, 10, torch.quint8))
    for given in kinds:
        found = to_numpy({"y": given})
        assert isinstance(found, dict)
        assert found["y"].dtype == np.float32
        np.testing.assert_array_equal(found["y"], values.numpy())
    module = ModelModule(Path("net.py"), (), lambda: None, eval_metrics_fn=lambda: {"bias": lambda y, p: p - y})
    made = make_metrics(module, None, ())
    made.update(torch.zeros(2, 2), values.to(torch.bfloat16), 2)
    assert made.results(made.state()) == {"bias": 0.625}


def test_a_curve_is_refused_by_what_it_computes() -> None:
    """It was "all input arrays must have the same shape", which is numpy's word for what nobody had written."""
    given = {"roc": torchmetrics.classification.BinaryPrecisionRecallCurve(thresholds=5)}
    made = make_metrics(ModelModule(Path("net.py"), (), lambda: None, eval_metrics_fn=lambda: given), None, ())
    with pytest.raises(
        UserCodeError, match=r"roc computes 3 arrays of different shapes, \[6\], \[6\], \[5\]"
    ) as told:
        made.of_epoch(0, torch.tensor([0, 1, 1]), torch.tensor([0.1, 0.8, 0.4]), 3)
    assert "area under the curve" in told.value.fix

"""``elasticdl.torch.metrics``: the values of scikit-learn, however the records are cut, as states that add up."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import sklearn.metrics as sk
import torch

from elasticdl.torch import metrics as m
from elasticdl_core.json_numbers import to_json
from elasticdl_master.state.metric_states import merge, states_of
from elasticdl_worker.trainers.torch.model.metrics import make_metrics
from elasticdl_worker.user_code import ModelModule

pytestmark = pytest.mark.unit
RNG = np.random.default_rng(4)
N = 500
LABELS = RNG.integers(0, 2, N)
LOGITS = RNG.normal(0, 2, N) + 1.5 * LABELS
CLASSES = RNG.integers(0, 4, N)
SCORES = RNG.normal(0, 1, (N, 5)) + 1.5 * np.eye(5)[CLASSES]
BEST = SCORES.argmax(1)
HARD = LOGITS >= 0
Case = tuple[Any, np.ndarray, np.ndarray, float]

CASES: dict[str, Case] = {
    "AUC": (m.AUC(logits=True), LOGITS, LABELS, sk.roc_auc_score(LABELS, LOGITS)),
    "AUC of probabilities": (m.AUC(), 1 / (1 + np.exp(-LOGITS[:, None])), LABELS, sk.roc_auc_score(LABELS, LOGITS)),
    "accuracy of two": (m.Accuracy(logits=True), LOGITS[:, None], LABELS, sk.accuracy_score(LABELS, HARD)),
    "accuracy": (m.Accuracy(), SCORES, CLASSES, sk.accuracy_score(CLASSES, BEST)),
    "precision of two": (m.Precision(logits=True), LOGITS, LABELS[:, None], sk.precision_score(LABELS, HARD)),
    "recall of two": (m.Recall(logits=True), LOGITS, LABELS, sk.recall_score(LABELS, HARD)),
    "F1 of two": (m.F1(logits=True), LOGITS, LABELS, sk.f1_score(LABELS, HARD)),
    "precision": (
        m.Precision(5),
        SCORES,
        CLASSES,
        sk.precision_score(CLASSES, BEST, average="macro", zero_division=0),
    ),
    "recall": (m.Recall(5), SCORES, CLASSES, sk.recall_score(CLASSES, BEST, average="macro", zero_division=0)),
    "F1": (m.F1(5), SCORES, CLASSES, sk.f1_score(CLASSES, BEST, average="macro", zero_division=0)),
    "top 2": (m.TopK(2), SCORES, CLASSES, sk.top_k_accuracy_score(CLASSES, SCORES, k=2, labels=range(5))),
    "mean absolute error": (m.MeanAbsoluteError(), LOGITS, LABELS, sk.mean_absolute_error(LABELS, LOGITS)),
    "root of the mean square": (m.RootMeanSquaredError(), LOGITS, LABELS, sk.root_mean_squared_error(LABELS, LOGITS)),
}


@pytest.mark.parametrize("name", CASES)
def test_states_of_parts_add_up_to_the_value_of_scikit_learn(name: str) -> None:
    metric, predictions, labels, wanted = CASES[name]
    module = ModelModule(Path("m.py"), (), lambda: None, eval_metrics_fn=lambda: {"it": metric})
    told: dict[str, Any] | None = None
    for start, end in ((0, 7), (7, 300), (300, N)):
        part = make_metrics(module, None, ())
        part.update(torch.tensor(labels[start:end]), torch.tensor(predictions[start:end]), end - start)
        state = states_of(json.dumps({"states": to_json(part.state())}).encode())["it"]
        told = merge("it", told, state) if told else state
    (found,) = make_metrics(module, None, ()).results({"it": told}).values()
    assert found == pytest.approx(wanted, abs=5e-4 if "AUC" in name else 1e-9)


@pytest.mark.parametrize("metric", [m.AUC(), m.Accuracy(), m.Precision(), m.Recall(), m.F1()])
def test_logits_are_not_taken_for_probabilities(metric: Any) -> None:
    with pytest.raises(ValueError, match="logits=True"):
        metric.update(torch.tensor([0.2, 1.5]), torch.tensor([0, 1]))


def test_an_area_of_one_class_is_not_a_number_and_ends_of_the_scale_count() -> None:
    auc = m.AUC()
    auc.update(torch.tensor([0.0, 0.3]), torch.tensor([0, 0]))
    assert torch.isnan(auc.compute())
    auc.update(torch.tensor([1.0, 0.4]), torch.tensor([1, 1]))
    assert auc.compute() == 1
    auc.update(torch.tensor([torch.nan]), torch.tensor([1]))
    assert torch.isnan(auc.compute())

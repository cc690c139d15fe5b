"""Early stopping: the rule that `--local` and the master share."""

from __future__ import annotations

import math

import pytest

from elasticdl_core.early_stopping import EarlyStoppingCounter
from elasticdl_core.errors import UserCodeError

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("mode", "delta", "values", "stops_at"),
    [
        ("max", 0.0, [0.5, 0.6, 0.6, 0.55, 0.9], 3),
        ("min", 0.01, [1.0, 0.5, 0.4, 0.3, 0.2], None),
        ("min", 0.01, [1.0, 0.995, 0.999, 0.2], 2),
        ("min", 0.0, [math.nan, 1.0, 0.5, math.nan, None], 4),
        ("max", 0.0, [math.nan, math.nan, 1.0], 1),
    ],
)
def test_it_stops_after_so_many_evaluations_without_improvement(
    mode: str, delta: float, values: list[float | None], stops_at: int | None
) -> None:
    stopping = EarlyStoppingCounter.from_mapping({"monitor": "x", "patience": 2, "mode": mode, "min_delta": delta})
    reasons = [bool(stopping.observe({"x": value})) for value in values]
    assert (reasons.index(True) if True in reasons else None) == stops_at


def test_a_metric_goes_by_its_own_name_first_and_by_that_without_val_second() -> None:
    stopping = EarlyStoppingCounter("val_x", 1)
    assert stopping.observe({"x": 1.0}) == ""
    assert "x did not improve on 1 in 1 evaluations" in stopping.observe({"x": 2.0})
    exact = EarlyStoppingCounter("val_x", 1)
    exact.observe({"x": 1.0, "val_x": 5.0})
    assert exact.best == 5.0


def test_a_metric_that_is_not_there_is_an_error_that_names_those_there_are() -> None:
    with pytest.raises(UserCodeError, match=r"watches 'auc', but the evaluation gives \['loss'\]"):
        EarlyStoppingCounter("auc", 1).observe({"loss": 1.0})


def test_without_validation_data_it_is_refused() -> None:
    with pytest.raises(UserCodeError, match="no validation data"):
        EarlyStoppingCounter("loss", 1).check(validates=False)
    EarlyStoppingCounter("loss", 1).check(validates=True)


def test_the_description_keeps_the_rule() -> None:
    stopping = EarlyStoppingCounter("a", 3, "max", 0.5)
    assert EarlyStoppingCounter.from_mapping(stopping.to_mapping()) == stopping

from __future__ import annotations

import pytest

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model import OptimizerSpec
from elasticdl_ps.optimizers import Optimizer

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(
    ("name", "params", "word"),
    [
        ("lion", {}, "lion"),
        ("adam", {"beta1": 0.9}, "beta1"),
        ("sgd", {"amsgrad": True}, "amsgrad"),
        ("adam", {"learning_rate": float("nan")}, "learning_rate"),
        ("adam", {"learning_rate": "fast"}, "learning_rate"),
        ("adam", {"beta_1": 1.5}, "beta_1"),
        ("sgd", {"momentum": -0.1}, "momentum"),
        ("sgd", {"clipnorm": 1.0}, "clipnorm"),
        ("sgd", {"use_ema": True}, "use_ema"),
        ("ftrl", {"learning_rate_power": 0.5}, "learning_rate_power"),
        ("ftrl", {"learning_rate": 0.0}, "learning_rate"),
    ],
)
def test_what_cannot_be_done_is_refused_by_name(name: str, params: dict[str, float], word: str) -> None:
    with pytest.raises(InvalidInputError, match=word) as caught:
        Optimizer(OptimizerSpec(name, params))
    assert caught.value.fix


def test_parameters_that_ask_for_nothing_are_taken() -> None:
    params = {"clipnorm": None, "use_ema": False, "ema_momentum": 0.99, "weight_decay": None}
    assert Optimizer(OptimizerSpec("sgd", params)).kernel == "sgd"  # type: ignore[arg-type]


@pytest.mark.parametrize(
    ("params", "slots"),
    [
        ({}, ["velocity"]),
        ({"momentum": 0.1}, ["velocity", "momentum"]),
        ({"centered": True}, ["velocity", "average_gradient"]),
        ({"centered": True, "momentum": 0.1}, ["velocity", "momentum", "average_gradient"]),
    ],
)
def test_only_slots_that_are_used_take_memory(params: dict[str, float], slots: list[str]) -> None:
    assert list(Optimizer(OptimizerSpec("rmsprop", params)).slots) == slots

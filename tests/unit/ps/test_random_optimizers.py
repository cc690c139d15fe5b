"""Optimizers, patterns of use and hand-overs drawn at random end where the plain framework does.

Draws are numbered, and each is the same wherever it runs. The gate takes a dozen of them, others for each commit; all
are among those that ``./dev slow`` runs.
"""

from __future__ import annotations

from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any

import keras
import numpy as np
import pytest

from elasticdl_core.model import DenseKind, DenseSpec
from elasticdl_ps.store.partition import Partition
from tests import rotation
from tests.unit.ps.test_step_counts import (
    DIM,
    IDS,
    KERNELS,
    SIZE,
    apply,
    declare,
    first_values,
    gradient,
    restored,
    saved,
    spec_of,
    torch,
    values_of,
)

pytestmark = pytest.mark.unit
DRAWS, GATE, STEPS = 200, 6, 20
RATES = (0.003, 0.01, 0.05)
BETAS = ((0.9, 0.999), (0.7, 0.9))
TORCH: dict[str, tuple[str, dict[str, tuple[Any, ...]]]] = {
    "torch.sgd": ("SGD", {"momentum": (0.0, 0.9), "weight_decay": (0.0, 0.01)}),
    "torch.adam": (
        "Adam",
        {"betas": ((0.9, 0.999), (0.7, 0.9)), "amsgrad": (False, True), "weight_decay": (0.0, 0.1)},
    ),
    "torch.adamw": ("AdamW", {"betas": ((0.9, 0.999), (0.7, 0.9)), "weight_decay": (0.0, 0.1)}),
    "torch.nadam": ("NAdam", {"momentum_decay": (0.004, 0.1), "weight_decay": (0.0, 0.1)}),
    "torch.radam": ("RAdam", {"betas": ((0.9, 0.999), (0.8, 0.9)), "weight_decay": (0.0, 0.1)}),
    "torch.adamax": ("Adamax", {"betas": ((0.9, 0.999), (0.7, 0.9))}),
    "torch.adagrad": ("Adagrad", {"lr_decay": (0.0, 0.2), "initial_accumulator_value": (0.0, 0.3)}),
    "torch.rmsprop": ("RMSprop", {"momentum": (0.0, 0.5), "centered": (False, True)}),
    "torch.adadelta": ("Adadelta", {"rho": (0.9, 0.7)}),
}
KERAS: dict[str, tuple[str, dict[str, tuple[Any, ...]]]] = {
    "sgd": ("SGD", {"momentum": (0.0, 0.9), "nesterov": (False, True)}),
    "adam": ("Adam", {"beta_1": (0.9, 0.7), "beta_2": (0.999, 0.9), "amsgrad": (False, True)}),
    "adamax": ("Adamax", {"beta_1": (0.9, 0.7)}),
    "adagrad": ("Adagrad", {"initial_accumulator_value": (0.1, 0.5)}),
    "rmsprop": ("RMSprop", {"rho": (0.9, 0.7), "momentum": (0.0, 0.5), "centered": (False, True)}),
    "adadelta": ("Adadelta", {"rho": (0.95, 0.7)}),
    "ftrl": ("Ftrl", {"beta": (0.0, 0.1)}),
}


@dataclass(frozen=True)
class Draw:
    """One of them: the optimizer, the steps in which each parameter has a gradient, and hand-overs."""

    name: str
    kind: str
    options: dict[str, Any]
    uses: dict[str, list[bool]]
    handed_over: dict[int, int]
    unfrozen: int

    @classmethod
    def of(cls, kinds: dict[str, tuple[str, dict[str, tuple[Any, ...]]]], number: int) -> Draw:
        random = np.random.default_rng([number, len(kinds)])
        name = sorted(kinds)[number % len(kinds)]
        kind, choices = kinds[name]
        options = {key: values[random.integers(len(values))] for key, values in choices.items()}
        late = int(random.integers(2, STEPS - 2))
        rare = random.random(STEPS) < random.uniform(0.1, 0.7)
        uses = {
            "always": [True] * STEPS,
            "sometimes": rare.tolist(),
            "late": [step >= late for step in range(STEPS)],
            "early": [step < late for step in range(STEPS)],
            "t": (random.random(STEPS) < 0.6).tolist(),
        }
        steps = random.choice(np.arange(1, STEPS), size=3, replace=False).tolist()
        handed_over = {step: int(random.integers(1, 4)) for step in steps}
        rate = {"lr" if "torch" in name else "learning_rate": RATES[random.integers(len(RATES))]}
        return cls(name, kind, rate | options, uses, handed_over, steps[0])


def numbers() -> list[Any]:
    """All draws; those that have no turn at this commit are slow."""
    mine = {*rotation.share("draws", range(DRAWS), GATE)}
    return [pytest.param(one, marks=() if one in mine else pytest.mark.slow) for one in range(DRAWS)]


def pushed(draw: Draw, random: np.random.Generator, step: int) -> tuple[dict[str, Any], Any]:
    """The gradients of a step: of dense parameters, and of the table."""
    dense = {use: gradient(random, SIZE) for use, used in draw.uses.items() if use != "t" and used[step]}
    return dense, gradient(random, len(IDS), DIM) if draw.uses["t"][step] else None


@pytest.mark.parametrize("number", numbers())
def test_servers_end_where_pytorch_does(number: int, tmp_path: Path) -> None:
    """Always, sometimes, late and early used, and what a second job unfreezes, over hand-overs among servers."""
    draw = Draw.of(TORCH, number)
    frozen = DenseSpec("unfrozen", (SIZE,), "float32", DenseKind.STATE)
    specs = [*(DenseSpec(use, (SIZE,)) for use in draw.uses if use != "t"), frozen]
    one = Partition(KERNELS)
    optimizer = spec_of(draw.name, draw.options)
    declare(one, specs, optimizer)
    partitions = [one]
    their = {use: torch.nn.Parameter(torch.tensor(first_values())) for use in [*draw.uses, "unfrozen"]}
    their["t"] = torch.nn.Parameter(torch.tensor(values_of(partitions)["t"]))
    made = getattr(torch.optim, draw.kind)([one for use, one in their.items() if use != "unfrozen"], **draw.options)
    random = np.random.default_rng(number)
    for step in range(STEPS):
        if step in draw.handed_over:
            folder, again = tmp_path / str(step), step == draw.unfrozen
            count = 1 if again else draw.handed_over[step]
            partitions = restored(folder, saved(partitions, folder), count)
            if again:
                declare(partitions[0], [*specs[:-1], replace(frozen, kind=DenseKind.TRAINABLE)], optimizer, anew=True)
                made.add_param_group({"params": [their["unfrozen"]]})
        dense, rows = pushed(draw, random, step)
        if step >= draw.unfrozen:
            dense["unfrozen"] = gradient(random, SIZE)
        for use, parameter in their.items():
            found = rows if use == "t" else dense.get(use)
            parameter.grad = None if found is None else torch.tensor(found)
        apply(partitions, dense, None if rows is None else (IDS, rows))
        made.step()
    for use, value in values_of(partitions).items():
        np.testing.assert_allclose(value, their[use].detach().numpy(), rtol=0, atol=1e-5, err_msg=f"{use} {draw}")


@pytest.mark.parametrize("number", numbers())
def test_servers_end_where_keras_does(number: int, tmp_path: Path) -> None:
    draw = Draw.of(KERAS, number)
    one = Partition(KERNELS)
    made = getattr(keras.optimizers, draw.kind)(**draw.options)
    declare(one, [DenseSpec(use, (SIZE,)) for use in draw.uses if use != "t"], spec_of(draw.name, draw.options))
    partitions = [one]
    their = {use: keras.Variable(first_values()) for use in draw.uses}
    their["t"] = keras.Variable(values_of(partitions)["t"])
    made.build(list(their.values()))
    random = np.random.default_rng(number)
    for step in range(STEPS):
        if step in draw.handed_over:
            folder = tmp_path / str(step)
            partitions = restored(folder, saved(partitions, folder), draw.handed_over[step])
        dense, rows = pushed(draw, random, step)
        apply(partitions, dense, None if rows is None else (IDS, rows))
        found = dense if rows is None else {**dense, "t": rows}
        made.apply([keras.ops.convert_to_tensor(value) for value in found.values()], [their[use] for use in found])
    for use, value in values_of(partitions).items():
        np.testing.assert_allclose(value, np.asarray(their[use]), rtol=0, atol=1e-5, err_msg=f"{use} {draw}")

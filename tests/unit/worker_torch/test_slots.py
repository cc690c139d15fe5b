"""The memory of PyTorch's optimizers, taken from one and given to another."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest
import torch

from elasticdl_worker.trainers.torch.replica.slots import TorchSlots

pytestmark = pytest.mark.unit
OPTIMIZERS: dict[str, dict[str, Any]] = {
    "Adam": {},
    "AdamW": {"amsgrad": True},
    "NAdam": {},
    "RAdam": {"betas": (0.8, 0.9)},
    "Adamax": {},
    "Adagrad": {"lr_decay": 0.2, "initial_accumulator_value": 0.1},
    "SGD": {"momentum": 0.9, "dampening": 0.5},
    "RMSprop": {},
    "SparseAdam": {},
}
STEPS = 20


def parameters() -> dict[str, torch.nn.Parameter]:
    return {name: torch.nn.Parameter(torch.linspace(-1, 1, 5)) for name in ("new", "old")}


def train(optimizer: torch.optim.Optimizer, used: list[torch.nn.Parameter], random: np.random.Generator) -> None:
    for one in used:
        one.grad = torch.tensor(random.normal(size=5), dtype=torch.float32)
        if isinstance(optimizer, torch.optim.SparseAdam):
            with torch.sparse.check_sparse_tensor_invariants():
                one.grad = one.grad.to_sparse()
    optimizer.step()
    for one in used:
        one.grad = None


@pytest.mark.parametrize("name", OPTIMIZERS)
def test_what_is_trained_anew_is_counted_from_its_first_update(name: str) -> None:
    """As plain PyTorch does with ``add_param_group``."""
    make, options = getattr(torch.optim, name), {"lr": 0.05, **OPTIMIZERS[name]}
    plain, mine = parameters(), parameters()
    whole = make([plain["old"]], **options)
    first = make([mine["old"]], **options)
    one, other = np.random.default_rng(3), np.random.default_rng(3)
    for _ in range(STEPS):
        train(whole, [plain["old"]], one)
        train(first, [mine["old"]], other)
    whole.add_param_group({"params": [plain["new"]]})
    kept = TorchSlots(first, {"old": mine["old"]})
    second = make(list(mine.values()), **options)
    TorchSlots(second, mine).assign(kept.values(), kept.steps(), {})
    for _ in range(STEPS):
        train(whole, list(plain.values()), one)
        train(second, list(mine.values()), other)
    for key, value in plain.items():
        # NAdam's product of momenta follows from the count, but for its rounding.
        np.testing.assert_allclose(mine[key].detach(), value.detach(), rtol=0, atol=1e-6, err_msg=key)


def test_what_members_wrote_before_is_read_by_its_order() -> None:
    made = parameters()
    optimizer = torch.optim.Adam(list(made.values()))
    slots = TorchSlots(optimizer, made)
    given = {name: [np.ones(5, np.float32)] * 2 for name in made}
    slots.assign(given, dict.fromkeys(made, 9), {"torch.steps": np.array([-1, 4])})
    assert made["new"] not in optimizer.state
    assert slots.steps() == {"new": 0, "old": 4}

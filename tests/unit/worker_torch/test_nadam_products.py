"""The product of momenta that a replica's NAdam goes on with, as NAdam itself would have it."""

from __future__ import annotations

import pytest
import torch

from elasticdl_worker.trainers.torch.replica import slots

pytestmark = pytest.mark.unit


@pytest.mark.parametrize(("beta_1", "decay"), [(0.9, 0.004), (0.5, 0.0), (0.999, 1.0), (0.0, 0.1)])
@pytest.mark.parametrize("at_once", [7, 1 << 16])
def test_it_is_rounded_after_each_step(
    monkeypatch: pytest.MonkeyPatch, beta_1: float, decay: float, at_once: int
) -> None:
    monkeypatch.setattr(slots, "_STEPS_AT_ONCE", at_once)
    slots._mu_product.cache_clear()
    product, done = torch.ones(()), 0
    for steps in (0, 1, 6, 7, 8, 14, 15, 1200):
        while done < steps:
            done += 1
            product *= beta_1 * (1.0 - 0.5 * (0.96 ** (done * decay)))
        assert slots._mu_product(beta_1, decay, steps) == float(product)


def test_it_ends_after_any_number_of_steps() -> None:
    # At zero, or at the least number that there is, which most processors round to itself.
    slots._mu_product.cache_clear()
    assert slots._mu_product(0.9, 0.004, 10**12) == slots._mu_product(0.9, 0.004, 10**5) < 1e-44

"""The product of NAdam's momenta, against multiplying them one by one."""

from __future__ import annotations

import math

import pytest

from elasticdl_core.nadam import momentum_of, product_of_momenta

pytestmark = pytest.mark.unit


@pytest.mark.parametrize("beta_1", [0.0, 0.5, 0.9, 0.9999, 1 - 1e-7])
@pytest.mark.parametrize("decay", [0.0, 1e-300, 1e-9, 0.004, 1.0, 1e5])
def test_the_product_is_that_of_all_momenta(beta_1: float, decay: float) -> None:
    product, done = 1.0, 0
    for steps in (0, 1, 2, 3, 100, 1000, 30_000):
        while done < steps:
            done += 1
            product *= momentum_of(done, beta_1, decay)
        assert product_of_momenta(steps, beta_1, decay) == pytest.approx(product, rel=1e-10, abs=1e-300)


@pytest.mark.parametrize("steps", [10**7, 1 << 32, 10**15])
def test_any_number_of_steps_is_as_quick(steps: int) -> None:
    assert product_of_momenta(steps, 0.9, 0.004) == 0.0
    # What the first steps are below one half makes the same difference after any number of them.
    beta_1 = math.exp(-1 / steps)
    often = product_of_momenta(10**6, math.exp(-1e-6), 0.004)
    assert product_of_momenta(steps, beta_1, 0.004) == pytest.approx(often, rel=1e-6)

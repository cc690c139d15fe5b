"""The momenta of NAdam (Dozat 2016) as PyTorch has them: one for each step, and the product of all so far."""

from __future__ import annotations

import math

_DECAY = 0.96
_HALF = 0.5
_NOTHING = 1e-17
"""What added to an exponent changes no result."""


def momentum_of(step: int, beta_1: float, momentum_decay: float) -> float:
    """The momentum of a step, from 1 on: from about half of ``beta_1`` it goes up to it."""
    return float(beta_1 * (1.0 - _HALF * _DECAY ** (step * momentum_decay)))


def product_of_momenta(steps: int, beta_1: float, momentum_decay: float) -> float:
    """The product of the momenta of steps 1 to ``steps``, in a time that does not depend on how many they are.

    With ``q = 0.96 ** momentum_decay`` it is ``beta_1 ** steps`` times the product of ``1 - q ** k / 2``, whose
    logarithms are power series; summed over ``k`` first, each of their terms is the sum of a geometric one.

    Args:
        steps: 0 or more.
        beta_1: from 0 to below 1.
        momentum_decay: 0 or more.
    """
    if not steps or not beta_1:
        return float(not steps)
    rate = momentum_decay * math.log(_DECAY)
    exponent, power, factor = steps * math.log(beta_1), 0, 1.0
    while True:
        power += 1
        factor *= _HALF
        per_step = power * rate
        total = math.exp(per_step) * math.expm1(per_step * steps) / math.expm1(per_step) if per_step else steps
        term = factor / power * total
        exponent -= term
        if term < _NOTHING:
            return math.exp(exponent)

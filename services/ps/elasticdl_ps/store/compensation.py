"""Delay compensation: a gradient that comes late is corrected to where the parameters are by now (see ADR 13)."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

Floats = NDArray[np.float32]


@dataclass(frozen=True, slots=True)
class Delay:
    """The base of a gradient, and how strongly it is corrected.

    Attributes:
        pulled: of the gradient's shape.
        strength: over 0; under 0 where the optimizer goes uphill.
    """

    pulled: Floats
    strength: float

    def of(self, chosen: slice | NDArray[np.intp]) -> Delay:
        """The same for some rows."""
        return Delay(self.pulled[chosen], self.strength)

    def compensate(self, gradient: Floats, now: Floats) -> Floats:
        """A gradient as it would be about now: ``g + |g| * strength * (now - pulled)``.

        The correction is at most the gradient itself: what comes out is between 0 and twice the gradient.
        """
        drift = np.subtract(now, self.pulled)
        drift *= np.float32(self.strength)
        np.clip(drift, -1, 1, out=drift)
        drift *= np.abs(gradient)
        drift += gradient
        return drift

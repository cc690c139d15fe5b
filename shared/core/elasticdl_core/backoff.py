"""The wait before the next try: exponential back-off with jitter, the one rule for every retry."""

from __future__ import annotations

import random
import time
from collections.abc import Callable
from dataclasses import dataclass
from typing import TypeVar

Result = TypeVar("Result")

_MOST_DOUBLINGS = 30


@dataclass(frozen=True, slots=True)
class Backoff:
    """Pauses that double up to a bound; each is drawn between half of that and the whole.

    Whoever failed together does not come back together. Source: Brooker 2015, "Exponential Backoff And Jitter" (AWS
    Architecture Blog).

    Attributes:
        first_s: the first pause is at most this long, in seconds.
        longest_s: no pause is longer.
    """

    first_s: float
    longest_s: float

    def pause_s(self, tries: int, uniform: Callable[[], float] = random.random) -> float:
        """The pause after a number of tries that failed.

        Args:
            tries: how many, from 1.
            uniform: gives a number between 0 and 1.
        """
        whole = min(self.longest_s, self.first_s * 2.0 ** min(tries - 1, _MOST_DOUBLINGS))
        return whole * (0.5 + uniform() / 2)

    def retry(self, work: Callable[[], Result], tries: int, final: tuple[type[Exception], ...] = ()) -> Result:
        """The result of some work, tried a few times with pauses between.

        Args:
            work: raises where it fails.
            tries: how often it is tried, at most.
            final: errors that another try does not change.

        Raises:
            Exception: what the last try raised, or one that is final.
        """
        for failed in range(1, tries):
            try:
                return work()
            except final:
                raise
            except Exception:
                time.sleep(self.pause_s(failed))
        return work()

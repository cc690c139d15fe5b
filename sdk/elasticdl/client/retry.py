"""When a request is tried again, and after what pause."""

from __future__ import annotations

import random
from collections.abc import Callable
from dataclasses import dataclass, field

from elasticdl.client.messages import NoResponse, Request, Response
from elasticdl_core.backoff import Backoff

_PASSING = frozenset({429, 502, 503, 504})


@dataclass(frozen=True)
class RetryPolicy:
    """When a request is tried again: exponential back-off with jitter.

    Attributes:
        attempts: tries in all.
        first_s: the first pause is at most this long, in seconds; each further one at most twice the one before.
        longest_s: no pause is longer, in seconds.
        uniform: gives a number between 0 and 1.
    """

    attempts: int = 6
    first_s: float = 0.25
    longest_s: float = 5.0
    uniform: Callable[[], float] = field(default=random.random, repr=False)

    def backoff(self, attempt: int) -> float:
        """The pause after the try numbered ``attempt`` (from 0), in seconds."""
        return Backoff(self.first_s, self.longest_s).pause_s(attempt + 1, self.uniform)

    def pause(self, request: Request, outcome: Response | NoResponse, attempt: int) -> float | None:
        """Seconds to wait before the next try, or None when the outcome stands.

        A request that never reached the server may always be tried again; one that may have, only if it is
        idempotent.
        """
        if attempt + 1 >= self.attempts:
            return None
        if isinstance(outcome, NoResponse):
            return self.backoff(attempt) if request.idempotent or not outcome.sent else None
        if outcome.status not in _PASSING or not request.idempotent:
            return None
        try:
            wanted = float(outcome.headers.get("retry-after", ""))
        except ValueError:
            return self.backoff(attempt)
        return min(max(wanted, 0.0), 60.0)


class Patience:
    """A bound on the wait for something that does not answer, from its last answer.

    Args:
        seconds: how long.
    """

    def __init__(self, seconds: float) -> None:
        self._seconds = seconds
        self._since: float | None = None

    def answered(self) -> None:
        """An answer came: patience is whole again."""
        self._since = None

    def over(self, asked_at: float, now: float) -> bool:
        """Whether it has not answered for too long.

        Args:
            asked_at: when the question was asked that got no answer.
            now: the time.
        """
        if self._since is None:
            self._since = asked_at
        return now - self._since >= self._seconds

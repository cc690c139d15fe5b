"""Reading several short steps' minibatches in one go.

After each computation what reading runs and looks at is out of the caches, and from memory it takes several times as
long. Long steps are read one by one: their minibatches are large, and not many shall lie about.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Iterator
from typing import TypeVar

T = TypeVar("T")

SHORT_S = 0.05
"""What takes less is short."""
_MOST = 4


def in_bursts(minibatches: Iterator[T], clock: Callable[[], float] = time.monotonic) -> Iterator[T]:
    """Yields the same as an iterator, and raises the same at the same place, but asks it four times at once.

    Args:
        minibatches: what to read.
        clock: seconds that go on; how long what was read last was enough for says whether steps are short.
    """
    began, most = clock(), 1
    while True:
        some: list[T] = []
        end: BaseException | None = None
        while len(some) < most and end is None:
            try:
                some.append(next(minibatches))
            except BaseException as raised:
                end = raised
        yield from some
        if isinstance(end, StopIteration):
            return
        if end is not None:
            raise end
        began, before = clock(), began
        most = _MOST if began - before < SHORT_S * len(some) else 1

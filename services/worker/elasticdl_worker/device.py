"""The worker's side of a device that it shares: its turns, taken to compute and not to read, pull or push."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager, nullcontext

from elasticdl_runtime.device_turns import DeviceTurn, open_turn

_NO_TURN: AbstractContextManager[None] = nullcontext()


@functools.cache
def own_turn() -> DeviceTurn | None:
    """This process's turns; None where its device is its own, or there is none."""
    return open_turn()


def device_turn(finish: Callable[[], object] | None = None) -> AbstractContextManager[None]:
    """Held while something is computed; waits for the neighbours on the device.

    Args:
        finish: waits until nothing is under way on the device; None if results are awaited before the turn is let go.
    """
    turn = own_turn()
    if turn is None:
        return _NO_TURN
    return turn.held() if finish is None else _finished(turn, finish)


@contextmanager
def _finished(turn: DeviceTurn, finish: Callable[[], object]) -> Iterator[None]:
    with turn.held():
        yield
        finish()

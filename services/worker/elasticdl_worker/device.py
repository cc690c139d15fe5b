"""The worker's side of a device that it shares: its turns, taken to compute and not to read, pull or push."""

from __future__ import annotations

import functools
from contextlib import AbstractContextManager, nullcontext

from elasticdl_runtime.device_turns import DeviceTurn, open_turn

_NO_TURN: AbstractContextManager[None] = nullcontext()


@functools.cache
def own_turn() -> DeviceTurn | None:
    """This process's turns; None where its device is its own, or there is none."""
    return open_turn()


def device_turn() -> AbstractContextManager[None]:
    """Held while something is computed whose results are awaited in it; waits for the neighbours on the device."""
    turn = own_turn()
    return _NO_TURN if turn is None else turn.held()

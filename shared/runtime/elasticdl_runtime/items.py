"""The items of a background loop, each handled alone: one that fails is put off, ever longer, and stops no other.

Which one is put off and why is in the log; how many are is in ``/metrics``, where ``elasticdl doctor`` looks.
"""

from __future__ import annotations

import time
from collections.abc import Awaitable, Callable, Hashable, Iterable, Iterator
from dataclasses import dataclass
from weakref import WeakSet

import structlog

from elasticdl_core.backoff import Backoff
from elasticdl_core.errors import UnavailableError
from elasticdl_runtime.telemetry import meters

_BACKOFF = Backoff(2.0, 600.0)
_MOST_UNAVAILABLE = 2
"""Items in a row for which something was away, and none before for which it was not: then it is away for all."""
_log = structlog.get_logger(__name__)
_all: WeakSet[Items] = WeakSet()


def show_put_off() -> None:
    """Tells in the numbers of this process how many items its loops have put off."""
    meters.show("elasticdl_process_items_put_off", lambda: sum(map(len, _all)))


@dataclass
class _PutOff:
    tries: int
    until: float


class Items:
    """The items of one loop.

    Args:
        loop: its name, for the log and the metrics.
        clock: monotonic seconds.
        tell: gets how many items are put off, and whether that is because one failed now.
        backoff: how long items are put off.
    """

    def __init__(
        self,
        loop: str,
        clock: Callable[[], float] = time.monotonic,
        tell: Callable[[int, bool], None] | None = None,
        backoff: Backoff = _BACKOFF,
    ) -> None:
        self._loop = loop
        self._clock = clock
        self._tell = tell
        self._backoff = backoff
        _all.add(self)
        self._put_off: dict[Hashable, _PutOff] = {}
        self._show()

    def begin(self) -> ItemsPass:
        """A pass over the items."""
        return ItemsPass(self)

    def is_put_off(self, item: Hashable) -> bool:
        """Whether an item failed, and is not due again yet."""
        known = self._put_off.get(item)
        return known is not None and self._clock() < known.until

    def is_known(self, item: Hashable) -> bool:
        """Whether an item failed, and has not gone well since."""
        return item in self._put_off

    def keep(self, items: Iterable[Hashable]) -> None:
        """Forgets all other items: they are gone."""
        there = set(items)
        self._put_off = {item: known for item, known in self._put_off.items() if item in there}
        self._show()

    def went_well(self, item: Hashable) -> None:
        """Forgets what was held against an item."""
        if self._put_off.pop(item, None) is not None:
            _log.info("an item that was put off went well", task=self._loop, item=str(item))
            self._show()

    def put_off(self, item: Hashable, error: Exception) -> float:
        """Puts an item off, for longer each time; returns for how many seconds."""
        known = self._put_off.get(item)
        tries = 1 if known is None else known.tries + 1
        pause_s = self._backoff.pause_s(tries)
        self._put_off[item] = _PutOff(tries, self._clock() + pause_s)
        about = {"task": self._loop, "item": str(item), "tries": tries, "again_in_s": round(pause_s, 1)}
        if tries == 1 and not isinstance(error, UnavailableError):
            _log.error("an item is put off", **about, exc_info=error)
        else:
            _log.warning("an item is put off", **about, error=repr(error))
        self._show(failed=True)
        return pause_s

    def __iter__(self) -> Iterator[Hashable]:
        """Goes through those items."""
        return iter(self._put_off)

    def __len__(self) -> int:
        """The number of items that are put off, or were and have not gone well since."""
        return len(self._put_off)

    def _show(self, *, failed: bool = False) -> None:
        if self._tell is not None:
            self._tell(len(self), failed)


class ItemsPass:
    """One pass over the items of a loop.

    Args:
        items: what is known of them.
    """

    def __init__(self, items: Items) -> None:
        self._items = items
        self._unavailable: dict[Hashable, UnavailableError] = {}
        self._worked = False
        self._seen: set[Hashable] = set()

    def see(self, *items: Hashable) -> None:
        """Items that are there, whether or not they are handled in this pass."""
        self._seen.update(items)

    async def handle(self, item: Hashable, work: Callable[[], Awaitable[None]]) -> None:
        """Handles one item, if it is not put off. One that fails is put off.

        Raises:
            UnavailableError: something is away that all items need.
        """
        self.see(item)
        if self._items.is_put_off(item):
            return
        try:
            await work()
        except UnavailableError as error:
            self._unavailable[item] = error
            if not self._worked and len(self._unavailable) >= _MOST_UNAVAILABLE:
                raise
        except Exception as error:
            self._items.put_off(item, error)
        else:
            self._worked = True
            self._items.went_well(item)

    def end(self) -> None:
        """Ends the pass; what was not seen in it is gone, and forgotten.

        Raises:
            UnavailableError: something was away for some item. Where it was there for others the item is put off.
        """
        self._items.keep(self._seen)
        for item, error in self._unavailable.items():
            if self._worked:
                self._items.put_off(item, error)
        for error in self._unavailable.values():
            raise error

"""Whose turn it is: everybody's in a circle, however much one of them has."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from typing import Generic, TypeVar

Item = TypeVar("Item")


class FairQueue(Generic[Item]):
    """Items that wait, by owner. Of one owner the first goes first; who had a turn is the last to have the next."""

    def __init__(self) -> None:
        self._waiting: dict[str, deque[Item]] = {}

    def __len__(self) -> int:
        """The number of those that wait."""
        return sum(len(items) for items in self._waiting.values())

    def count(self, owner: str) -> int:
        """The number of an owner's that wait."""
        return len(self._waiting.get(owner, ()))

    def add(self, owner: str, item: Item) -> None:
        """Lets an item wait."""
        self._waiting.setdefault(owner, deque()).append(item)

    def take(self, may: Callable[[str], bool]) -> tuple[str, Item] | None:
        """The next item and its owner, of the owners that may have a turn; None if there is none."""
        owner = next(filter(may, self._waiting), None)
        if owner is None:
            return None
        items = self._waiting.pop(owner)
        item = items.popleft()
        if items:
            self._waiting[owner] = items
        return owner, item

    def discard(self, owner: str, item: Item) -> None:
        """Lets an item wait no more, if it did."""
        items = self._waiting.get(owner, deque())
        if item in items:
            items.remove(item)
        if not items:
            self._waiting.pop(owner, None)

    def clear(self) -> list[Item]:
        """Takes all items, whoever has them."""
        found = [item for items in self._waiting.values() for item in items]
        self._waiting.clear()
        return found

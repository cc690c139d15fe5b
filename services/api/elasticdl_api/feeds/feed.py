"""One feed and those who follow it.

A message is encoded once and given to each follower: straight to its connection, as long as that takes it, and into a
queue from then on. A follower that does not take its messages is let go: it comes again with the last id that it has,
and misses nothing.
"""

from __future__ import annotations

import asyncio
import contextvars
from collections import deque
from collections.abc import Awaitable, Callable, Iterable, Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from pydantic import BaseModel
from pydantic_core import to_json

from elasticdl_api.store.wakeups import Wakeups
from elasticdl_core.errors import UnavailableError
from elasticdl_runtime.lifecycle import wait_for_event

REMEMBERED = 256
"""Messages that a feed keeps for those who come again."""
QUEUED_MOST = 1000
"""Messages that wait for a follower; one more and it is let go."""
QUEUED_BYTES = 4 << 20
"""The same in bytes, but for a single message."""
LOOK_EVERY_S = 1.0
"""Seconds between two looks when no change was told: what a master reports of its job is told to nobody."""
BEGIN_S = 10.0
"""Seconds that the first look of a feed may take."""
TOGETHER = 100
"""Followers that are told in one go; then others have their turn on the event loop."""
LONGEST_SETTLE_S = 2.0
"""Seconds for which changes are gathered at most, however many follow."""


@dataclass(frozen=True, slots=True)
class FeedMessage:
    """A message in the form in which it travels.

    Attributes:
        data: the whole of it, with the empty line at its end.
        number: its place in the feed; None for what has no place because the next one replaces it.
        topic: messages of one topic replace each other as long as they wait; empty for none.
        last: whether nothing comes after it.
    """

    data: bytes
    number: int | None = None
    topic: str = ""
    last: bool = False


def encode(kind: str, content: BaseModel | dict[str, Any], number: int | str | None = None) -> bytes:
    """A server-sent event as bytes."""
    head = b"" if number is None else b"id: %s\n" % str(number).encode()
    data = content.model_dump_json().encode() if isinstance(content, BaseModel) else to_json(content)
    return b"%sevent: %s\ndata: %s\n\n" % (head, kind.encode(), data)


class Sink(Protocol):
    """Writes the messages of a follower to its connection."""

    def offer(self, data: bytes) -> bool:
        """Sends some messages at once; returns False, and does nothing, as long as it cannot take them."""

    def finish(self) -> None:
        """Nothing comes any more."""


class Follower:
    """Messages that wait to be sent to somebody who follows a feed.

    Attributes:
        overrun: whether it was let go because it took its messages too slowly.
    """

    __slots__ = ("_ended", "_messages", "_ready", "_sink", "_size", "overrun")

    def __init__(self) -> None:
        self._messages: deque[FeedMessage] = deque()
        self._ready = asyncio.Event()
        self._size = 0
        self._ended = False
        self._sink: Sink | None = None
        self.overrun = False

    def begin(self, messages: Iterable[FeedMessage]) -> None:
        """The first messages of a follower, however many."""
        self._messages.extend(messages)
        if self._messages:
            self._ready.set()

    def attach(self, sink: Sink) -> None:
        """Gives what waits, and all that comes, to a sink; nobody takes it by himself from now on."""
        self._sink = sink
        self.drain()

    def detach(self) -> None:
        """Gives its sink nothing more."""
        self._sink = None

    def put(self, messages: Sequence[FeedMessage], data: bytes) -> None:
        """Sends messages, or queues them, or lets the follower go when too many wait.

        Args:
            messages: one after the other.
            data: all of them, joined once for all who follow.
        """
        if self._ended or not messages:
            return
        if self._sink is None or self._messages or not self._sink.offer(data):
            for message in messages:
                self._queue(message)
            self._ready.set()
        if messages[-1].last:
            self.end()

    def drain(self) -> None:
        """Gives its sink what waits."""
        if self._sink is None:
            return
        if self._messages and self._sink.offer(b"".join(message.data for message in self._messages)):
            self._messages.clear()
            self._size = 0
        if self._ended and not self._messages:
            self._sink.finish()

    def end(self) -> None:
        """Nothing is queued any more; what waits is still to be taken."""
        self._ended = True
        self._ready.set()
        self.drain()

    async def take(self, patience_s: float) -> bytes | None:
        """All that waits, as one piece.

        Returns:
            Nothing after ``patience_s`` seconds without a message; None at the end.
        """
        if not self._messages and not self._ended and not await wait_for_event(self._ready, patience_s):
            return b""
        self._ready.clear()
        if not self._messages:
            return None if self._ended else b""
        piece = b"".join(message.data for message in self._messages)
        self._messages.clear()
        self._size = 0
        return piece

    def _queue(self, message: FeedMessage) -> None:
        if self._ended:
            return
        if message.topic:
            self._forget(message.topic)
        self._messages.append(message)
        self._size += len(message.data)
        if len(self._messages) > QUEUED_MOST or (self._size > QUEUED_BYTES and len(self._messages) > 1):
            self.overrun = True
            self._messages.clear()
            self.end()

    def _forget(self, topic: str) -> None:
        for waiting in self._messages:
            if waiting.topic == topic:
                self._messages.remove(waiting)
                self._size -= len(waiting.data)
                return


class Feed:
    """A sequence of messages, and those who follow it.

    Attributes:
        first: the number after which every message is remembered.
        last: the number of the last message that was told.
        latest: the last message without a number of each topic.
        begun: set when the first look was done.
        watchers: how many follow or are about to.
    """

    def __init__(self) -> None:
        self.first = 0
        self.last = 0
        self.latest: dict[str, FeedMessage] = {}
        self.begun = asyncio.Event()
        self.watchers = 0
        self._remembered: deque[FeedMessage] = deque()
        self._followers: dict[Follower, None] = {}

    def __len__(self) -> int:
        """The number of followers."""
        return len(self._followers)

    async def wait_until_begun(self) -> None:
        """Waits until it was read for the first time.

        Raises:
            UnavailableError: that takes too long.
        """
        if not await wait_for_event(self.begun, BEGIN_S):
            raise UnavailableError("the stream cannot be read now", fix="try again in a moment")

    def add(self, follower: Follower) -> None:
        """Begins to tell a follower."""
        self._followers[follower] = None

    def remove(self, follower: Follower) -> None:
        """Tells it no more."""
        self._followers.pop(follower, None)

    def after(self, number: int) -> list[FeedMessage] | None:
        """The remembered messages after a number; None when some of them are forgotten."""
        if number < self.first:
            return None
        return [message for message in self._remembered if message.number is not None and message.number > number]

    def remember(self, messages: Sequence[FeedMessage]) -> None:
        """Keeps messages for those who come later, and forgets the oldest."""
        for message in messages:
            if message.number is not None:
                self._remembered.append(message)
                self.last = message.number
            elif message.topic:
                self.latest[message.topic] = message
        while len(self._remembered) > REMEMBERED:
            self.first = self._remembered.popleft().number or 0

    async def publish(self, messages: Sequence[FeedMessage]) -> None:
        """Remembers messages and tells them to all who follow now."""
        self.remember(messages)
        data = b"".join(message.data for message in messages)
        followers = list(self._followers) if messages else []
        for place in range(0, len(followers), TOGETHER):
            for follower in followers[place : place + TOGETHER]:
                follower.put(messages, data)
            await asyncio.sleep(0)

    def end(self) -> None:
        """Ends the streams of all who follow."""
        for follower in self._followers:
            follower.end()


class FeedReader:
    """The one task that reads for all who follow; it lives as long as anybody does.

    Args:
        name: of the task.
        wakeups: tells which job changed.
        hear: is told of it.
        watched: whether anybody follows.
        look: reads what is followed; what it raises ends the task.
        settle_s: seconds after a look in which changes are gathered for the next one; asked after each.
    """

    def __init__(
        self,
        name: str,
        wakeups: Wakeups,
        hear: Callable[[str | None], None],
        watched: Callable[[], bool],
        look: Callable[[], Awaitable[None]],
        settle_s: Callable[[], float],
    ) -> None:
        self._name = name
        self._wakeups = wakeups
        self._hear = hear
        self._watched = watched
        self._look = look
        self._settle_s = settle_s
        self._changed = asyncio.Event()
        self._task: asyncio.Task[None] | None = None
        # Not the context of the request that happens to be the first.
        self._context = contextvars.copy_context()

    def wake(self) -> None:
        """Has it look again, at the latest after the time to settle."""
        self._changed.set()

    def ensure_running(self) -> None:
        """Starts it if it does not run."""
        if self._task is None or self._task.done():
            self._task = asyncio.create_task(self._read(), name=self._name, context=self._context)

    async def _read(self) -> None:
        with self._wakeups.hearing(self._hear):
            while self._watched():
                self._changed.clear()
                await self._look()
                await asyncio.sleep(min(self._settle_s(), LONGEST_SETTLE_S))
                await wait_for_event(self._changed, LOOK_EVERY_S)

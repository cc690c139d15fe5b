"""Posts to the api: kept in order, sent in batches, tried again for as long as the api is away."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import Awaitable, Callable, Mapping, Sequence
from functools import partial
from typing import Any

import structlog

from elasticdl_core.backoff import Backoff
from elasticdl_core.errors import ElasticDLError, FencedError, UnavailableError
from elasticdl_master.api import ApiClient, ApiFailedError
from elasticdl_runtime.lifecycle import wait_for_event
from elasticdl_runtime.retry import Attempts

_BATCH = 256
_BATCH_S = 1.0
_BACKOFF = Backoff(0.1, 5.0)
_MOST_FAILED = 60
"""Times in a row that the api, though it is there, fails at one post before that is left out: five minutes."""
_TOLD = frozenset({"evaluation", "artifact", "series", "lives", "living", "events", "prune"})
"""What can be left out: without the rest the job cannot go on."""
_MAX_EVENTS = 10_000
_MAX_LOSSES = 5_000
_log = structlog.get_logger(__name__)


class Outbox:
    """Posts in order. Done-marks and events are batched; whatever the api refuses for good is dropped, and an event
    says so.

    Attributes:
        posted: told the numbers of what the api has taken, or will never take.
    """

    def __init__(self, api: ApiClient) -> None:
        self._api = api
        self.posted: Callable[[Sequence[int]], Awaitable[None]] | None = None
        self._posts: deque[tuple[str, Callable[[], Awaitable[Any]], Sequence[int]]] = deque()
        self._numbers: list[int] = []
        self._done: dict[str, None] = {}
        self._accounts: dict[str, Mapping[str, Any]] = {}
        self._events: list[dict[str, Any]] = []
        self._lives: list[dict[str, Any]] = []
        self._losses: deque[dict[str, Any]] = deque(maxlen=_MAX_LOSSES)
        self._loss_numbers: list[int] = []
        self._wake = asyncio.Event()
        self._empty = asyncio.Event()
        self._empty.set()
        self.trouble = ""

    def mark_done(self, tasks: list[str], accounts: Mapping[str, Mapping[str, Any]]) -> None:
        """Makes done-marks durable, with what became of the records of some of them."""
        self._done.update(dict.fromkeys(tasks))
        self._accounts.update(accounts)
        self._empty.clear()
        if len(self._done) >= _BATCH:
            self._wake.set()

    def add_event(self, kind: str, message: str, detail: dict[str, Any], number: int = 0) -> None:
        """Shows an event, kept under a number or not; the oldest are dropped if the api is away for very long."""
        self._events.append({"kind": kind, "message": message, "detail": detail})
        del self._events[:-_MAX_EVENTS]
        self._note(number)

    def add_life(self, life: Mapping[str, Any], at: float, number: int = 0) -> None:
        """Tells of a process' life, at a time in seconds since the epoch."""
        self._lives.append({**life, "at": at})
        self._note(number)

    def add_living(self, processes: list[dict[str, Any]]) -> None:
        """Tells which processes there are."""
        self.post("living", partial(self._api.post_lives, [], processes))

    def add_losses(self, losses: Sequence[tuple[int, float]], at: float, number: int = 0) -> None:
        """Shows losses (model version, loss), with the next heartbeat."""
        self._losses += [{"model_version": version, "loss": loss, "at": at} for version, loss in losses]
        self._loss_numbers += [number] if number else []

    def take_losses(self) -> tuple[list[dict[str, Any]], list[int]]:
        """Takes the losses out, for a heartbeat, and the numbers that they are kept under."""
        taken = list(self._losses), self._loss_numbers
        self._losses.clear()
        self._loss_numbers = []
        return taken

    def give_back_losses(self, losses: list[dict[str, Any]], numbers: list[int]) -> None:
        """Puts losses back: the heartbeat did not get through."""
        newer = list(self._losses)
        self._losses.clear()
        self._losses += [*losses, *newer]
        self._loss_numbers = [*numbers, *self._loss_numbers]

    async def note_posted(self, numbers: Sequence[int]) -> None:
        """The api has what was kept under these numbers."""
        if numbers and self.posted is not None:
            await self.posted(numbers)

    def post(self, name: str, call: Callable[[], Awaitable[Any]], number: int = 0) -> None:
        """Posts something after all that came before it."""
        self._seal()
        self._posts.append((name, call, [number] if number else []))
        self._empty.clear()
        self._wake.set()

    async def flushed(self) -> None:
        """Waits until everything is posted."""
        self._seal()
        self._wake.set()
        await self._empty.wait()

    async def run(self) -> None:
        """Posts until cancelled.

        Raises:
            FencedError: a newer master took over.
        """
        while True:
            await wait_for_event(self._wake, _BATCH_S)
            self._wake.clear()
            self._seal()
            while self._posts:
                await self._post_first()
            if not (self._done or self._accounts or self._events or self._lives):
                self._empty.set()

    async def _post_first(self) -> None:
        name, call, numbers = self._posts[0]
        failed = 0
        async for _ in Attempts(_BACKOFF):
            try:
                await call()
                break
            except FencedError:
                raise
            except UnavailableError as error:
                if not self.trouble:
                    _log.warning("the api is away", post=name, error=error.message)
                self.trouble = error.message
                failed = failed + 1 if isinstance(error, ApiFailedError) else 0
                if failed >= _MOST_FAILED and name in _TOLD:
                    self._give_up(name, error)
                    break
            except Exception as error:
                if name not in _TOLD and not isinstance(error, ElasticDLError):
                    raise
                self._give_up(name, error)
                break
        self.trouble = ""
        await self.note_posted(numbers)
        self._posts.popleft()

    def _give_up(self, name: str, error: Exception) -> None:
        """Leaves a post out, and says so: what comes after it does not wait for ever."""
        message = error.message if isinstance(error, ElasticDLError) else repr(error)
        _log.error("the api refused", post=name, error=message, exc_info=not isinstance(error, ElasticDLError))
        if name != "events":
            self.add_event("report_refused", f"the api does not take {name}: {message}", {"of": name})

    def _note(self, number: int) -> None:
        self._numbers += [number] if number else []
        self._empty.clear()

    def _seal(self) -> None:
        """Turns what was gathered into posts, done-marks first."""
        tasks, self._done = list(self._done), {}
        for i in range(0, len(tasks), _BATCH):
            piece = tasks[i : i + _BATCH]
            accounts = {task: self._accounts.pop(task) for task in piece if task in self._accounts}
            self._posts.append(("done", partial(self._api.mark_done, piece, accounts), ()))
        others, self._accounts = self._accounts, {}
        if others:
            self._posts.append(("accounts", partial(self._api.mark_done, [], others), ()))
        lives, self._lives = self._lives, []
        for i in range(0, len(lives), _BATCH):
            self._posts.append(("lives", partial(self._api.post_lives, lives[i : i + _BATCH]), ()))
        events, self._events = self._events, []
        numbers, self._numbers = self._numbers, []
        if events:
            self._posts.append(("events", partial(self._api.post_events, events), ()))
        if numbers:
            self._posts.append(("what was kept", _nothing, numbers))  # the lives and events before it


async def _nothing() -> None:
    """Comes after what was posted."""

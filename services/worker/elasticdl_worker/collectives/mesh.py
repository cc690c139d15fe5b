"""All members connected with all: one thread of each member reads, writes and watches.

The thread notices within milliseconds that a member died (its connections end), within ``SilenceLimits.silence_s``
that one stopped or was cut off (it no longer beats), and tells the others whom it suspects before it hangs up.
Everything that waits is then released with the same error.
"""

from __future__ import annotations

import contextlib
import os
import select
import threading
import time
from collections import deque
from collections.abc import Callable
from functools import partial

from elasticdl_worker.collectives.endings import copy, drain, gone, linger, report, told
from elasticdl_worker.collectives.links import Kind, Link, LinkEndedError, Tag
from elasticdl_worker.collectives.port import (
    CollectiveError,
    CollectiveTimeoutError,
    GroupAbortedError,
    MemberLostError,
)
from elasticdl_worker.collectives.waiting import SilenceLimits, Waiter

_LINGER_S = 0.25
_FAREWELL_S = 1.0
Place = Callable[[int], memoryview]
Arrived = Callable[[memoryview, int], None]


class Mesh:
    """The links of one member to all others.

    Except where it says otherwise, methods are called on the mesh's own thread: by what ``post`` was given.

    Args:
        generation: of the group.
        rank: this member's.
        size: how many members.
        runs: says of a rank whether its process can be seen to run on this machine.
        patience: how long members may be silent.

    Attributes:
        brought: the last operation to which this member gave all its part; goes along with its beats.
        departed: the ranks that have left.
    """

    def __init__(
        self,
        generation: int,
        rank: int,
        size: int,
        runs: Callable[[int], bool],
        patience: SilenceLimits,
    ) -> None:
        self.generation = generation
        self.rank = rank
        self.size = size
        self._links: dict[int, Link] = {}
        self._runs = runs
        self._patience = patience
        self._lock = threading.Lock()
        self._bell_lock = threading.Lock()
        self._failure: CollectiveError | None = None
        self._leaving = False
        self._waiters: set[Waiter] = set()
        self._listeners: list[Callable[[CollectiveError], None]] = []
        self.brought = 0
        self.departed: tuple[int, ...] = ()
        self._heard_brought: dict[int, int] = {}
        self._posted: deque[Callable[[], None]] = deque()
        self._expected: dict[tuple[int, Tag], tuple[Place | None, Arrived]] = {}
        self._early: dict[tuple[int, Tag], tuple[memoryview, int]] = {}
        self._begun_early: set[tuple[int, Tag]] = set()
        self._others: dict[Kind, Callable[[int, Tag, memoryview], None]] = {}
        self._at_end: list[Callable[[], None]] = []
        self._arriving: deque[tuple[int, Link]] = deque()
        self._parting = False
        self._over = False
        self._said_farewell = threading.Event()
        self._wake = os.eventfd(0, os.EFD_NONBLOCK | os.EFD_CLOEXEC)
        self._poll = select.poll()
        self._interest: dict[int, int] = {}
        self._ranks: dict[int, int] = {}
        self._thread = threading.Thread(target=self._run, name=f"collective {generation}", daemon=True)
        if size > 1:
            self._thread.start()

    # What any thread may call.

    @property
    def failure(self) -> CollectiveError | None:
        """Why nothing can be done any more."""
        return self._failure

    def post(self, call: Callable[[], None]) -> None:
        """Has something done on the mesh's thread; who is alone does it at once."""
        if self.size == 1:
            call()
            return
        self._posted.append(call)
        self._ring()

    def open_waiter(self) -> Waiter:
        """Makes a waiter that the end of the group releases.

        Raises:
            CollectiveError: the group has ended.
        """
        waiter = Waiter()
        with self._lock:
            self._check()
            self._waiters.add(waiter)
        return waiter

    def wait(self, waiter: Waiter, timeout_s: float, what: str) -> None:
        """Waits, and fails the group if that takes too long.

        Raises:
            CollectiveError: the group has ended, or the time passed.
        """
        in_time = waiter.wait(timeout_s)
        with self._lock:
            self._waiters.discard(waiter)
        if not in_time and not waiter.came:
            owing = sorted(waiter.owed.copy())
            names = ", ".join(str(rank) for rank in owing) or "nobody"
            self.fail(
                CollectiveTimeoutError(
                    f"{what}: ranks that live brought nothing for {timeout_s:.1f} s: {names}", suspects=owing
                )
            )
        if not waiter.came:
            assert self._failure is not None
            raise copy(self._failure)

    def behind(self, operation: int) -> list[int]:
        """The ranks that have not said, with a beat, that they gave their part to an operation."""
        others = (rank for rank in range(self.size) if rank != self.rank)
        return [rank for rank in others if self._heard_brought.get(rank, 0) < operation]

    def check(self) -> None:
        """Raises what ended the group.

        Raises:
            CollectiveError: it has ended.
        """
        with self._lock:
            self._check()

    def listen(self, tell: Callable[[CollectiveError], None]) -> None:
        """Has a function called when the group fails."""
        with self._lock:
            if self._failure is None:
                self._listeners.append(tell)
                return
        tell(self._failure)

    def fail(self, error: CollectiveError) -> None:
        """Ends the group with an error, unless it has ended."""
        with self._lock:
            if self._failure is not None or self._leaving:
                return
            self._failure = error = copy(error)
            waiters, self._waiters = self._waiters, set()
            listeners, self._listeners = self._listeners, []
        for waiter in waiters:
            waiter.release()
        for tell in listeners:
            tell(error)
        if self.size == 1:
            self._finish()
        self._ring()

    def leave(self, *, wait: bool = True) -> None:
        """Writes what is still to be written, and leaves; waits until the others were told, but not for long."""
        with self._lock:
            self._leaving = True
            waiters, self._waiters = self._waiters, set()
            if self._failure is None:
                self._failure = GroupAbortedError("this member has left the group")
        for waiter in waiters:
            waiter.release()
        if self.size == 1:
            self._finish()
            return
        self._ring()
        if wait and threading.current_thread() is not self._thread:
            self._said_farewell.wait(_FAREWELL_S)

    def join(self, timeout_s: float = 2 * _FAREWELL_S) -> bool:
        """Waits until nothing of it is left; returns whether that is so."""
        if self.size > 1 and threading.current_thread() is not self._thread:
            self._thread.join(timeout_s)
        return not self._thread.is_alive()

    def at_end(self, call: Callable[[], None]) -> None:
        """Has a function called when nothing is done any more, which may be at once."""
        with self._lock:
            if not self._over:
                self._at_end.append(call)
                return
        call()

    def add(self, rank: int, link: Link) -> None:
        """Adds the link to a member. Before all are there, nothing but the end of the group is told.

        What is posted afterwards finds it. Where the group has ended meanwhile, that is told on it.
        """
        with self._lock:
            late = self._parting
            if not late:
                self._arriving.append((rank, link))
        if late:
            self._tell_end(link)
            link.close()
        else:
            self._ring()

    # What is called on the mesh's thread.

    def send(
        self,
        target: int,
        tag: Tag,
        payload: memoryview | bytes = b"",
        check: int = 0,
        sent: Callable[[], None] | None = None,
    ) -> None:
        """Sends a message; what is sent to a member that left is lost."""
        link = self._links.get(target)
        if self._failure is not None:
            return
        if link is not None and not link.left:
            link.queue(tag, payload, check, sent)
            self._flush(target, link)
        elif sent is not None:
            sent()

    def expect(self, source: int, tag: Tag, arrived: Arrived, place: Place | None = None) -> None:
        """Has a message of another member handled, also if it has come already.

        Args:
            source: its rank.
            tag: of the message.
            arrived: is given the payload and the check number.
            place: gives the memory for the payload, by its length; None takes memory of its own.
        """
        early = self._early.pop((source, tag), None)
        if early is None:
            link = self._links.get(source)
            if link is None or link.left:
                self.fail(gone(source))
                return
            self._expected[source, tag] = (place, arrived)
            return
        payload, check = early
        arrived(_put(payload, place), check)

    def handle(self, kind: Kind, take: Callable[[int, Tag, memoryview], None]) -> None:
        """Has all messages of a kind handled as they come, and those that came early now."""
        self._others[kind] = take
        for source, tag in [key for key in self._early if key[1][0] is kind]:
            take(source, tag, self._early.pop((source, tag))[0])

    def _check(self) -> None:
        if self._failure is not None:
            raise copy(self._failure)

    def _welcome(self) -> None:
        """Takes the links in that were added."""
        while self._arriving:
            rank, link = self._arriving.popleft()
            self._links[rank] = link
            self._ranks[link.fileno()] = rank

    def _ring(self) -> None:
        with self._bell_lock:
            if self._wake >= 0:
                os.eventfd_write(self._wake, 1)

    def _release(self) -> None:
        """Lets go of what operations used, which the next group may want at once."""
        self._posted.clear()
        self._expected.clear()
        self._early.clear()
        self._begun_early.clear()
        self._others.clear()
        with self._lock:
            self._over = True
            calls, self._at_end = self._at_end, []
        for call in calls:
            call()

    def _finish(self) -> None:
        self._release()
        with self._bell_lock:
            if self._wake >= 0:
                os.close(self._wake)
                self._wake = -1

    def _run(self) -> None:
        try:
            self._poll.register(self._wake, select.POLLIN)
            self._serve()
        except Exception as error:
            self.fail(CollectiveError(f"the collective failed: {type(error).__name__}: {error}"))
            if not isinstance(error, LinkEndedError):
                raise
        finally:
            self._say_farewell()

    def _serve(self) -> None:
        looked = time.monotonic()
        while self._failure is None:
            self._welcome()
            more = self._watch_links()
            ready = self._poll.poll(0 if more or self._posted else self._patience.beat_s * 500)
            now = time.monotonic()
            if now - looked > 2 * self._patience.beat_s:
                # This process itself did not run: what the others wrote meanwhile is still to be read.
                for link in self._links.values():
                    link.heard = now
            looked = now
            for descriptor, event in ready:
                if descriptor == self._wake:
                    with contextlib.suppress(BlockingIOError):
                        os.eventfd_read(self._wake)
                else:
                    self._attend(self._ranks[descriptor], event)
            for rank in more:
                self._attend(rank, select.POLLIN)
            while self._posted and self._failure is None:
                call = self._posted.popleft()
                self._welcome()  # a link that was added before the call was posted
                call()
            self._tick(now)

    def _watch_links(self) -> list[int]:
        """Says to the kernel what is waited for; returns the ranks of which something was already read."""
        more = []
        for rank, link in self._links.items():
            wanted = select.POLLIN if link.is_idle else select.POLLIN | select.POLLOUT
            descriptor = link.fileno()
            if self._interest.get(descriptor) != wanted:
                self._poll.register(descriptor, wanted)
                self._interest[descriptor] = wanted
            if link.has_more:
                more.append(rank)
        return more

    def _attend(self, rank: int, event: int) -> None:
        link = self._links.get(rank)
        if link is None:
            return
        try:
            if event & ~select.POLLOUT:
                link.read(partial(self._place, rank), partial(self._arrived, rank))
        except LinkEndedError as error:
            self._end_link(rank, link, str(error))
            return
        if event & select.POLLOUT:
            self._flush(rank, link)

    def _flush(self, rank: int, link: Link) -> None:
        try:
            link.flush()
        except LinkEndedError as error:
            # What it said before, say whom it suspects, is still to be read.
            with contextlib.suppress(LinkEndedError):
                link.read(partial(self._place, rank), partial(self._arrived, rank))
            self._end_link(rank, link, str(error))

    def _end_link(self, rank: int, link: Link, reason: str) -> None:
        if self._links.get(rank) is not link or self._failure is not None:
            return
        if not link.left:
            self.fail(MemberLostError(f"rank {rank} is gone: {reason}", suspects=[rank]))
            return
        self._drop(rank)

    def _drop(self, rank: int) -> None:
        link = self._links.pop(rank)
        descriptor = link.fileno()
        if self._interest.pop(descriptor, None) is not None:
            self._poll.unregister(descriptor)
        self._ranks.pop(descriptor, None)
        link.close()

    def _place(self, rank: int, tag: Tag, length: int) -> memoryview:
        if (rank, tag) not in self._expected:
            self._begun_early.add((rank, tag))
            return memoryview(bytearray(length))
        place, _ = self._expected[rank, tag]
        return memoryview(bytearray(length)) if place is None else place(length)

    def _arrived(self, rank: int, tag: Tag, check: int, payload: memoryview) -> None:
        kind = tag[0]
        # Whoever expects it may have said so after its first bytes had come, and were put elsewhere.
        begun_early = (rank, tag) in self._begun_early
        self._begun_early.discard((rank, tag))
        if kind is Kind.BEAT:
            self._heard_brought[rank] = tag[1]
        elif kind is Kind.ABORT:
            self.fail(told(rank, payload))
        elif kind is Kind.LEAVE:
            self._links[rank].left = True
            self.departed = (*self.departed, rank)
            if any(source == rank for source, _ in self._expected):
                self.fail(gone(rank))
        elif kind in self._others:
            self._others[kind](rank, tag, payload)
        else:
            place, arrived = self._expected.pop((rank, tag), (None, None))
            if arrived is None:
                self._early[rank, tag] = (payload, check)
            else:
                arrived(_put(payload, place) if begun_early else payload, check)

    def _tick(self, now: float) -> None:
        for rank, link in list(self._links.items()):
            if link.left:
                continue
            if now - link.wrote >= self._patience.beat_s and link.is_idle:
                self.send(rank, (Kind.BEAT, self.brought, 0, 0))
            silent = now - link.heard
            if silent >= self._patience.silence_s and (silent >= self._patience.busy_s or not self._runs(rank)):
                self.fail(MemberLostError(f"rank {rank} has been silent for {silent:.1f} s", suspects=[rank]))

    def _say_farewell(self) -> None:
        failure = self._failure
        assert failure is not None
        with self._lock:
            self._parting = True
        self._welcome()  # who was connected just before the end is to be told of it, too
        links = [link for link in self._links.values() if not link.left]
        waited_for = [link for rank, link in self._links.items() if rank not in failure.suspects and not link.left]
        for link in links:
            self._tell_end(link)
        try:
            linger(waited_for, _FAREWELL_S if self._leaving else _LINGER_S, Link.flush)
            self._said_farewell.set()
            self._release()
            for link in links:
                link.end_writing()
            # Unread bytes at the close of a socket would take what was written with them.
            linger(waited_for, _LINGER_S, drain)
        finally:
            self._said_farewell.set()
            for rank in list(self._links):
                self._drop(rank)
            self._finish()

    def _tell_end(self, link: Link) -> None:
        """Says to a member that the group has ended here, or that this member leaves it."""
        failure = self._failure
        assert failure is not None
        if self._leaving:
            link.queue((Kind.LEAVE, 0, 0, 0))
        else:
            link.drop_unsent()
            link.queue((Kind.ABORT, 0, 0, 0), report(failure))
        with contextlib.suppress(LinkEndedError):
            link.flush()


def _put(payload: memoryview, place: Place | None) -> memoryview:
    """Copies what came to where it is expected; returns where it is then."""
    if place is None:
        return payload
    target = place(len(payload))
    target[:] = payload
    return target

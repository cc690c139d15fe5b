"""The end of a group: what members tell each other of it, and what each tells those that wait."""

from __future__ import annotations

import contextlib
import json
import select
import time
from collections.abc import Callable, Iterable, Mapping

from elasticdl_worker.collectives.links import Link, LinkEndedError
from elasticdl_worker.collectives.port import (
    CollectiveError,
    CollectiveTimeoutError,
    CorruptStateError,
    GroupAbortedError,
    MemberLostError,
)

_KINDS: Mapping[str, type[CollectiveError]] = {
    kind.__name__: kind for kind in (MemberLostError, CollectiveTimeoutError, GroupAbortedError, CorruptStateError)
}


def linger(links: Iterable[Link], seconds: float, work: Callable[[Link], bool]) -> None:
    """Works on links until each is done or gone, or the time has passed."""
    end = time.monotonic() + seconds
    left = list(links)
    while left and (remaining := end - time.monotonic()) > 0:
        poll = select.poll()
        for link in left:
            poll.register(link.fileno(), select.POLLIN if work is drain else select.POLLOUT)
        poll.poll(remaining * 1000)
        still = []
        for link in left:
            with contextlib.suppress(LinkEndedError):
                if not work(link):
                    still.append(link)
        left = still


def drain(link: Link) -> bool:
    """Reads and forgets; never done before the other side has ended."""
    link.read(lambda tag, length: memoryview(bytearray(length)), lambda tag, check, payload: None)
    return False


def copy(error: CollectiveError) -> CollectiveError:
    """The same without a traceback: what is kept must not keep the frames, and so the memory, of who was told."""
    return type(error)(error.message, suspects=tuple(error.suspects), fix=error.fix)


def gone(rank: int) -> CollectiveError:
    """The error of what needs a member that has left."""
    return GroupAbortedError(f"rank {rank} has left the group")


def report(failure: CollectiveError) -> bytes:
    """The report of a failure to the others."""
    message = {
        "kind": type(failure).__name__,
        "message": failure.message,
        "suspects": sorted(failure.suspects),
    }
    return json.dumps(message).encode()


def told(rank: int, payload: memoryview) -> CollectiveError:
    """The failure that another member told."""
    try:
        report = json.loads(bytes(payload))
        kind = _KINDS.get(report["kind"], GroupAbortedError)
        return kind(f"rank {rank} says: {report['message']}", suspects=[int(other) for other in report["suspects"]])
    except (ValueError, KeyError, TypeError):
        return MemberLostError(f"rank {rank} gave the group up, and does not say why", suspects=[rank])

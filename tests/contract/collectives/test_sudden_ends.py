"""Who was connected just before a group ends is told why, and does not take who told it for lost."""

from __future__ import annotations

import socket
import threading
from collections.abc import Callable

import pytest

from elasticdl_worker.collectives import CollectiveError, GroupAbortedError
from elasticdl_worker.collectives.endings import told
from elasticdl_worker.collectives.links import Kind, Link, LinkEndedError
from elasticdl_worker.collectives.mesh import Mesh
from elasticdl_worker.collectives.waiting import SilenceLimits

pytestmark = pytest.mark.contract
DEADLINE_S = 20.0


def abort(mesh: Mesh) -> None:
    mesh.fail(GroupAbortedError("the test says so", suspects=[1]))


def heard(connection: socket.socket) -> list[tuple[Kind, bytes]]:
    """All that the other side says until it hangs up."""
    link, found = Link(connection), list[tuple[Kind, bytes]]()
    connection.settimeout(DEADLINE_S)
    try:
        while True:
            link.read(
                lambda tag, length: memoryview(bytearray(length)),
                lambda tag, check, payload: found.append((tag[0], bytes(payload))),
            )
    except LinkEndedError:
        return [(kind, payload) for kind, payload in found if kind is not Kind.BEAT]


def check_told(said: list[tuple[Kind, bytes]]) -> None:
    ((kind, payload),) = said
    error: CollectiveError = told(0, memoryview(payload))
    assert kind is Kind.ABORT
    assert (type(error).__name__, sorted(error.suspects)) == ("GroupAbortedError", [1])


def check_left(said: list[tuple[Kind, bytes]]) -> None:
    assert said == [(Kind.LEAVE, b"")]


@pytest.mark.parametrize(
    ("end", "check"),
    [(abort, check_told), (lambda mesh: mesh.leave(wait=False), check_left)],
    ids=["aborted", "left"],
)
@pytest.mark.parametrize("late", [False, True], ids=["just before", "just after"])
def test_who_is_connected_at_the_end_is_told_of_it(
    end: Callable[[Mesh], None], check: Callable[[list[tuple[Kind, bytes]]], None], late: bool
) -> None:
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    mesh = Mesh(1, 0, 2, lambda rank: True, SilenceLimits(0.2, 60.0, 60.0))
    busy, go_on = threading.Event(), threading.Event()

    def work() -> None:
        busy.set()
        assert go_on.wait(DEADLINE_S)

    mesh.post(work)
    assert busy.wait(DEADLINE_S)
    if not late:
        mesh.add(1, Link(ours))
    end(mesh)
    go_on.set()
    if late:
        assert mesh.join(DEADLINE_S)
        mesh.add(1, Link(ours))
    with theirs:
        check(heard(theirs))
    assert mesh.join(DEADLINE_S)

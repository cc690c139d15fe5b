"""A message of which a part had come before anybody expected it ends where it is expected."""

from __future__ import annotations

import fcntl
import socket
import struct
import termios
import threading
import time
from collections.abc import Iterator

import pytest

from elasticdl_worker.collectives.links import _HEAD, Kind, Link
from elasticdl_worker.collectives.mesh import Mesh
from elasticdl_worker.collectives.waiting import SilenceLimits

pytestmark = pytest.mark.contract
PAYLOAD = bytes(range(200)) * 5
TAG = (Kind.PARTIAL_SUM, 1, 0, 0)
DEADLINE_S = 20.0


@pytest.fixture
def joined() -> Iterator[tuple[Mesh, socket.socket, socket.socket]]:
    """A member, its end of the link to rank 1, and rank 1's end, which the test writes to."""
    ours, theirs = socket.socketpair(socket.AF_UNIX, socket.SOCK_STREAM)
    mesh = Mesh(1, 0, 2, lambda rank: True, SilenceLimits(0.2, 60.0, 60.0))
    mesh.add(1, Link(ours))
    yield mesh, ours, theirs
    mesh.leave()
    theirs.close()
    assert mesh.join()


def read_up(connection: socket.socket) -> None:
    """Waits until nothing that was written lies unread."""
    until = time.monotonic() + DEADLINE_S
    while struct.unpack("i", fcntl.ioctl(connection.fileno(), termios.FIONREAD, b"\0" * 4))[0]:
        assert time.monotonic() < until, "what was written is not read"


def head(length: int) -> bytes:
    return _HEAD.pack(*TAG, 0, length)


@pytest.mark.parametrize("first", [0, len(head(0)), len(head(0)) + 300, len(head(0)) + len(PAYLOAD)])
def test_what_was_begun_before_it_was_expected_is_put_where_it_is_expected(
    joined: tuple[Mesh, socket.socket, socket.socket], first: int
) -> None:
    mesh, ours, theirs = joined
    whole = head(len(PAYLOAD)) + PAYLOAD
    theirs.sendall(whole[:first])
    read_up(ours)
    passed = threading.Event()
    mesh.post(passed.set)
    assert passed.wait(DEADLINE_S)
    target, came = bytearray(len(PAYLOAD)), threading.Event()
    mesh.post(lambda: mesh.expect(1, TAG, lambda payload, check: came.set(), lambda length: memoryview(target)))
    theirs.sendall(whole[first:])
    assert came.wait(DEADLINE_S)
    assert bytes(target) == PAYLOAD

"""Who has no secret neither holds up the forming of a group nor keeps what it needs."""

from __future__ import annotations

import contextlib
import errno
import json
import selectors
import socket
import tempfile
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from elasticdl_worker.collectives import GroupPlan, group_listener, handshake
from elasticdl_worker.collectives.group_listener import MemberListener, open_listener
from elasticdl_worker.collectives.handshake import Hello, RefusedError

pytestmark = pytest.mark.contract
GREETING = {
    "channel": "",
    "generation": 1,
    "size": 2,
    "adapter": "shared_memory",
    "rank": 1,
    "target": 0,
    "nonce": "00",
}
SECRET = b"only for tests, and long enough."
FORMING_S = 20.0


@pytest.mark.parametrize(
    "odd",
    [
        {"rank": float("inf")},
        {"rank": float("nan")},
        {"rank": 1.0},
        {"rank": True},
        {"rank": "1"},
        {"target": None},
        {"size": [2]},
        {"generation": {}},
        {"generation": -float("inf")},
        {"channel": 7},
        {"adapter": ["shared_memory"]},
        {"nonce": None},
    ],
)
def test_a_greeting_with_odd_values_is_refused(odd: dict[str, Any]) -> None:
    with pytest.raises(RefusedError):
        Hello.decode(json.dumps(GREETING | odd).encode())


@pytest.mark.parametrize("message", [b"", b"[]", b"7", b"\xff", b"{}", b'{"channel": ""}', b"[" * 4000, b"1" * 4000])
def test_what_is_no_greeting_is_refused(message: bytes) -> None:
    with pytest.raises(RefusedError):
        Hello.decode(message)
    assert Hello.decode(json.dumps(GREETING | {"of tomorrow": 1}).encode()).rank == 1


@pytest.fixture
def lobbies() -> Iterator[list[MemberListener]]:
    with tempfile.TemporaryDirectory(prefix="edl-") as folder:
        made = [open_listener(Path(folder)) for _ in range(2)]
        yield made
        for one in made:
            one.close()


def incoming(one: MemberListener) -> socket.socket:
    connection = socket.socket(socket.AF_UNIX)
    connection.connect(json.loads(one.endpoint)["unix"])
    return connection


def form(lobbies: list[MemberListener]) -> list[str]:
    """Forms a group of both; returns what became of each."""
    plan = GroupPlan(1, tuple(one.endpoint for one in lobbies), SECRET, "shared_memory")
    came: list[str] = ["", ""]

    def enter(rank: int) -> None:
        came[rank] = lobbies[rank].form(plan, rank, timeout_s=FORMING_S).adapter

    threads = [threading.Thread(target=enter, args=(rank,)) for rank in (0, 1)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    return came


def test_strangers_who_say_nothing_or_little_hold_up_nobody(
    lobbies: list[MemberListener], monkeypatch: pytest.MonkeyPatch
) -> None:
    """Each had a second for each of its bytes, one after the other: more than the whole forming."""
    monkeypatch.setattr(group_listener, "STRANGER_S", FORMING_S / 2)
    strangers = [incoming(lobbies[0]) for _ in range(40)]
    for number, one in enumerate(strangers):
        one.sendall(b"EDC1"[: number % 5])
    assert form(lobbies) == ["shared_memory", "shared_memory"]
    for one in strangers:
        one.close()


def test_greetings_for_other_groups_are_kept_in_bounds(
    lobbies: list[MemberListener], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_listener, "_KEPT", 8)
    with contextlib.ExitStack() as opened, selectors.DefaultSelector() as ended:
        for number in range(40):
            stranger = opened.enter_context(incoming(lobbies[0]))
            hello = GREETING | {"channel": f"unknown {number}"}
            handshake.write_message(stranger, json.dumps(hello).encode())
            ended.register(stranger, selectors.EVENT_READ)
        assert form(lobbies) == ["shared_memory", "shared_memory"]
        while len(ended.get_map()) > 8:  # whichever they are: each greeting is read in a thread of its own
            ready = ended.select(FORMING_S)
            assert ready, f"{len(ended.get_map())} are kept"
            for key, _ in ready:
                assert isinstance(key.fileobj, socket.socket)
                assert key.fileobj.recv(1) == b""
                ended.unregister(key.fileobj)


def test_who_has_no_descriptor_free_for_a_while_takes_members_in_afterwards(
    lobbies: list[MemberListener], monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(group_listener, "_CROWDED_S", 0.0)

    class Full(socket.socket):
        """Somebody waits at it, and no descriptor is free for him."""

        def accept(self) -> tuple[socket.socket, Any]:
            raise OSError(errno.EMFILE, "too many open files")

    with Full(socket.AF_UNIX) as full:
        for _ in range(2 * group_listener._GREETING):
            lobbies[0].accept(full)
    assert form(lobbies) == ["shared_memory", "shared_memory"]


@contextlib.contextmanager
def connected(work: Callable[[socket.socket], None]) -> Iterator[tuple[socket.socket, list[BaseException]]]:
    """A connection to a member that works on its end of it; and the errors that it ended with."""
    errors: list[BaseException] = []
    ours, theirs = socket.socketpair()

    def member() -> None:
        with theirs:
            try:
                work(theirs)
            except BaseException as error:
                errors.append(error)

    thread = threading.Thread(target=member)
    with ours:
        ours.settimeout(FORMING_S)
        theirs.settimeout(FORMING_S)
        thread.start()
        yield ours, errors
    thread.join()


HELLO = Hello.decode(json.dumps(GREETING).encode())


def _said(connection: socket.socket) -> bytes:
    return handshake.read_message(connection, handshake.deadline_of(connection))


def test_two_members_show_that_they_know_the_secret() -> None:
    with connected(lambda connection: handshake.answer(connection, SECRET, _said(connection))) as (ours, errors):
        handshake.greet(ours, SECRET, HELLO)
    assert errors == []


def test_who_accepts_lets_nobody_in_without_the_secret() -> None:
    """Neither with another one, nor with the code that the member itself has just shown."""
    for other in (True, False):
        with connected(lambda connection: handshake.answer(connection, SECRET, _said(connection))) as (ours, errors):
            handshake.write_message(ours, HELLO.encode())
            shown = _said(ours)
            nonce, proof = shown[:16], shown[16:]
            own = handshake.prove(b"another secret", "connects", HELLO.encode(), nonce)
            handshake.write_message(ours, own if other else proof)
            with pytest.raises(ConnectionError):
                _said(ours)
        assert [type(error) for error in errors] == [RefusedError]


def test_who_connects_tells_nothing_to_one_without_the_secret() -> None:
    with connected(lambda connection: handshake.greet(connection, SECRET, HELLO)) as (ours, errors):
        first, nonce = _said(ours), bytes(16)
        handshake.write_message(ours, nonce + handshake.prove(b"another secret", "accepts", first, nonce))
        with pytest.raises(ConnectionError):
            _said(ours)
    assert [type(error) for error in errors] == [RefusedError]

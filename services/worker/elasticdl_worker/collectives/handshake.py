"""The handshake of two members that just connected, which shows the secret to nobody.

The one that connects says who it is and which group it means; both prove with a code over all that was said that they
know the job's secret. Descriptors of shared memory then follow over a unix socket.
"""

from __future__ import annotations

import hashlib
import hmac
import json
import math
import os
import socket
import struct
import time
from dataclasses import asdict, dataclass, fields

_LENGTH = struct.Struct("<4sI")
_MAGIC = b"EDC1"
_LONGEST = 4096
_NONCE = 16


class RefusedError(Exception):
    """The other side is no member of the group, or speaks something else."""


@dataclass(frozen=True, slots=True)
class Hello:
    """The first message of a member.

    Attributes:
        channel: of the plan.
        generation: of the plan.
        size: how many members.
        adapter: the one that it chose.
        rank: its own.
        target: the rank that it means to reach.
        nonce: drawn for this connection, in hex.
    """

    channel: str
    generation: int
    size: int
    adapter: str
    rank: int
    target: int
    nonce: str

    def encode(self) -> bytes:
        """As it is sent."""
        return json.dumps(asdict(self), separators=(",", ":")).encode()

    @classmethod
    def decode(cls, message: bytes) -> Hello:
        """Reads what came.

        Raises:
            RefusedError: it is none.
        """
        try:
            data = json.loads(message)
            found = cls(**{field.name: data[field.name] for field in fields(cls)})
        except (ValueError, KeyError, TypeError, RecursionError):
            raise RefusedError("what came is no greeting") from None
        # Not converted: who may say infinity where a rank belongs has not shown yet that it knows the secret.
        if any(type(getattr(found, field.name)).__name__ != field.type for field in fields(cls)):
            raise RefusedError("what came is no greeting")
        return found


def draw_nonce() -> str:
    """A number that was never used."""
    return os.urandom(_NONCE).hex()


def prove(secret: bytes, who: str, hello: bytes, answer: bytes) -> bytes:
    """The code with which one side shows that it knows the secret.

    Args:
        secret: of the job.
        who: ``connects`` or ``accepts``: neither can send the other's code back.
        hello: the first message.
        answer: the second one's nonce.
    """
    body = b"\0".join((who.encode(), hashlib.sha256(hello).digest(), answer))
    return hmac.new(secret, body, hashlib.sha256).digest()


def greet(connection: socket.socket, secret: bytes, hello: Hello) -> None:
    """The connecting side. The socket's time-out is that of the whole greeting.

    Raises:
        RefusedError: the other side does not know the secret.
        OSError: it hung up, or took too long.
    """
    first, deadline = hello.encode(), deadline_of(connection)
    write_message(connection, first)
    answer = read_message(connection, deadline)
    nonce, proof = answer[:_NONCE], answer[_NONCE:]
    if not hmac.compare_digest(proof, prove(secret, "accepts", first, nonce)):
        raise RefusedError("who accepted does not know the job's secret")
    write_message(connection, prove(secret, "connects", first, nonce))
    if read_message(connection, deadline) != b"welcome":
        raise RefusedError("the other side refused the greeting")


def answer(connection: socket.socket, secret: bytes, first: bytes) -> None:
    """The accepting side, after it has read the greeting. The socket's time-out is that of the whole answer.

    Raises:
        RefusedError: the other side does not know the secret.
        OSError: it hung up, or took too long.
    """
    nonce, deadline = os.urandom(_NONCE), deadline_of(connection)
    write_message(connection, nonce + prove(secret, "accepts", first, nonce))
    if not hmac.compare_digest(read_message(connection, deadline), prove(secret, "connects", first, nonce)):
        raise RefusedError("who connected does not know the job's secret")
    write_message(connection, b"welcome")


def write_message(connection: socket.socket, message: bytes) -> None:
    """Writes a short message.

    Raises:
        OSError: the other side hung up, or takes too long.
    """
    connection.sendall(_LENGTH.pack(_MAGIC, len(message)) + message)


def deadline_of(connection: socket.socket) -> float:
    """When a socket's time-out is over, by the monotonic clock."""
    timeout = connection.gettimeout()
    return math.inf if timeout is None else time.monotonic() + timeout


def read_message(connection: socket.socket, deadline: float) -> bytes:
    """Reads a short message, and no byte more.

    Args:
        connection: its time-out is what is left afterwards.
        deadline: of all its bytes together, however slowly they come; by the monotonic clock.

    Raises:
        RefusedError: it is none.
        OSError: the other side hung up, or takes too long.
    """
    magic, length = _LENGTH.unpack(_read(connection, _LENGTH.size, deadline))
    if magic != _MAGIC or length > _LONGEST:
        raise RefusedError("what came is no message of a member")
    return _read(connection, length, deadline)


def send_descriptors(connection: socket.socket, descriptors: list[int]) -> None:
    """Hands files over; the socket is a unix one.

    Raises:
        OSError: the other side hung up, or takes too long.
    """
    socket.send_fds(connection, [b"F"], descriptors)


def receive_descriptors(connection: socket.socket, count: int) -> list[int]:
    """Takes files that were handed over; they are the caller's to close.

    Raises:
        RefusedError: others came, or none.
        OSError: the other side hung up, or takes too long.
    """
    message, descriptors, _, _ = socket.recv_fds(connection, 1, count, socket.MSG_CMSG_CLOEXEC)
    if message != b"F" or len(descriptors) != count:
        for descriptor in descriptors:
            os.close(descriptor)
        raise RefusedError("the memory was not handed over")
    return descriptors


def _read(connection: socket.socket, length: int, deadline: float) -> bytes:
    pieces = []
    while length:
        left = deadline - time.monotonic()
        if left <= 0:
            raise TimeoutError("the other side takes too long")
        connection.settimeout(None if left == math.inf else left)
        piece = connection.recv(length)
        if not piece:
            raise ConnectionError("the other side hung up")
        pieces.append(piece)
        length -= len(piece)
    return b"".join(pieces)

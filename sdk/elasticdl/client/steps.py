"""What the client asks of a transport, as data: the core yields steps, and whoever runs it does the I/O.

Every operation of the client is a generator. It yields steps and receives what they gave, so that the blocking and
the asyncio client share all logic and differ only in how they perform these few steps.
"""

from __future__ import annotations

from collections.abc import Callable, Generator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Generic, TypeVar

T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class Request:
    """One HTTP request.

    Attributes:
        method: the HTTP method.
        path: path below the API's address, with a leading slash.
        params: query parameters; a list repeats its name.
        json: the JSON body, if any.
        content: the raw body, if any.
        headers: headers beyond those that every request has.
        idempotent: whether doing it twice is the same as doing it once, so that it may be tried again.
        read_timeout_s: longest silence that is waited out, in seconds.
    """

    method: str
    path: str
    params: Mapping[str, str | Sequence[str]] = field(default_factory=dict)
    json: Any = None
    content: bytes | None = None
    headers: Mapping[str, str] = field(default_factory=dict)
    idempotent: bool = True
    read_timeout_s: float = 30.0


@dataclass(frozen=True, slots=True)
class Answer:
    """A response.

    Attributes:
        status: the HTTP status.
        headers: its headers, names in lower case.
        body: the body; empty while a stream is open.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes = b""


@dataclass(frozen=True, slots=True)
class Failure:
    """No response came.

    Attributes:
        message: what went wrong.
        sent: whether the server may have seen the request.
    """

    message: str
    sent: bool


@dataclass(frozen=True, slots=True)
class Send:
    """Do a request and read its whole response: gives an ``Answer`` or a ``Failure``."""

    request: Request


@dataclass(frozen=True, slots=True)
class Open:
    """Begin a response that is read in pieces: gives an ``Answer`` (with its body only on an error) or a ``Failure``.

    A response that is still open is closed first.
    """

    request: Request


@dataclass(frozen=True, slots=True)
class Read:
    """Read the next piece of the open response: gives ``bytes``, ``None`` at its end, or a ``Failure``."""


@dataclass(frozen=True, slots=True)
class Pause:
    """Wait: gives ``None``."""

    seconds: float


@dataclass(frozen=True, slots=True)
class Work:
    """Run something that blocks on this machine's disk or processor: gives what it returns, raises what it raises."""

    function: Callable[[], Any]


@dataclass(frozen=True, slots=True)
class Emit(Generic[T]):
    """Hand an item to whoever iterates: gives ``None``."""

    item: T


Step = Send | Open | Read | Pause | Work
Operation = Generator[Step, Any, T]
"""Performs steps and returns a result."""
StreamOperation = Generator[Step | Emit[T], Any, None]
"""Performs steps and emits items."""

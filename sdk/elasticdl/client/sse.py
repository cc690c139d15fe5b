"""Server-sent events, decoded without I/O.

Follows https://html.spec.whatwg.org/multipage/server-sent-events.html#event-stream-interpretation.
"""

from __future__ import annotations

import codecs
from collections.abc import Iterator
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class Message:
    """One server-sent event.

    Attributes:
        type: its ``event`` field; ``message`` when it has none.
        data: its ``data`` lines, joined by newlines.
        id: the last event id so far; empty before the first.
    """

    type: str
    data: str
    id: str


class SseDecoder:
    """Turns the bytes of an event stream into messages.

    Args:
        last_event_id: the id that messages have until the stream gives one.
    """

    def __init__(self, last_event_id: str = "") -> None:
        self.last_event_id = last_event_id
        self.retry_s: float | None = None
        self._decoder = codecs.getincrementaldecoder("utf-8")("replace")
        self._text = ""
        self._start = True
        self._type = ""
        self._data: list[str] = []

    def feed(self, chunk: bytes) -> Iterator[Message]:
        """Takes more bytes and gives the messages that are complete now."""
        self._text += self._decoder.decode(chunk)
        if self._start and self._text:
            self._text = self._text.removeprefix("\ufeff")
            self._start = False
        while (line := self._next_line()) is not None:
            if line:
                self._field(line)
            elif self._data:
                message = Message(self._type or "message", "\n".join(self._data), self.last_event_id)
                self._type, self._data = "", []
                yield message
            else:
                self._type = ""

    def _next_line(self) -> str | None:
        """Cuts off the next line; a trailing CR waits, because an LF may follow."""
        ends = [at for at in (self._text.find("\n"), self._text.find("\r")) if at >= 0]
        if not ends:
            return None
        end = min(ends)
        width = 1
        if self._text[end] == "\r":
            if end + 1 == len(self._text):
                return None
            width = 2 if self._text[end + 1] == "\n" else 1
        line, self._text = self._text[:end], self._text[end + width :]
        return line

    def _field(self, line: str) -> None:
        name, _, value = line.partition(":")
        value = value.removeprefix(" ")
        if name == "event":
            self._type = value
        elif name == "data":
            self._data.append(value)
        elif name == "id" and "\0" not in value:
            self.last_event_id = value
        elif name == "retry" and value.isascii() and value.isdigit():
            self.retry_s = int(value) / 1000

"""Text of others, made safe for a terminal: nothing that a job prints or is named can move the cursor or lie.

Names, reasons, logs and tracebacks come from whoever submitted a job. A terminal obeys control characters in them: it
moves its cursor, hides text, writes to the clipboard, or answers as if somebody had typed. Characters that change the
direction of text show another order than is there. All of them are shown as Python would write them: ``\\x1b``.
"""

from __future__ import annotations

import re

_ACTIVE = (
    "\x00-\x08\x0b-\x1f\x7f-\x9f"  # control characters but tab and newline
    "\u061c\u200e\u200f\u202a-\u202e\u2066-\u2069"  # direction of text
    "\u2028\u2029"  # lines that are none
    "\ud800-\udfff"  # halves of characters
    "\U000e0000-\U000e007f"  # tags, which nobody sees
)
_CONTROLS = re.compile(f"[{_ACTIVE}]")
_BEYOND_ASCII = re.compile(f"[\x7f-\x9f{_ACTIVE[_ACTIVE.index(chr(0x61C)) :]}]")


def neutralise(text: str) -> str:
    """The text with every character that a terminal would act on shown as its escape."""
    return _CONTROLS.sub(_escape, text)


def neutralise_log(text: str) -> str:
    """The same for a log, in which a carriage return, as progress bars print it, begins a line."""
    return neutralise(text.replace("\r\n", "\n").replace("\r", "\n"))


def neutralise_json(text: str) -> str:
    """JSON text that means the same, with such characters as JSON's own escapes."""
    return _BEYOND_ASCII.sub(_json_escape, text)


def _escape(match: re.Match[str]) -> str:
    number = ord(match.group())
    return f"\\x{number:02x}" if number < 0x100 else f"\\u{number:04x}" if number < 0x10000 else f"\\U{number:08x}"


def _json_escape(match: re.Match[str]) -> str:
    units = match.group().encode("utf-16-be", "surrogatepass")
    return "".join(f"\\u{units[at]:02x}{units[at + 1]:02x}" for at in range(0, len(units), 2))

"""Text that can be sent and stored: gRPC, JSON, Postgres and terminals take neither lone surrogates nor NUL.

Python has such text of its own accord: names of files that are not UTF-8, and the text of exceptions that quote them.
"""

from __future__ import annotations

import hashlib
import re
from urllib.parse import quote_from_bytes

_UNSENDABLE = re.compile("[\x00\ud800-\udfff]")
_UNNAMEABLE = re.compile("[\x00-\x1f\x7f\ud800-\udfff]")


def well_formed(text: str) -> str:
    r"""The text with each character that cannot be sent escaped: ``\xff`` for a byte, ``\ud800`` for half a pair.

    >>> well_formed(b"d\xff.csv".decode("utf-8", "surrogateescape"))
    'd\\xff.csv'
    """
    return text if text.isascii() and "\0" not in text else _UNSENDABLE.sub(_escaped, text)


def is_name(text: str) -> bool:
    """Whether a file of that name can be listed and fetched: it is Unicode without control characters."""
    return _UNNAMEABLE.search(text) is None


def as_name(text: str) -> str:
    """The name with what no name may hold escaped, as URLs have it: ``%0A`` for a line break.

    >>> as_name("a\\nb")
    'a%0Ab'
    """
    return _UNNAMEABLE.sub(lambda found: quote_from_bytes(found[0].encode("utf-8", "surrogateescape")), text)


def _escaped(found: re.Match[str]) -> str:
    code = ord(found[0])
    if code == 0:
        return "\\x00"
    return f"\\x{code - 0xDC00:02x}" if 0xDC80 <= code <= 0xDCFF else f"\\u{code:04x}"


_DIGITS = 8


def shortened(text: str, most: int) -> str:
    """A text of at most so many characters; what is cut is told apart by a digest of all of it.

    Args:
        text: any text.
        most: characters, more than 20.
    """
    if len(text) <= most:
        return text
    digest = hashlib.sha256(text.encode("utf-8", "surrogatepass")).hexdigest()[:_DIGITS]
    return f"{text[: most - _DIGITS - 4]}...~{digest}"

"""Pages of all lists, by one rule: ``limit``, ``page_token``, and ``next_page_token`` in the answer.

A token says where a page ended, in what order and under which filters. It is signed: one that was made up, or that
belongs to another list, is refused, and what it says needs no further checks. All replicas of the api take it.
"""

from __future__ import annotations

import base64
import binascii
import hashlib
import hmac
import json
from collections.abc import Callable, Mapping, Sequence
from typing import Annotated, Any, TypeVar

from fastapi import Query

from elasticdl_core.errors import InvalidInputError

_MAC_BYTES = 12
_MOST_CHARACTERS = 8100
"""Of a place that is a name of 1,000 characters, each of which JSON may write in six bytes."""
Row = TypeVar("Row")

PageToken = Annotated[
    str | None,
    Query(
        description="`next_page_token` of the page before, with the same filters.",
        min_length=1,
        max_length=_MOST_CHARACTERS,
    ),
]


class PageTokens:
    """Makes and reads tokens."""

    def __init__(self, secret: str) -> None:
        self._key = hmac.new(secret.encode(), b"page tokens", hashlib.sha256).digest()

    def make(self, listed: str, filters: Mapping[str, Any], place: Sequence[Any]) -> str:
        """A token for the page after a place.

        Args:
            listed: names the list.
            filters: what chooses and orders its items, as JSON data.
            place: what the last item of the page is found by, as JSON data.
        """
        content = json.dumps(place, separators=(",", ":"), ensure_ascii=False).encode()
        return base64.urlsafe_b64encode(self._mac(listed, filters, content) + content).rstrip(b"=").decode()

    def read(self, token: str, listed: str, filters: Mapping[str, Any]) -> list[Any]:
        """The place that a token of this list, with these filters, says.

        Raises:
            InvalidInputError: it is not such a token.
        """
        try:
            raw = base64.b64decode(token + "=" * (-len(token) % 4), altchars=b"-_", validate=True)
        except (ValueError, binascii.Error):
            raw = b""
        mac, content = raw[:_MAC_BYTES], raw[_MAC_BYTES:]
        if not hmac.compare_digest(mac, self._mac(listed, filters, content)):
            raise InvalidInputError(
                "the page_token is not one of this list with these filters",
                fix="use next_page_token as it came, with the same parameters, or leave it out",
            )
        place: list[Any] = json.loads(content)
        return place

    def _mac(self, listed: str, filters: Mapping[str, Any], content: bytes) -> bytes:
        about = json.dumps([listed, filters], sort_keys=True, default=str).encode()
        return hmac.new(self._key, about + b"\0" + content, hashlib.sha256).digest()[:_MAC_BYTES]

    def cut(
        self,
        listed: str,
        rows: Sequence[Row],
        key: Callable[[Row], Any],
        limit: int,
        token: str | None,
        filters: Mapping[str, Any] | None = None,
    ) -> tuple[list[Row], str | None]:
        """One page of rows that are all at hand, ordered by ``key``, and the token of the next.

        Raises:
            InvalidInputError: the token is not one of this list.
        """
        about = filters or {}
        if token is not None:
            (last,) = self.read(token, listed, about)
            rows = [row for row in rows if key(row) > last]
        page = list(rows[:limit])
        return page, self.make(listed, about, [key(page[-1])]) if len(rows) > limit else None

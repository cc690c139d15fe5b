"""The headers of every answer that keep browsers from doing more with it than show it, and the policies of pages."""

from __future__ import annotations

import base64
import hashlib
import re
from collections.abc import Mapping

from starlette.datastructures import MutableHeaders

_POLICY = "default-src 'none'; frame-ancestors 'none'; base-uri 'none'; form-action 'none'"
_HEADERS: Mapping[str, str] = {
    "X-Content-Type-Options": "nosniff",
    "X-Frame-Options": "DENY",
    "Referrer-Policy": "no-referrer",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Cache-Control": "private, no-cache",
    "Content-Security-Policy": _POLICY,
}
_NOT_MODIFIED = 304
_POLICY_NAME = b"content-security-policy"
_OF_ALL = tuple((name.lower().encode(), value.encode()) for name, value in _HEADERS.items())
_OF_TLS = (*_OF_ALL, (b"strict-transport-security", b"max-age=31536000"))
_SCRIPT = re.compile(rb"<script(?:\s[^>]*)?>(.*?)</script>", re.DOTALL)


def add_headers(headers: MutableHeaders, *, status: int, secure: bool = False) -> None:
    """Gives an answer the headers that it does not set by itself.

    A 304 has no policy: a browser would put it in place of that of the page which it has kept, and block its scripts.
    """
    present = {name for name, _ in headers.raw}
    if status == _NOT_MODIFIED:
        present.add(_POLICY_NAME)
    headers.raw.extend(pair for pair in (_OF_TLS if secure else _OF_ALL) if pair[0] not in present)


def policy_of_page(html: bytes) -> str:
    """The content security policy of a page of ours: the scripts in it, files of this origin, and nothing else."""
    contents = [content for content in _SCRIPT.findall(html) if content.strip()]
    digests = [base64.b64encode(hashlib.sha256(content).digest()).decode() for content in contents]
    scripts = " ".join(["script-src 'self'", *(f"'sha256-{digest}'" for digest in digests)])
    return (
        f"{_POLICY}; {scripts}; style-src 'self' 'unsafe-inline'; img-src 'self' data:; font-src 'self'; "
        "connect-src 'self'"
    )

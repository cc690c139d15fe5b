"""Credentials that nobody gave: made up, cut off, or signed by somebody else."""

from __future__ import annotations

import base64
import hashlib
import hmac

from tests.integration.api.bad_requests.case import Case


def _encoded(data: bytes) -> str:
    return base64.urlsafe_b64encode(data).rstrip(b"=").decode()


def _forged(claims: bytes, job: str = "digits-aaaaaa") -> str:
    body = f"{job}.{_encoded(claims)}"
    return f"{body}.{_encoded(hmac.new(b'guessed', body.encode(), hashlib.sha256).digest())}"


_CLAIMS = (
    b"[" * 250,
    b'{"role":"master","index":0,"inc":1,"exp":1e999}',
    b'{"role":"master","index":1e999,"inc":1,"exp":9e9}',
    b'{"role":"\\ud800","index":0,"inc":1,"exp":9e9}',
    b'{"role":"master","index":0,"inc":1,"exp":NaN}',
    b'{"role":"master","index":0,"inc":1,"exp":9e9}',
    b"\xff\xfe",
    b"null",
)
_TOKENS = (
    *(_forged(claims) for claims in _CLAIMS),
    _forged(b"{}", "\\ud800"),
    _forged(b"{}", "../.."),
    _encoded(b'{"job":"\\ud800","role":"master"}') + ".x",
    _encoded(b"[" * 5000) + "." + "A" * 43,
    "x",
    ".",
    "..",
    "a.b.c",
    "A" * 8000,
    "%00",
    "null",
)
_BASE = "/internal/jobs/digits-aaaaaa"
_PLACES = (
    f"{_BASE}/lease",
    f"{_BASE}/heartbeat",
    "/internal",
    "/internal/",
    "/internal/jobs",
    "/internal/x/y",
    "/internal/jobs/%ff/lease",
)
CASES = [
    *(
        Case(
            f"{path}: {number} {token[:24]!r}",
            "POST",
            path,
            401,
            "unauthenticated",
            json={"holder": "x"},
            token=token,
        )
        for path in _PLACES[:3]
        for number, token in enumerate(_TOKENS)
    ),
    *(Case(f"{path}: no master", "POST", path, 401, "unauthenticated", json={}, token="x") for path in _PLACES[3:]),
    *(
        Case(f"/jobs: {number} {token[:24]!r}", "GET", "/jobs", 401, "unauthenticated", token=token)
        for number, token in enumerate(_TOKENS)
    ),
    *(
        Case(
            f"Authorization: {value!r}",
            "GET",
            "/jobs",
            401,
            "unauthenticated",
            headers={"Authorization": value},
            token="",
        )
        for value in ("", "Bearer", "Bearer ", "Basic YTpi", "bearer\t", "Token x", "Bearer é")
    ),
]

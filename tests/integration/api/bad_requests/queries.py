"""Queries, headers and paths that mean nothing."""

from __future__ import annotations

import base64
import json
from typing import Any
from urllib.parse import quote

from tests.integration.api.bad_requests.case import SPEC, Case


def _token(value: Any) -> str:
    return base64.urlsafe_b64encode(json.dumps(value).encode()).rstrip(b"=").decode()


def _get(path: str, what: str, field: str = "", status: int = 422, code: str = "invalid_input") -> Case:
    return Case(f"GET {path[:80]}: {what}", "GET", path, status, code, field)


_PAGE_TOKENS = (
    "x",
    "%00",
    "é",
    "A" * 5000,
    _token([]),
    _token("x"),
    _token(["2026-01-01T00:00:00", "a"]),
    _token(["2026-01-01T00:00:00+00:00", 1]),
    _token(["0001-01-01T00:00:00+00:00", "a"]),
    _token(["0001-01-01T00:00:00+14:00", "a"]),
    _token(["9999-12-31T23:59:59+00:00", "a"]),
    _token(["9999-12-31T23:59:59-14:00", "a"]),
    _token(["1e999", "a"]),
    _token([1e300, "a"]),
    base64.urlsafe_b64encode(b"[" * 3000).decode(),
    base64.urlsafe_b64encode(b'["2026-01-01T00:00:00+00:00", "\\ud800"]').decode(),
    base64.urlsafe_b64encode(b'["2026-01-01T00:00:00+00:00", "\\u0000"]').decode(),
)
_JOBS = ("x", "-1", "0", "501", "1.5", "1e3", "99999999999999999999", "", "%00", "0x10")
_IDS = (
    "a" * 5000,
    "%00",
    "...",
    "%2e%2e",
    "a%2Fb",
    "A",
    "é",
    "%ff",
    "a b",
    "-a",
    "%F0%9F%98%80",
    "'; DROP TABLE jobs",
)
CASES = [
    *(_get(f"/jobs?page_token={quote(text, safe='%')}", "a page token") for text in _PAGE_TOKENS),
    *(_get(f"/jobs?limit={text}", "a limit", "limit") for text in _JOBS),
    *(_get(f"/jobs?state={text}", "a state", "state") for text in ("x", "", "running", "%00")),
    *(_get(f"/jobs?name={text}", "a name", "name") for text in ("", "A", "%00", "a" * 41, "a%0A", "'")),
    *(_get(f"/jobs?namespace={text}", "a namespace", "namespace") for text in ("", "A", "%00", "a" * 41)),
    *(_get(f"/jobs?label={text}", "a label") for text in ("", "a", "=b", "a%00=b", "a=b%00")),
    *(
        _get(f"/jobs?{text}", "an unknown parameter")
        for text in ("page=2", "stat=RUNNING", "%00=1", "a" * 5000 + "=1")
    ),
    *(_get(f"/jobs/{{job}}/events?after={text}", "an id", "after") for text in ("-1", "x", "1e9", "9" * 30)),
    *(_get(f"/jobs/{{job}}/events?limit={text}", "a limit", "limit") for text in ("0", "1001", "x")),
    *(_get(f"/jobs/{{job}}/logs?role={text}", "a role", "role") for text in ("x", "WORKER", "%00")),
    *(_get(f"/jobs/{{job}}/logs?index={text}", "an index", "index") for text in ("-1", "100001", "x")),
    *(_get(f"/jobs/{{job}}/logs?tail={text}", "a tail", "tail") for text in ("-1", "100001", "x")),
    *(_get(f"/jobs/{{job}}/logs?follow={text}", "a truth", "follow") for text in ("x", "2")),
    *(_get(f"/jobs/{{job}}/metrics?limit={text}", "a limit", "limit") for text in ("0", "100001", "x")),
    *(
        _get(f"/scheduler/decisions?{name}={text}", "a time")
        for name in ("since", "until")
        for text in ("x", "2026-01-01T00:00:00", "0001-01-01T00:00:00Z", "9999-12-31T23:59:59Z", "1e999", "%00")
    ),
    *(_get(f"/scheduler/decisions?cursor={text}", "a cursor") for text in ("-1", "x", "9" * 30, "%D9%A3", "")),
    *(_get(f"/scheduler/decisions?limit={text}", "a limit", "limit") for text in ("0", "501", "x")),
    _get("/scheduler/decisions?job=A%00", "a job", "job"),
    *(_get(f"/jobs/{text}", "no such job", status=404, code="not_found") for text in _IDS),
    *(_get(f"/jobs/{text}/events", "no such job", status=404, code="not_found") for text in _IDS[4:8]),
    *(
        _get(f"/jobs/{{job}}/artifacts/{text}", "no such artifact", status=404, code="not_found")
        for text in ("%2e%2e/secret", "%00", "x" * 5000, "a%2F%2e%2e%2Fb", "é")
    ),
    *(
        _get(f"/{text}", "nothing there", status=404, code="not_found")
        for text in ("x", "%00", "jobs/", "internal2", "%ff")
    ),
    *(
        _get(f"/bundles/{text}", "no digest", "digest")
        for text in ("x", "sha256:", "sha256:" + "A" * 64, "md5:" + "0" * 32)
    ),
    _get("/bundles/sha256:" + "2" * 64, "no such bundle", status=404, code="not_found"),
    *(
        Case(
            f"Last-Event-ID {text!r}",
            "GET",
            "/jobs/{over}/events",
            422,
            "invalid_input",
            headers={"Accept": "text/event-stream", "Last-Event-ID": text},
        )
        for text in ("x", "-1", "9" * 30, "1.5", "9" * 100)
    ),
    *(
        Case(
            f"Idempotency-Key {text[:20]!r}",
            "POST",
            "/jobs",
            422,
            "invalid_input",
            "idempotency-key",
            json=SPEC,
            headers={"Idempotency-Key": text},
        )
        for text in ("", "a b", "x" * 201)
    ),
    *(
        Case(f"If-Match {text!r}", "DELETE", "/jobs/{over}", 412, "precondition_failed", headers={"If-Match": text})
        for text in ('"999"', "W/x", "''")
    ),
    Case(
        "a long If-Match", "DELETE", "/jobs/{over}", 422, "invalid_input", "if-match", headers={"If-Match": "x" * 300}
    ),
    *(
        Case(f"{method} of a list", method, "/jobs", 405, "method_not_allowed")
        for method in ("PUT", "DELETE", "PATCH")
    ),
    Case("deleting what runs", "DELETE", "/jobs/{job}", 409, "conflict"),
    *(
        Case(f"{what} of what is over", "POST", f"/jobs/{{over}}/{what}", 409, "conflict")
        for what in ("suspend", "resume")
    ),
]

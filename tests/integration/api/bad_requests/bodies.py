"""Bodies that are no JSON, or more of it than anybody needs, at every route that takes some."""

from __future__ import annotations

import json

from tests.integration.api.bad_requests.case import SPEC, Case, nested

_TAKERS = (
    ("POST", "/jobs"),
    ("PATCH", "/jobs/{job}"),
    ("POST", "/scheduler/what-if"),
    ("PUT", "/cluster/reservations/shop"),
    ("PUT", "/namespaces/team-a"),
    ("POST", "/tokens"),
    ("POST", "/sql"),
)
_TAKERS_OF_NONE = (
    ("POST", "/jobs/{job}/cancel"),
    ("POST", "/jobs/{job}/suspend"),
    ("POST", "/jobs/{job}/resume"),
    ("DELETE", "/jobs/{over}"),
    ("DELETE", "/tokens/tok-x"),
    ("DELETE", "/namespaces/team-a"),
    ("DELETE", "/cluster/reservations/shop"),
    ("POST", "/session"),
    ("DELETE", "/session"),
    ("GET", "/jobs"),
    ("GET", "/session/providers"),
    ("GET", "/bundles/sha256:" + "0" * 64),
)
_MALFORMED = (
    ("nested deeply", b"[" * 40 + b"]" * 40),
    ("nested very deeply", b'{"a":' * 100_000),
    ("open for ever", b"[" * 500_000),
    ("of many values", b"[" + b"1," * 90_000 + b"1]"),
    ("of many empty texts", b'""' * 100_000),
    ("cut off", b'{"name": "x'),
    ("with escapes for ever", b'"' + b'\\"' * 400_000),
    ("empty", b""),
    ("of a byte that is no text", b"\xff"),
    ("not JSON", b"name=bad"),
)
_STRICT = (
    ("with NaN", b'{"name": NaN}'),
    ("with Infinity", b'{"name": -Infinity}'),
    ("with a number that is too large", b'{"name": 1e999}'),
    ("with a whole number that is too large", b'{"seed": 9223372036854775808}'),
    ("with a number of 5,000 digits", b'{"seed": ' + b"9" * 5000 + b"}"),
    ("with a NUL", b'{"name": "\\u0000"}'),
    ("with a NUL in a key", b'{"\\u0000": 1}'),
    ("with half a character", b'{"name": "\\ud800"}'),
    ("with half a character in a key", b'{"\\udfff": 1}'),
    ("with a key twice", b'{"name": "a", "name": "b"}'),
    ("in UTF-16", '{"name": "a"}'.encode("utf-16")),
    ("with a byte order mark", b"\xef\xbb\xbf{}"),
    ("a list", b"[]"),
    ("a text", b'"name"'),
    ("null", b"null"),
    ("deep in a field", json.dumps({**SPEC, "model_params": nested(254)}).encode()),
    ("deep in an unknown field", json.dumps({**SPEC, "unknown": nested(254)}).encode()),
)
CASES = [
    *(
        Case(
            f"{method} {path}: a body {what}",
            method,
            path,
            422 if what == "empty" and owned else 400,
            code,
            body=body,
        )
        for method, path in _TAKERS
        for owned in (path.startswith(("/cluster", "/namespaces", "/sql", "/tokens")),)
        for what, body in _MALFORMED
        for code in ("invalid_input" if what == "empty" and owned else "malformed",)
    ),
    *(
        Case(f"{method} {path}: a body {what}", method, path, 400, "malformed", body=body)
        for method, path in _TAKERS[:3]
        for what, body in _STRICT
    ),
    *(
        Case(f"{method} {path}: too large", method, path, 413, "too_large", body=b" " * (1 << 20) + b"{}")
        for method, path in _TAKERS
    ),
    *(
        Case(
            f"{method} {path}: of the type {kind!r}",
            method,
            path,
            415,
            "unsupported_media_type",
            body=b"{}",
            content_type=kind,
        )
        for method, path in _TAKERS[:3]
        for kind in ("text/plain", "application/xml", "application/x-www-form-urlencoded", "")
    ),
    *(
        Case(f"{method} {path}: {what}, and it takes none", method, path, 422, "invalid_input", body=body)
        for method, path in _TAKERS_OF_NONE
        for what, body in (("a body", b'{"reason": "x"}'), ("a form", b"reason=x"), ("a number", b"1"))
    ),
    *(
        Case(f"{method} {path}: too large a body, and it takes none", method, path, 413, "too_large", body=body)
        for method, path in _TAKERS_OF_NONE
        for body in (b" " * (1 << 20) + b"1",)
    ),
    Case(
        "fields by the hundred thousand", "POST", "/jobs", 400, "malformed", json={f"f{n}": 1 for n in range(50_000)}
    ),
    Case("many fields", "POST", "/jobs", 422, "invalid_spec", "body", json={f"f{n}": 1 for n in range(500)}),
    Case("no such change", "PATCH", "/jobs/{job}", 422, "invalid_spec", "num_ps", json={"num_ps": 3}),
    Case("a priority of text", "PATCH", "/jobs/{job}", 422, "invalid_spec", "priority", json={"priority": "1"}),
    Case("too many workers", "PATCH", "/jobs/{job}", 422, "invalid_spec", "max_workers", json={"max_workers": 10**6}),
    Case("no workers", "PATCH", "/jobs/{job}", 422, "invalid_spec", "min_workers", json={"min_workers": 0}),
    Case("a change of what is over", "PATCH", "/jobs/{over}", 409, "conflict", json={"priority": 3}),
    Case("slots of text", "PUT", "/cluster/reservations/shop", 422, "invalid_input", "slots", json={"slots": "3"}),
    Case("slots below none", "PUT", "/cluster/reservations/shop", 422, "invalid_input", "slots", json={"slots": -1}),
    Case(
        "slots without end", "PUT", "/cluster/reservations/shop", 422, "invalid_input", "slots", json={"slots": 2**70}
    ),
    Case("no slots", "PUT", "/cluster/reservations/shop", 422, "invalid_input", "slots", json={}),
    Case(
        "patience without end",
        "PUT",
        "/cluster/reservations/shop",
        422,
        "invalid_input",
        "grace_s",
        json={"slots": 1, "grace_s": 1e9},
    ),
    Case("a name of others", "PUT", "/cluster/reservations/UPPER", 422, "invalid_input", "name", json={"slots": 1}),
    Case("an unknown question", "POST", "/scheduler/what-if", 422, "invalid_input", "why", json={"why": 1}),
    Case("too many questions", "POST", "/scheduler/what-if", 422, "invalid_input", "add", json={"add": [{}] * 101}),
    Case(
        "a rank of text",
        "POST",
        "/scheduler/what-if",
        422,
        "invalid_input",
        "priorities",
        json={"priorities": {"a": "1"}},
    ),
    Case("slots below all", "POST", "/scheduler/what-if", 422, "invalid_input", "slots", json={"slots": -1}),
    Case(
        "a job without records",
        "POST",
        "/scheduler/what-if",
        422,
        "invalid_input",
        "add.0.records",
        json={"add": [{"records": 0}]},
    ),
]

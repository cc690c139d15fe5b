"""What a job's own master may not say."""

from __future__ import annotations

from typing import Any

from tests.integration.api.bad_requests.case import Case, nested

_BASE = "/internal/jobs/{job}"


def _post(
    place: str, field: str, status: int = 422, code: str = "invalid_input", /, method: str = "POST", **json: Any
) -> Case:
    name = f"{place}: {field} {str(json)[-60:]}"
    return Case(name, method, f"{_BASE}{place}", status, code, field, json=json, token="master")


def _raw(path: str, what: str, body: bytes, status: int = 400, code: str = "malformed") -> Case:
    return Case(f"{path}: {what}", "POST", f"{_BASE}{path}", status, code, body=body, token="master")


CASES = [
    _post("/lease", "holder", holder=""),
    _post("/lease", "holder", holder="x" * 201),
    _post("/lease", "holder", holder=5),
    _post("/heartbeat", "epoch", epoch=-1, status={}),
    _post("/heartbeat", "epoch", epoch=2**63, status={}),
    _post("/heartbeat", "epoch", epoch="x", status={}),
    _post("/heartbeat", "status", status=[]),
    _post("/state", "to", to="FLYING"),
    _post("/state", "to", to=5),
    _post("/state", "", 400, "malformed", to="RUNNING", detail=nested(100)),
    _post("/events", "events", events=5),
    _post("/plan", "plan", method="PUT", plan=[]),
    _post("/done", "tasks", tasks="x"),
    _post("/done", "", tasks=["x"]),
    _post("/done", "", tasks=["t:1:2:3"]),
    _post("/done", "tasks.0", tasks=["t" * 201]),
    _post("/checkpoints", "", manifest={}),
    _post("/checkpoints", "", manifest={"version": -1}),
    _post("/checkpoints", "", manifest={"version": True}),
    _post("/checkpoints", "", manifest={"version": 2**63}),
    _post("/checkpoints", "", 400, "malformed", manifest={"version": 1, "files": nested(200)}),
    _post("/evaluations", "number", number=-1, model_version=0, training_epoch=0, metrics={}),
    _post("/evaluations", "metrics", number=1, model_version=0, training_epoch=0, metrics=[]),
    _post("/artifacts", "name", name="", path="a", size=1),
    _post("/artifacts", "", name="a", path="../a", size=1),
    _post("/artifacts", "", name="a", path="/etc/passwd", size=1),
    _post("/artifacts", "path", name="a", path="x" * 4097, size=1),
    _post("/artifacts", "size", name="a", path="a", size=-1),
    _raw("/heartbeat", "deep", b'{"epoch": 1, "status": ' + b'{"a":' * 5000),
    _raw("/heartbeat", "no JSON", b"x"),
    _raw("/heartbeat", "a number of 5,000 digits", b'{"epoch": ' + b"9" * 5000 + b', "status": {}}'),
    _raw("/heartbeat", "empty", b"", 422, "invalid_input"),
    _raw("/heartbeat", "null", b"null", 422, "invalid_input"),
]

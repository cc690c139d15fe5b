"""What a row of the table is."""

from __future__ import annotations

import dataclasses
from dataclasses import dataclass
from typing import Any

SPEC: dict[str, Any] = {
    "name": "bad",
    "model_def": "model.custom_model",
    "model_bundle": "sha256:" + "0" * 64,
    "training_data": "/data",
}
"""A specification that lacks nothing but its bundle, which is looked for last."""


@dataclass(frozen=True)
class Case:
    """A request and its refusal.

    Attributes:
        name: what is wrong.
        method: of HTTP.
        path: ``{job}`` stands for a job that runs, ``{over}`` for one that is over.
        status: of the refusal; several where the server below may be first.
        code: of the problem.
        field: one of the fields that the problem names, or how one begins.
        json: the body, or
        body: its bytes, of
        content_type: that type.
        headers: more of them.
        token: whose; ``master`` for the master of the job that runs, with its epoch in ``json`` where there is none.
    """

    name: str
    method: str
    path: str
    status: int
    code: str
    field: str = ""
    json: Any = None
    body: bytes | None = None
    content_type: str = "application/json"
    headers: dict[str, str] = dataclasses.field(default_factory=dict)
    token: str = "admin"


def nested(depth: int) -> dict[str, Any]:
    """Objects within each other."""
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value

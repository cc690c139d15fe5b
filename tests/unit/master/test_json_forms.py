"""JSON that workers send, and manifests that users bring, have their form or are refused by name."""

from __future__ import annotations

import json
from typing import Any

import pytest

from elasticdl_core.errors import DataError, InvalidInputError
from elasticdl_master.json_forms import check_result, read_description
from elasticdl_runtime.stored_checkpoints import read_manifest

pytestmark = pytest.mark.unit
RULE = {"monitor": "loss", "patience": 2, "mode": "min", "min_delta": 0.5}
CALLBACKS = {"max_steps": 3, "early_stopping": RULE, "saved_model": True}
DESCRIPTION = {
    "has": {"loss": True},
    "dense": [{"name": "w", "shape": [2, 3], "dtype": "float32", "kind": "trainable"}],
    "tables": [{"name": "t", "dim": 4, "input_dim": None}],
    "dense_bytes": 24,
    "table_bytes": 0,
    "optimizer": {"name": "sgd", "params": {"learning_rate": 0.1, "nesterov": False}},
    "callbacks": CALLBACKS,
    "keras": "3.0",
}
MANIFEST = {"version": 3, "directory": "/elsewhere", "files": [{"name": "a", "size": 1, "sha256": "0"}], "more": 1}
NO_JSON = ["", "{", "[" * 100_000, '{"a":' * 5_000, '{"\\ud800": 1}', "[]", "3", "null", '"x"', "\x00"]


def changed(whole: dict[str, Any], path: str, value: object) -> str:
    """JSON text with another value at a place."""
    copy = json.loads(json.dumps(whole))
    place, *rest = reversed(path.split("."))
    inner = copy
    for key in reversed(rest):
        inner = inner[key]
    inner[place] = value
    return json.dumps(copy)


def test_what_a_worker_describes_is_read() -> None:
    assert read_description(json.dumps(DESCRIPTION)) == DESCRIPTION
    assert read_description(changed(DESCRIPTION, "optimizer", None))["optimizer"] is None


@pytest.mark.parametrize(
    "text",
    [
        *NO_JSON,
        *(
            changed(DESCRIPTION, path, value)
            for path, value in [
                ("callbacks", None),
                ("callbacks", {}),
                ("callbacks.max_steps", "3"),
                ("callbacks.max_steps", 1.5),
                ("callbacks.max_steps", -1),
                ("callbacks.early_stopping", {"monitor": "loss"}),
                ("callbacks.early_stopping.patience", "2"),
                ("callbacks.early_stopping.min_delta", None),
                ("dense", {}),
                ("tables", [3]),
                ("keras", 3),
            ]
        ),
    ],
    ids=lambda text: text[:12],
)
def test_a_description_of_another_form_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="the description of the model") as caught:
        read_description(text)
    assert caught.value.fix and len(caught.value.message) < 300


@pytest.mark.parametrize(
    "result",
    [
        "",
        "{}",
        '{"files": [{"name": "m", "size": 3, "sha256": "0"}], "fed": 3}',
        '{"states": {"a": {"sum": ["NaN", 1]}}, "records": 5}',
        '{"metrics": {"a": "Infinity"}}',
    ],
)
def test_results_are_taken(result: str) -> None:
    check_result(result.encode())


@pytest.mark.parametrize(
    "result",
    [
        *NO_JSON[1:],
        '{"files": 3}',
        '{"files": [3]}',
        '{"files": [{"name": "m", "size": 1e999, "sha256": "0"}]}',
        '{"files": [{"name": "m", "size": "3", "sha256": "0"}]}',
        '{"states": []}',
        '{"states": {"a": 3}}',
        '{"records": "5"}',
        '{"metrics": 1}',
    ],
    ids=lambda text: text[:12],
)
def test_a_result_of_another_form_is_refused(result: str) -> None:
    with pytest.raises(InvalidInputError, match="the result of the task"):
        check_result(result.encode())


def test_a_manifest_is_where_it_lies() -> None:
    manifest = read_manifest(json.dumps(MANIFEST).encode(), "/here")
    assert (manifest["version"], manifest["directory"], manifest["files"][0]["name"]) == (3, "/here", "a")


@pytest.mark.parametrize(
    "text",
    [
        *NO_JSON,
        changed(MANIFEST, "version", "x"),
        changed(MANIFEST, "files", None),
        changed(MANIFEST, "files", [{"name": "a"}]),
        changed(MANIFEST, "done", 3),
    ],
    ids=lambda text: text[:12],
)
def test_a_damaged_manifest_is_refused(text: str) -> None:
    with pytest.raises(DataError, match=r"/here/manifest\.json is damaged"):
        read_manifest(text.encode(), "/here")

"""Jobs that cannot be: each field with what it does not take."""

from __future__ import annotations

import dataclasses
from typing import Any, get_type_hints

from elasticdl_core.job import JobSpec
from elasticdl_core.job.bounds import ENTRIES, PARAMETERS
from tests.integration.api.bad_requests.case import SPEC, Case, nested

_HINTS = get_type_hints(JobSpec)
_FIELDS = [field.name for field in dataclasses.fields(JobSpec)]


def _of(name: str, value: Any, what: str = "", also: dict[str, Any] | None = None) -> Case:
    shown = what or repr(value)[:40]
    body = {**SPEC, **(also or {}), name: value}
    return Case(f"{name} is {shown}", "POST", "/jobs", 422, "invalid_spec", name, json=body)


_NUMBERS = [_of(name, value) for name in _FIELDS if _HINTS[name] is int for value in (-1001, 2**62 + 1, "1", 1.5)]
_TEXTS = [
    _of(name, value, what)
    for name in _FIELDS
    if _HINTS[name] is str
    for value, what in ((5, "a number"), ("/a\x1b[2J", "an escape"), ("x" * 70_000, "very long"))
]
_TRUTHS = [_of(name, value) for name in _FIELDS if _HINTS[name] is bool for value in (1, "true", None)]
_PARAMETERS = [
    _of(name, value, what)
    for name in PARAMETERS
    for value, what in (
        ([], "a list"),
        ("a=1", "a text"),
        (nested(11), "deep"),
        ({"a": list(range(1001))}, "many values"),
        ({f"k{n}": 1 for n in range(1001)}, "many keys"),
        ({"a": "x" * 70_000}, "a long text"),
    )
]
_ENTRIES = [_of(name, value) for name in ENTRIES for value in ("/etc/passwd.x", "../loss", "a b", "a..b", "a;b")]
_VARIABLES = [
    _of("envs", value, what)
    for value, what in (
        ({"A=B": "x"}, "a name with ="),
        ({"": "x"}, "an empty name"),
        ({"1A": "x"}, "a name with a digit first"),
        ({"A-B": "x"}, "a name with a dash"),
        ({"A B": "x"}, "a name with a space"),
        ({"Ä": "x"}, "a name of other letters"),
        ({"A\n": "x"}, "a name with a line end"),
        ({"A" * 200: "x"}, "a long name"),
        ({"A": 1}, "a number"),
        ({"A": None}, "null"),
        ({"A": "x" * 40_000}, "a long value"),
        ({f"A{n}": "x" * 30_000 for n in range(4)}, "long values"),
        ({f"A{n}": "" for n in range(101)}, "many"),
        ({"LD_PRELOAD": "/x.so"}, "LD_PRELOAD"),
        ({"LD_LIBRARY_PATH": "/x"}, "LD_LIBRARY_PATH"),
        ({"PYTHONHOME": "/x"}, "PYTHONHOME"),
        ({"PYTHONINSPECT": "1"}, "PYTHONINSPECT"),
        ({"ELASTICDL_JOB_TOKEN": "x"}, "ELASTICDL_JOB_TOKEN"),
        (["A=B"], "a list"),
    )
]
_LABELS = [
    _of("labels", value, what)
    for value, what in (
        ({"": "x"}, "an empty key"),
        ({"a=b": "x"}, "a key with ="),
        ({"a\n": "x"}, "a key with a line end"),
        ({"a" * 101: "x"}, "a long key"),
        ({"a": "x" * 201}, "a long value"),
        ({"a": "\x1b]0;x\x07"}, "an escape"),
        ({f"l{n}": "" for n in range(65)}, "many"),
        ({"a": 1}, "a number"),
        ({"a": {"b": "c"}}, "deep"),
    )
]
_OTHERS = [
    _of("delay_compensation", -1),
    _of("delay_compensation", 1e10),
    _of("delay_compensation", "30"),
    _of("name", ""),
    _of("name", "-a"),
    _of("name", "A"),
    _of("name", "a" * 41),
    _of("name", "a/b"),
    _of("name", "a\n"),
    _of("model_def", "model"),
    _of("model_def", "a.b c"),
    _of("model_def", "/etc/passwd.x"),
    _of("model_def", ".a"),
    _of("model_def", ""),
    _of("type", "serving"),
    _of("type", 1),
    _of("keras", "3"),
    _of("xla", "maybe"),
    _of("on_nan", "ignore"),
    _of("wire_dtype", "float16"),
    _of("distribution_strategy", "MirroredStrategy"),
    _of("export_formats", "onnx"),
    _of("model_bundle", "md5:0"),
    _of("model_bundle", "sha256:" + "A" * 64),
    _of("model_bundle", "sha256:" + "1" * 64, "not there"),
    _of("model_zoo", "/zoo", "one of two"),
    _of("model_zoo", "", "missing", {"model_bundle": ""}),
    _of("model_zoo", "relative", "relative", {"model_bundle": ""}),
    _of("output", "relative"),
    _of("output", "weird://x"),
    _of("output", "/a/../b"),
    _of("checkpoint_dir", "relative"),
    _of("checkpoint_dir_for_init", "~/x"),
    _of("training_data", "", "missing"),
    _of("num_ps", 1001),
    _of("num_ps", -1),
    _of("max_workers", 1, "less than min_workers", {"min_workers": 2}),
    _of("grads_to_wait", 2, "asynchronous"),
    _of("max_staleness", 1, "synchronous", {"use_async": False}),
    _of("evaluation_steps", 5, "without data"),
    _of("table_max_rows", 1),
    _of("validation_data", "", "missing", {"type": "evaluation", "checkpoint_dir_for_init": "/c"}),
    _of("prediction_data", "", "missing", {"type": "prediction", "checkpoint_dir_for_init": "/c"}),
    _of("minibatch_sise", 3, "unknown"),
    _of("__class__", 3, "unknown"),
    _of("", 3, "unknown"),
]
CASES = [*_NUMBERS, *_TEXTS, *_TRUTHS, *_PARAMETERS, *_ENTRIES, *_VARIABLES, *_LABELS, *_OTHERS]

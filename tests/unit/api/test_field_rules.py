"""The description of fields of jobs in the API against the rules of jobs."""

from __future__ import annotations

import dataclasses
from collections.abc import Sequence
from typing import Any

import jsonschema
import pytest

from elasticdl_api.schemas.jobs import JobChanges, spec_schema
from elasticdl_core.errors import Problem, SpecError
from elasticdl_core.job import JobSpec
from elasticdl_core.job.bounds import PARAMETERS, find_problems
from elasticdl_core.job.rules import combination_problems, value_problems
from elasticdl_core.path_policy import check_places

pytestmark = pytest.mark.unit

_TEXTS = [
    *(
        "",
        "a",
        "a.b",
        "a.b.c",
        "A.b",
        "a b",
        "a..b",
        "1a.b",
        "last",
        "x" * 40,
        "x" * 41,
        "a" * 301,
        "/" + "p" * 4095,
        "/" + "p" * 4096,
    ),
    *(
        "a\x01",
        "tab\t",
        "gpu=1",
        "gpu=0.5",
        "gpu=0.05",
        "gpu=0",
        "gpu=0.00",
        "gpu=1.5",
        "gpu=64",
        "gpu=65",
        "cpu=1",
        "auc:max",
    ),
    *(
        ":max",
        "auc:best",
        "sha256:" + "0f" * 32,
        "sha256:0",
        "keras",
        "keras,saved_model",
        ",keras,",
        "nope",
        "csv",
        "auto",
        "torch",
    ),
    *(
        "/zoo",
        "//zoo",
        "/a/../b",
        "/a/..",
        "/..a",
        "/a\\b",
        "zoo",
        "~/zoo",
        "/a b",
        "/a::b",
        "file:///zoo",
        "s3://b",
        "S3://b",
    ),
    *(
        "s3://b/",
        "s3://b/c//",
        "s3://b//c",
        "s3://b/./c",
        "s3://b/..",
        "s3://",
        "s3://a@b/c",
        "s3://b/c@d",
        "s3://b/c d",
    ),
    *("gs://b/c/d.e", "hdfs://b/c", "s3://b/c?d", "s3://b::c", "/a://b"),
    *("on", "off", "nccl", "ParameterServerStrategy", "float32", "skip", "d" * 65_536, "d" * 65_537),
]
_DICTIONARIES: list[dict[str, Any]] = [
    {},
    {"a": "b"},
    {"a": 1},
    {"": "x"},
    {"a=b": "x"},
    {"a\x01": "x"},
    {"a": "x\x00"},
    {"a\x00": "x"},
    {"a": "x" * 201},
    {"a" * 101: "x"},
    {"1a": "x"},
    {"ELASTICDL_X": "1"},
    {"PYTHONPATH": "/x"},
    {"PYTHONHASHSEED": "0"},
    {"LD_PRELOAD": "x"},
    {"KERAS_BACKEND": "torch"},
    {"KERAS_BACKEND": "tensorflow"},
    {"CUDA_VISIBLE_DEVICES": "0"},
    {"CUDA_VISIBLE_DEVICES": "-1"},
    {"a": 2**63},
    {"a": [1, {"b": None, "c": [True, 1.5]}]},
    {"a": [{"b\x00": 1}]},
    {str(number): "x" for number in range(65)},
    {f"V{number}": "x" for number in range(101)},
    {f"V{number}": 1 for number in range(1001)},
]
_NUMBERS = [
    -1001,
    -1000,
    -1,
    0,
    1,
    2,
    16,
    17,
    255,
    256,
    1000,
    1001,
    1024,
    1025,
    10_000,
    10_001,
    2**24,
    2**24 + 1,
    2**31 - 1,
    2**31,
    2**63,
]
_VALUES: dict[str, list[Any]] = {
    "string": [*_TEXTS, 1, None],
    "object": [*_DICTIONARIES, "a"],
    "integer": [*_NUMBERS, True, "1", 2.0, 2.5, 1e300],
    "number": [-0.5, 0, 0.5, 1e9, 1.1e9, True, "1"],
    "boolean": [True, False, 1, "true"],
}
_OF_ONE_FIELD = ("is unknown", "is not the digest", "is out of range")
_SCHEMA = spec_schema()


@pytest.mark.parametrize("name", sorted(_SCHEMA["properties"]))
def test_a_field_takes_what_its_schema_says(name: str) -> None:
    """Each value that the schema takes the job takes, and the other way round."""
    about = _SCHEMA["properties"][name]
    validator = jsonschema.Draft202012Validator(about)
    for value in _VALUES[about["type"]]:
        by_schema = validator.is_valid(value)
        problems = _problems(name, value)
        deep = name in PARAMETERS and isinstance(value, dict) and "a" in value  # of which the schema says nothing
        assert by_schema == (not problems) or (deep and by_schema), (
            f"{name}={str(value)[:80]!r}: schema says {by_schema}; {problems}"
        )


def _place_problems(spec: JobSpec) -> Sequence[Problem]:
    """What the api alone refuses: places that only the caller's folder makes whole."""
    try:
        check_places(spec, None)
    except SpecError as error:
        return error.problems
    return []


def _problems(name: str, value: Any) -> list[str]:
    """The problems of a field by itself."""
    plain = {"model_def": "m.f", "model_zoo": "/zoo", "training_data": "/data"}
    try:
        JobSpec.from_mapping({**plain, name: value})
    except SpecError as error:
        of_type = [one.message for one in error.problems if one.field == name and " is not " in one.message]
        if of_type:
            return of_type
    try:
        spec = dataclasses.replace(JobSpec.from_mapping(plain), **{name: value})
        found = find_problems(vars(spec)) or value_problems(spec)
        found += [] if found else _place_problems(spec)
    except (TypeError, AttributeError, ValueError) as error:
        return [repr(error)]
    # Three rules of one field each stand among those of several.
    found += [one for one in combination_problems(spec) if any(word in one.message for word in _OF_ONE_FIELD)]
    return [one.message for one in found if one.field == name]


def test_changes_of_a_job_have_no_defaults() -> None:
    """What is left out stays, and a client that is generated sends the defaults that it is told of."""
    changeable = JobChanges.model_json_schema()["properties"]
    assert len(changeable) == 4 and not [name for name, about in changeable.items() if "default" in about]

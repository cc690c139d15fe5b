"""What a specification may hold: the same bounds for the API, the command line and --local."""

from __future__ import annotations

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from elasticdl_core.errors import SpecError
from elasticdl_core.job import JobSpec
from elasticdl_core.job.bounds import ENTRIES, find_problems

pytestmark = pytest.mark.unit
GOOD = {"model_def": "model.custom_model", "model_zoo": "/zoo", "training_data": "/data"}


def nested(depth: int) -> dict[str, Any]:
    value: dict[str, Any] = {}
    for _ in range(depth - 1):
        value = {"a": value}
    return value


def refused(**changes: Any) -> list[str]:
    with pytest.raises(SpecError) as caught:
        JobSpec.from_mapping({**GOOD, **changes})
    assert all(problem.message and problem.fix for problem in caught.value.problems)
    assert len(str(caught.value)) < 20_000
    return [problem.field for problem in caught.value.problems]


@pytest.mark.parametrize(
    "envs",
    [
        {"A=B": "x"},
        {"": "x"},
        {"1A": "x"},
        {"A B": "x"},
        {"A\0": "x"},
        {"Ä": "x"},
        {"A\n": "x"},
        {"A" * 129: "x"},
        {"A": "x\0"},
        {"A": "\ud800"},
        {"A": "x" * 32_769},
        {"A": "x" * 32_768, "B": "x" * 32_768},
        {f"A{n}": "" for n in range(101)},
        {"LD_PRELOAD": "/x.so"},
        {"LD_LIBRARY_PATH": "/x"},
        {"PYTHONHOME": "/x"},
        {"PYTHONSTARTUP": "/x"},
        {"ELASTICDL_JOB_TOKEN": "x"},
        {"KERAS_BACKEND": "torch"},
    ],
)
def test_variables(envs: dict[str, str]) -> None:
    assert set(refused(envs=envs)) == {"envs"}


@pytest.mark.parametrize(
    "labels",
    [
        {"": "x"},
        {"a=b": "x"},
        {"a\n": "x"},
        {"a" * 101: "x"},
        {"a": "x" * 201},
        {"a": "\x1b[2J"},
        {"a": "\0"},
        {f"l{n}": "" for n in range(65)},
    ],
)
def test_labels(labels: dict[str, str]) -> None:
    assert set(refused(labels=labels)) == {"labels"}


@pytest.mark.parametrize("field", ["model_params", "optimizer_params", "data_reader_params"])
@pytest.mark.parametrize(
    "value",
    [
        nested(11),
        nested(500),
        {"a": list(range(1000))},
        {"a": "x" * 70_000},
        {"a" * 70_000: 1},
        {"a": "\0"},
        {"\0": 1},
        {"a": "\ud800"},
        {"a": 2**63},
        {"a": float("nan")},
        {"a": float("inf")},
        {"a": {1: 2}},
        {"a": b"bytes"},
    ],
)
def test_parameters(field: str, value: dict[str, Any]) -> None:
    assert refused(**{field: value}) == [field]


@pytest.mark.parametrize("field", ENTRIES)
@pytest.mark.parametrize("value", ["/etc/passwd.x", "../x.loss", "a b", "a..b", ".a", "x" * 301, "a\0", "\x1b[31m"])
def test_names_in_a_module(field: str, value: str) -> None:
    assert refused(**{field: value}) == [field]


@pytest.mark.parametrize(
    ("field", "value"),
    [
        ("training_data", "x" * 65_537),
        ("training_data", "/a\0b"),
        ("output", "/x" * 2049),
        ("output", "/a\nb"),
        ("checkpoint_dir", "/\x1b]0;x\x07"),
        ("model_zoo", "/\ud800"),
        ("name", "x" * 301),
        ("keras", "x" * 1_000_000),
        ("delay_compensation", 1e10),
        ("delay_compensation", float("nan")),
        ("delay_compensation", 10**400),
        ("num_ps", 1001),
        ("num_epochs", 2**31 - 1),
        ("minibatch_size", 2**31 - 1),
        ("progress_timeout_s", 2**31 - 1),
    ],
)
def test_other_fields(field: str, value: Any) -> None:
    assert field in refused(**{field: value})


@pytest.mark.parametrize("field", sorted(JobSpec.from_mapping(GOOD).to_mapping()))
@pytest.mark.parametrize("value", [None, [], nested(400), 10**300, -(10**300), "\0", ["x"] * 10_000, float("nan")])
def test_no_value_does_more_than_be_refused(field: str, value: Any) -> None:
    try:
        JobSpec.from_mapping({**GOOD, field: value})
    except SpecError as error:
        assert len(str(error)) < 20_000


@pytest.mark.parametrize("name", ["x" * 430, "a\x1b[2J", "Big"])
def test_what_a_job_may_be_called_is_said_at_once(name: str) -> None:
    """430 characters were told "give 300 or fewer", and 300 then "1 to 40"."""
    with pytest.raises(SpecError) as caught:
        JobSpec.from_mapping({**GOOD, "name": name})
    (problem,) = caught.value.problems
    assert problem.field == "name"
    assert problem.fix.startswith("use 1 to 40 lower-case letters")


def test_many_unknown_fields_are_refused_as_one() -> None:
    assert refused(**{f"field{n}": 1 for n in range(100_000)}) == ["body"]
    assert refused(**{"x" * 1_000_000: 1}) == ["x" * 100]


def test_what_is_within_bounds_is_taken() -> None:
    spec = JobSpec.from_mapping(
        {
            **GOOD,
            "envs": {"A": "x" * 32_768, "_b1": "two\nlines"},
            "labels": {"team/a b": "ö" * 200},
            "model_params": {**nested(10), "text": "line\n", "list": [1, 2.5, None, True]},
            "loss": "losses.focal",
        }
    )
    assert find_problems(vars(spec)) == []


@given(st.dictionaries(st.text(max_size=5), st.text(max_size=5), max_size=3))
def test_whatever_is_taken_can_be_a_variable(envs: dict[str, str]) -> None:
    try:
        JobSpec.from_mapping({**GOOD, "envs": envs})
    except SpecError:
        return
    for name, value in envs.items():
        assert name.isascii() and name.isidentifier() and "\0" not in value
        value.encode()

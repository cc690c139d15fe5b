"""Bad input is refused at the earliest door, or fails the job, with cause, place and fix."""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import pytest

from tests.e2e.local_cluster import EXAMPLES, Cluster
from tests.fakes.frameworks import NEEDS_TORCH

pytestmark = [pytest.mark.e2e, pytest.mark.timeout(300)]
GOOD = (EXAMPLES / "digits" / "zoo" / "digits.py").read_text()
GOOD_TORCH = (EXAMPLES / "digits_torch" / "zoo" / "digits.py").read_text()
in_torch = pytest.mark.parametrize(
    "source", [GOOD, pytest.param(GOOD_TORCH, marks=NEEDS_TORCH)], ids=["tensorflow", "torch"]
)


@pytest.fixture
def zoo(tmp_path: Path) -> Callable[[str], Path]:
    def make(source: str) -> Path:
        directory = tmp_path / "zoo"
        directory.mkdir()
        (directory / "digits.py").write_text(source)
        return directory

    return make


def flags(zoo: Path, digits: Path, *more: str) -> tuple[str, ...]:
    return (
        *("train", "--job_name", "bad", "--model_zoo", str(zoo), "--model_def", "digits.forward"),
        *("--training_data", str(digits / "train"), *more),
    )


@in_torch
def test_a_missing_function_is_refused_before_submission(
    cluster: Cluster, digits: Path, zoo: Callable[[str], Path], source: str
) -> None:
    done = cluster.cli(*flags(zoo(source.replace("def loss(", "def los(")), digits), expect=None)
    assert done.returncode != 0
    shown = done.stdout + done.stderr
    assert "loss" in shown
    assert "digits.py" in shown
    assert "fix" in shown


@in_torch
def test_a_syntax_error_is_refused_with_its_line(
    cluster: Cluster, digits: Path, zoo: Callable[[str], Path], source: str
) -> None:
    wrong = source.replace("def optimizer(lr=", "def optimizer(lr:=")
    line = next(number for number, text in enumerate(wrong.splitlines(), 1) if "lr:=" in text)
    done = cluster.cli(*flags(zoo(wrong), digits), expect=None)
    assert done.returncode != 0
    assert f"digits.py:{line}" in (done.stdout + done.stderr).replace("\n", "")


def test_an_unknown_flag_is_refused_with_a_suggestion(cluster: Cluster, digits: Path) -> None:
    done = cluster.cli(*flags(EXAMPLES / "digits" / "zoo", digits, "--minibatchsize", "32"), expect=None)
    assert done.returncode == 2
    assert "minibatch_size" in done.stderr


def test_an_impossible_combination_is_refused_with_its_fix(cluster: Cluster, digits: Path) -> None:
    done = cluster.cli(*flags(EXAMPLES / "digits" / "zoo", digits, "--grads_to_wait", "4"), expect=None)
    assert done.returncode != 0
    assert "use_async" in done.stdout + done.stderr


def failed(cluster: Cluster, arguments: tuple[str, ...]) -> tuple[dict, str]:
    """Runs a job that must fail; returns the job's error and what the user was shown."""
    done = cluster.cli(*arguments, expect=None, timeout=200)
    shown = done.stdout + done.stderr
    assert done.returncode != 0, shown
    jobs = json.loads(cluster.cli("jobs", "list", "--json").stdout)
    newest = max((job for job in jobs if job["name"] == "bad"), key=lambda job: job["created_at"])
    job = cluster.job(newest["id"])
    assert job["state"] == "FAILED"
    return job["error"], shown


@pytest.mark.parametrize(
    ("source", "right", "wrong"),
    [
        (GOOD, "tf.keras.layers.Reshape((8, 8, 1))", "tf.keras.layers.Reshape((9, 9, 1))"),
        pytest.param(GOOD_TORCH, "reshape(1, 8, 8)", "reshape(1, 9, 9)", marks=[NEEDS_TORCH, pytest.mark.slow]),
    ],
    ids=["tensorflow", "torch"],
)
def test_a_wrong_shape_fails_the_job_with_the_users_traceback(
    cluster: Cluster, digits: Path, zoo: Callable[[str], Path], source: str, right: str, wrong: str
) -> None:
    assert right in source
    error, shown = failed(cluster, flags(zoo(source.replace(right, wrong)), digits))
    assert "digits.py" in error["traceback"]
    assert "digits.py" in shown


@in_torch
@pytest.mark.rotates(turns=2)
def test_an_exception_in_feed_fails_the_job_with_its_line(
    cluster: Cluster, digits: Path, zoo: Callable[[str], Path], source: str
) -> None:
    bad = re.sub(r"(def feed\(.*\):\n)", r'\1    raise KeyError("no such feature")\n', source)
    line = next(number for number, text in enumerate(bad.splitlines(), 1) if "no such feature" in text)
    error, shown = failed(cluster, flags(zoo(bad), digits))
    assert "no such feature" in error["message"] + error["traceback"]
    assert f"digits.py:{line}" in error["message"] or f'digits.py", line {line}' in error["traceback"], error
    assert "no such feature" in shown


@pytest.mark.parametrize("example", ["digits", pytest.param("digits_torch", marks=[NEEDS_TORCH, pytest.mark.slow])])
def test_a_truncated_file_fails_the_job_with_file_and_offset(
    cluster: Cluster, digits: Path, tmp_path: Path, example: str
) -> None:
    data = tmp_path / "train"
    data.mkdir()
    whole = sorted((digits / "train").glob("*.recordio"))[0].read_bytes()
    (data / "part-00000.recordio").write_bytes(whole[: len(whole) - 100])
    arguments = list(flags(EXAMPLES / example / "zoo", digits))
    arguments[arguments.index("--training_data") + 1] = str(data)
    error, _ = failed(cluster, tuple(arguments))
    assert "part-00000.recordio" in error["message"]
    assert "offset" in error["message"] or "byte" in error["message"]


def test_missing_data_is_refused(cluster: Cluster, digits: Path) -> None:
    arguments = list(flags(EXAMPLES / "digits" / "zoo", digits))
    arguments[arguments.index("--training_data") + 1] = str(digits / "trian")
    done = cluster.cli(*arguments, expect=None)
    assert done.returncode != 0
    assert "trian" in (done.stdout + done.stderr)

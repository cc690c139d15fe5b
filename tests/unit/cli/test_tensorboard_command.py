"""``elasticdl tensorboard``: writes event files of several jobs, and starts TensorBoard where there is one."""

from __future__ import annotations

from pathlib import Path

import pytest

from tests.fakes.api import FakeApi, make_job
from tests.unit.cli.conftest import Cli

pytestmark = pytest.mark.unit
SERIES = {
    "by": "version",
    "from": 1,
    "to": 2,
    "resolution_s": 5,
    "series": [{"name": "loss", "unit": "", "points": [[1, 0.5, 0.5, 0.5], [2, "NaN", "NaN", "NaN"]]}],
}
PROGRAM = """
import pathlib, sys
logdir = pathlib.Path(next(one for one in sys.argv if one.startswith("--logdir=")).partition("=")[2])
print("serving", sorted(one.name for one in logdir.iterdir()), sys.argv[2])
"""


@pytest.fixture
def jobs(api: FakeApi) -> FakeApi:
    for job_id, state in (("a-1", "SUCCEEDED"), ("b-2", "RUNNING")):
        api.jobs[job_id] = make_job(job_id, state=state)
    api.prepared["series"] = SERIES
    return api


def test_event_files_of_several_jobs_are_written_side_by_side(jobs: FakeApi, cli: Cli, tmp_path: Path) -> None:
    shown = cli("tensorboard", "a-1", "b-2", "--logdir", str(tmp_path / "runs"), "--once")
    assert (shown.code, shown.err) == (0, "")
    sizes = {}
    for job_id in ("a-1", "b-2"):
        (file,) = (tmp_path / "runs" / job_id).iterdir()
        assert file.name.startswith("events.out.tfevents.")
        sizes[job_id] = file.stat().st_size
    assert sizes["a-1"] > sizes["b-2"] > 0  # the last point of a job that runs may change
    assert {seen.query["by"] for seen in jobs.requests("GET", "/jobs/a-1/series")} == {"time", "version"}


def test_without_tensorboard_it_says_what_to_install_and_where_the_files_are(
    jobs: FakeApi, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr("elasticdl.cli.tensorboard.PACKAGE", "no_such_package")
    shown = cli("tensorboard", "a-1", "--logdir", str(tmp_path / "runs"))
    assert shown.code == 0
    assert "pip install no_such_package" in shown.out
    assert str(tmp_path / "runs") in shown.out


def test_tensorboard_is_started_and_its_end_is_the_commands(
    jobs: FakeApi, cli: Cli, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    package = tmp_path / "packages" / "tensorboard"
    package.mkdir(parents=True)
    (package / "__init__.py").write_text("")
    (package / "main.py").write_text(PROGRAM)
    monkeypatch.syspath_prepend(str(package.parent))
    monkeypatch.setenv("PYTHONPATH", str(package.parent))
    shown = cli("tensorboard", "a-1", "b-2", "--logdir", str(tmp_path / "runs"), "--port", "7007")
    assert (shown.code, "serving ['a-1', 'b-2'] --port=7007" in shown.out) == (0, True), shown
    (package / "main.py").write_text("import sys; sys.exit(3)")
    assert cli("tensorboard", "a-1", "--logdir", str(tmp_path / "runs")).code == 3


def test_a_job_that_is_not_there_and_a_folder_that_cannot_be_are_refused(
    jobs: FakeApi, cli: Cli, tmp_path: Path
) -> None:
    assert "no job" in cli("tensorboard", "nothing", "--once").err
    (tmp_path / "file").write_text("")
    refused = cli("tensorboard", "a-1", "--once", "--logdir", str(tmp_path / "file"))
    assert (refused.code, "--logdir" in refused.err) == (2, True), refused

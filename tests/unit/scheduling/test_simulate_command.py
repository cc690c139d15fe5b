"""``elasticdl simulate``."""

from __future__ import annotations

import json
from pathlib import Path

import pytest
import typer
from typer.testing import CliRunner

from elasticdl.cli.simulate import parse_nodes, register
from elasticdl_core.errors import DataError, InvalidInputError

pytestmark = pytest.mark.unit


@pytest.fixture
def app() -> typer.Typer:
    app = typer.Typer(pretty_exceptions_enable=False)
    register(app)
    return app


@pytest.fixture
def workload(tmp_path: Path) -> Path:
    """Three jobs of an application that takes 10 s of work a step, shared by up to four workers of a machine."""
    traces = tmp_path / "traces" / "toy"
    traces.mkdir(parents=True)
    rows = [f"{n},{b},{b},0.0" for n in (1, 2, 3, 4) for b in (1, 2, 4, 8)]
    (traces / "placements.csv").write_text("placement,local_bsz,step_time,sync_time\n" + "\n".join(rows))
    (traces / "scalability.csv").write_text(
        "num_nodes,num_replicas,local_bsz,step_time,sync_time\n6,6,4,4.0,1.0\n8,8,4,4.0,1.0\n8,16,4,4.0,1.0\n"
    )
    (traces / "validation-8.csv").write_text("progress,iteration,metric,grad_sqr,grad_var\n50,50,0.5,1.0,0.0\n")
    path = tmp_path / "jobs.csv"
    jobs = "".join(f"job-{i},{60 * i},toy,2,8\n" for i in range(3))
    path.write_text(f"name,time,application,num_replicas,batch_size\n{jobs}")
    return path


def test_json_has_all_numbers(app: typer.Typer, workload: Path) -> None:
    result = CliRunner().invoke(app, ["--workload", str(workload), "--nodes", "2x4", "--json"])
    assert result.exit_code == 0, result.output
    (report,) = json.loads(result.stdout)["reports"]
    assert report["policy"] == "goodput"
    assert report["jobs"] == 3
    assert 0 < report["utilisation"] <= 1
    assert report["average_s"] > report["start_delay_s"] > 0


def test_compare_shows_every_policy_and_the_plot_is_drawn(app: typer.Typer, workload: Path, tmp_path: Path) -> None:
    plot = tmp_path / "plot.svg"
    arguments = ["--workload", str(workload), "--nodes", "2x4", "--compare", "--plot", str(plot)]
    result = CliRunner().invoke(app, arguments)
    assert result.exit_code == 0, result.output
    for name in ("goodput", "tiresias", "optimus", "gang-backfill", "equal-share"):
        assert name in result.output
    drawing = plot.read_text()
    assert drawing.startswith("<svg")
    assert "job-2: " in drawing


def test_what_makes_no_sense_is_refused(app: typer.Typer, workload: Path) -> None:
    assert parse_nodes("16x4") == (16, 4)
    with pytest.raises(InvalidInputError, match="--nodes 16x4"):
        parse_nodes("16")
    for arguments, error in (
        (["--policy", "best"], InvalidInputError),
        (["--knowledge", "some"], InvalidInputError),
        (["--error", "1.5"], InvalidInputError),
        (["--traces", "/nowhere"], DataError),
    ):
        result = CliRunner().invoke(app, ["--workload", str(workload), *arguments])
        assert isinstance(result.exception, error), arguments


@pytest.mark.parametrize(
    "row",
    [
        "job-1,x,toy,2,8",
        "job-1,nan,toy,2,8",
        "job-1,-5,toy,2,8",
        "job-1,1e999,toy,2,8",
        "job-1,0,toy,2.5,8",
        "job-1,0,toy,99999999999999,8",
        "job-1,0,toy,2",
        "job-1,0,toy,2,",
    ],
)
def test_a_row_that_no_job_can_have_is_refused(app: typer.Typer, workload: Path, row: str) -> None:
    workload.write_text(f"name,time,application,num_replicas,batch_size\n{row}\n")
    result = CliRunner().invoke(app, ["--workload", str(workload), "--nodes", "2x4"])
    assert isinstance(result.exception, DataError), result.exception


def test_a_workload_without_jobs_is_refused(app: typer.Typer, workload: Path) -> None:
    """Its mean was printed as "nan s"."""
    workload.write_text("name,time,application,num_replicas,batch_size\n")
    result = CliRunner().invoke(app, ["--workload", str(workload), "--nodes", "2x4"])
    assert isinstance(result.exception, DataError) and "no job in the workload" in result.exception.message


def test_what_is_no_text_or_has_no_end_is_refused(app: typer.Typer, workload: Path) -> None:
    workload.write_bytes(b"\xff\xfe" * 50)
    endless = str(Path("/dev/zero"))
    for path, words in ((str(workload), "no CSV text"), (endless, "larger than 64 MiB")):
        result = CliRunner().invoke(app, ["--workload", path, "--traces", str(workload.parent / "traces")])
        assert isinstance(result.exception, DataError) and words in result.exception.message, result.exception

"""``elasticdl tensorboard JOB``: the curves of jobs in TensorBoard, side by side."""

from __future__ import annotations

import subprocess
import sys
import time
from contextlib import ExitStack
from importlib.util import find_spec
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from elasticdl.cli.connection import connect
from elasticdl.cli.job_names import JobsGiven, find_ids
from elasticdl.cli.output import EXIT_OK, write_line
from elasticdl_core.errors import ElasticDLError, InvalidInputError

if TYPE_CHECKING:
    from elasticdl.client import Client
    from elasticdl.event_files import EventWriter

POINTS = 2000
"""Points of a series: as many as the API gives at once."""
PACKAGE = "tensorboard"
_END_S = 5.0


def register(app: typer.Typer) -> None:
    """Adds the command to the command line."""
    app.command(
        "tensorboard",
        rich_help_panel="Jobs",
        epilog="Example: elasticdl tensorboard digits-x7k2p9 other-b3m8q1 --port 6006",
    )(tensorboard)


def tensorboard(
    jobs: JobsGiven,
    logdir: Annotated[
        Path, typer.Option("--logdir", metavar="DIR", help="The directory of event files: a folder for each job.")
    ] = Path("tensorboard"),
    port: Annotated[int, typer.Option("--port", min=1, max=65535, help="The port of TensorBoard.")] = 6006,
    every: Annotated[
        float, typer.Option("--every", min=1.0, max=3600.0, help="Seconds after which new points are fetched.")
    ] = 10.0,
    once: Annotated[bool, typer.Option("--once", help="Write the event files and end, without TensorBoard.")] = False,
) -> None:
    """Show losses, metrics and speed of jobs in TensorBoard, by the version of the model; several side by side.

    Event files are kept up to date while TensorBoard runs. It is installed with `pip install tensorboard`.
    """
    with connect() as client, ExitStack() as stack:
        runs = {job_id: stack.enter_context(_open(logdir, job_id)) for job_id in find_ids(client, jobs)}
        running = _fetch(client, runs)
        write_line(f"{logdir}: event files of {', '.join(runs)}")
        if once:
            return
        if find_spec(PACKAGE) is None:
            write_line(f"TensorBoard is not installed: pip install {PACKAGE} && tensorboard --logdir {logdir}")
            return
        code = _serve(client, running, [f"--logdir={logdir}", f"--port={port}"], every)
    if code != EXIT_OK:
        raise typer.Exit(code)


def _open(logdir: Path, job_id: str) -> EventWriter:
    from elasticdl.event_files import EventWriter

    if Path(job_id).name != job_id:
        raise InvalidInputError(f"{job_id!r} is no id of a job", fix="check the address of the API")
    return EventWriter(logdir / job_id)


def _fetch(client: Client, runs: dict[str, EventWriter]) -> dict[str, EventWriter]:
    """Adds what is new; returns the runs of jobs of which more will come."""
    going: dict[str, EventWriter] = {}
    for job_id, writer in runs.items():
        # Asked before the series: what comes in between is fetched the next time.
        finished = client.get(job_id).state.terminal
        by_version = client.series(job_id, by="version", points=POINTS)["series"]
        writer.add(by_version, client.series(job_id, points=POINTS)["series"], finished=finished)
        if not finished:
            going[job_id] = writer
    return going


def _serve(client: Client, running: dict[str, EventWriter], arguments: list[str], every: float) -> int:
    """Runs TensorBoard until it ends or is interrupted, and keeps the files of running jobs up to date."""
    command = [sys.executable, "-m", "tensorboard.main", *arguments]
    process = subprocess.Popen(command)
    try:
        while True:
            try:
                return process.wait(timeout=every)
            except subprocess.TimeoutExpired:
                pass
            try:
                running = _fetch(client, running)
            except ElasticDLError as error:
                write_line(f"{time.strftime('%H:%M:%S')} no new points: {error.message}")
    except KeyboardInterrupt:
        return EXIT_OK
    finally:
        process.terminate()
        try:
            process.wait(timeout=_END_S)
        except subprocess.TimeoutExpired:
            process.kill()
            process.wait(timeout=_END_S)

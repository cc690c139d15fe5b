"""``elasticdl jobs``: list, inspect and control jobs, and download their artifacts."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elasticdl.cli.output import print_json, print_json_line, write_line, write_log
from elasticdl.cli.plain_text import neutralise
from elasticdl_core.errors import InvalidInputError
from elasticdl_core.job import JobState
from elasticdl_core.ports.launcher import Role

if TYPE_CHECKING:
    from elasticdl.client import Client, Event, Job

app = typer.Typer(
    no_args_is_help=True,
    help="List, inspect and control jobs, and download their artifacts.",
    epilog="""Examples:

    elasticdl jobs list --state RUNNING

    elasticdl jobs get digits-x7k2p9 --watch

    elasticdl jobs logs digits-x7k2p9 --role worker --follow

    elasticdl jobs scale digits-x7k2p9 --max-workers 4

    elasticdl jobs artifacts digits-x7k2p9 --download ./model""",
)

REFRESH_S = 2.0
JobId = Annotated[str, typer.Argument(metavar="ID", help="The job's id.", show_default=False)]
JobIds = Annotated[list[str], typer.Argument(metavar="ID...", help="Ids of jobs.", show_default=False)]
Json = Annotated[bool, typer.Option("--json", help="Print what the API answers, as JSON.")]


@contextmanager
def _client() -> Iterator[Client]:
    from elasticdl.client import Client

    with Client() as client:
        yield client


@app.command("list", epilog="Example: elasticdl jobs list --state RUNNING --state QUEUED --label team=ads --watch")
def list_jobs(
    state: Annotated[list[JobState] | None, typer.Option("--state", help="Only in this state; repeatable.")] = None,
    name: Annotated[str, typer.Option("--name", help="Only with this name.")] = "",
    label: Annotated[list[str] | None, typer.Option("--label", help="Only with this KEY=VALUE; repeatable.")] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most this many, newest first.")] = 50,
    watch: Annotated[bool, typer.Option("--watch", help="Show the list anew until Ctrl-C.")] = False,
    as_json: Json = False,
) -> None:
    """List jobs, newest first."""
    if watch and as_json:
        raise InvalidInputError("--watch and --json do not go together", fix="leave one of them out")
    filters: dict[str, Any] = {"state": [str(one) for one in state or ()], "label": label or [], "name": name}
    chosen = {key: value for key, value in filters.items() if value}
    with _client() as client:
        if watch:
            _watch_list(lambda: _first(client, chosen, limit))
            return
        jobs = _first(client, chosen, limit)
    if as_json:
        print_json([job.raw for job in jobs])
        return
    _print_jobs(jobs)


def _first(client: Client, filters: dict[str, Any], limit: int) -> list[Job]:
    jobs: list[Job] = []
    for job in client.iterate(page_size=min(limit, 100), **filters):
        jobs.append(job)
        if len(jobs) == limit:
            break
    return jobs


_COLUMNS = ("ID", "TYPE", "STATE", "PROGRESS", "WORKERS", "PRIORITY", "AGE", "REASON")


def _rows(jobs: list[Job]) -> list[tuple[str, ...]]:
    from elasticdl.cli.output import age

    return [
        (
            job.id,
            str(job.type),
            str(job.state),
            f"{job.status.progress.fraction:.0%}" if job.status.progress.records_total else "-",
            f"{len(job.status.workers)}/{job.target_workers}" if not job.state.terminal else "-",
            str(job.priority),
            age(job.created_at),
            job.why,
        )
        for job in jobs
    ]


def _print_jobs(jobs: list[Job]) -> None:
    from elasticdl.cli.output import print_table

    print_table(_COLUMNS, _rows(jobs), empty="no jobs")


def _watch_list(fetch: Callable[[], list[Job]]) -> None:
    """Refreshes the list until Ctrl-C."""
    from elasticdl.cli.output import stdout, table

    if not sys.stdout.isatty():
        raise InvalidInputError("--watch needs a terminal", fix="leave it out, or use --json in a loop")
    from rich.live import Live

    with Live(console=stdout(), auto_refresh=False, screen=False) as live:
        try:
            while True:
                live.update(table(_COLUMNS, _rows(fetch())), refresh=True)
                time.sleep(REFRESH_S)
        except KeyboardInterrupt:
            return


@app.command("get", epilog="Example: elasticdl jobs get digits-x7k2p9 --watch")
def get(
    job_id: JobId,
    watch: Annotated[
        bool, typer.Option("--watch", help="Follow it until it ends; the exit code tells how. Ctrl-C detaches.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Show one job."""
    with _client() as client:
        if watch:
            from elasticdl.cli.following import follow_to_end

            raise typer.Exit(follow_to_end(client, job_id, as_json=as_json))
        job = client.get(job_id)
    if as_json:
        print_json(job.raw)
        return
    _show(job)


def _show(job: Job) -> None:
    from datetime import UTC, datetime

    from rich.text import Text

    from elasticdl.cli.following import conclude
    from elasticdl.cli.live import render
    from elasticdl.cli.output import moment, stdout

    console = stdout()
    console.print(render(job, (), datetime.now(UTC)))
    times = f"created {moment(job.created_at)}   started {moment(job.started_at)}   ended {moment(job.finished_at)}"
    bounds = f"workers {job.min_workers} to {job.max_workers}, now {job.target_workers}"
    console.print(Text(times, style="dim"))
    console.print(
        Text(bounds + (f" ({job.target_reason})" if job.target_reason else "") + f"   priority {job.priority}")
    )
    if job.state.terminal:
        conclude(job)


@app.command("events", epilog="Example: elasticdl jobs events digits-x7k2p9 --follow")
def events(
    job_id: JobId,
    follow: Annotated[bool, typer.Option("--follow", "--watch", "-f", help="Go on until the job ends.")] = False,
    as_json: Annotated[bool, typer.Option("--json", help="Print one JSON object a line.")] = False,
) -> None:
    """Show what has happened to a job."""
    with _client() as client:
        if not follow:
            for event in client.events(job_id):
                _print_event(event, as_json)
            return
        for update in client.updates(job_id):
            if update.event is not None:
                _print_event(update.event, as_json)


def _print_event(event: Event, as_json: bool) -> None:
    from elasticdl.cli.output import moment

    if as_json:
        print_json_line(event.raw)
    else:
        write_line(f"{moment(event.at)}  {event.kind:<10}  {event.message}")


@app.command("logs", epilog="Example: elasticdl jobs logs digits-x7k2p9 --role ps --index 1 --tail 50 --follow")
def logs(
    job_id: JobId,
    role: Annotated[Role, typer.Option("--role", help="Kind of process.")] = Role.WORKER,
    index: Annotated[int, typer.Option("--index", min=0, help="Number of the process among its kind.")] = 0,
    tail: Annotated[int | None, typer.Option("--tail", "-n", min=0, help="Only this many last lines.")] = None,
    follow: Annotated[bool, typer.Option("--follow", "--watch", "-f", help="Go on with what is printed.")] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print control characters as they are; only for logs that you trust.")
    ] = False,
) -> None:
    """Print what a process of a job printed, in all its incarnations; control characters are shown, not obeyed."""
    with _client() as client:
        if follow:
            for line in client.follow_logs(job_id, role=role, index=index, tail=tail):
                write_log(line + "\n", raw=raw)
            return
        write_log(client.logs(job_id, role=role, index=index, tail=tail), raw=raw)


@app.command("metrics", epilog="Example: elasticdl jobs metrics digits-x7k2p9 --json")
def metrics(job_id: JobId, as_json: Json = False) -> None:
    """Show the losses and evaluations of a job."""
    from elasticdl.cli.output import print_table

    with _client() as client:
        found = client.metrics(job_id)
    if as_json:
        print_json(found)
        return
    losses = [(str(one["model_version"]), _short(one["loss"])) for one in found["losses"]]
    print_table(("VERSION", "LOSS"), losses, empty="no losses yet")
    evaluations = [
        (str(one["model_version"]), "  ".join(f"{name}={_short(value)}" for name, value in one["metrics"].items()))
        for one in found["evaluations"]
    ]
    print_table(("VERSION", "EVALUATION"), evaluations, empty="no evaluations yet")


def _short(value: Any) -> str:
    return f"{value:.6g}" if isinstance(value, int | float) else str(value)


@app.command("cancel", epilog="Example: elasticdl jobs cancel digits-x7k2p9 --wait")
def cancel(
    job_ids: JobIds,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the jobs have ended.")] = False,
    as_json: Json = False,
) -> None:
    """Stop jobs for good."""
    with _client() as client:
        jobs = [client.cancel(job_id) for job_id in job_ids]
        if wait:
            jobs = [client.wait(job.id) for job in jobs]
    _print_states(jobs, as_json)


@app.command("suspend", epilog="Example: elasticdl jobs suspend digits-x7k2p9")
def suspend(job_ids: JobIds, as_json: Json = False) -> None:
    """Stop jobs so that they can go on later; their workers are free for others."""
    with _client() as client:
        jobs = [client.suspend(job_id) for job_id in job_ids]
    _print_states(jobs, as_json)


@app.command("resume", epilog="Example: elasticdl jobs resume digits-x7k2p9")
def resume(job_ids: JobIds, as_json: Json = False) -> None:
    """Let suspended jobs go on where they were."""
    with _client() as client:
        jobs = [client.resume(job_id) for job_id in job_ids]
    _print_states(jobs, as_json)


def _print_states(jobs: list[Job], as_json: bool) -> None:
    if as_json:
        print_json([job.raw for job in jobs])
        return
    for job in jobs:
        asked = str(job.raw.get("desired") or "run")
        note = f" ({asked} was asked for)" if asked != "run" and not job.state.terminal else ""
        write_line(f"{job.id}  {job.state}{note}")


@app.command("scale", epilog="Example: elasticdl jobs scale digits-x7k2p9 --min-workers 1 --max-workers 4")
def scale(
    job_id: JobId,
    min_workers: Annotated[int | None, typer.Option("--min-workers", min=1, help="Fewest that it runs with.")] = None,
    max_workers: Annotated[int | None, typer.Option("--max-workers", min=1, help="It never has more.")] = None,
    num_workers: Annotated[
        int | None, typer.Option("--num-workers", min=1, help="Another name of --max-workers.")
    ] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", min=-1000, max=1000, help="Higher goes first.")
    ] = None,
    as_json: Json = False,
) -> None:
    """Change how many workers a job may have, and how it ranks, while it runs."""
    with _client() as client:
        aliases = {} if num_workers is None else {"num_workers": num_workers}
        job = client.scale(job_id, min_workers, max_workers, priority, **aliases)
    if as_json:
        print_json(job.raw)
        return
    write_line(f"{job.id}  workers {job.min_workers} to {job.max_workers}, priority {job.priority}")


@app.command("artifacts", epilog="Example: elasticdl jobs artifacts digits-x7k2p9 model.keras --download ./model")
def artifacts(
    job_id: JobId,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME...]", help="Only these.", show_default=False)
    ] = None,
    download: Annotated[str, typer.Option("--download", metavar="DIR", help="Fetch them into this directory.")] = "",
    as_json: Json = False,
) -> None:
    """List what a job made, or fetch it."""
    from elasticdl.cli.following import ARTIFACT_COLUMNS, artifact_rows
    from elasticdl.cli.output import print_table

    with _client() as client:
        found = [item for item in client.artifacts(job_id) if not names or item.name in names]
        places: Sequence[Path] = ()
        if download:
            places = client.download(job_id, Path(download).absolute(), names or None)
    if download and as_json:
        print_json_line([str(place) for place in places])
    elif download and places:
        write_line("\n".join(str(place) for place in places))
    elif as_json:
        print_json([item.raw for item in found])
    else:
        print_table(ARTIFACT_COLUMNS, artifact_rows(found), empty="no artifacts")


@app.command("delete", epilog="Example: elasticdl jobs delete digits-x7k2p9 --yes")
def delete(
    job_ids: JobIds,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete jobs that have ended, with their logs, checkpoints and artifacts."""
    if not yes:
        if not sys.stdin.isatty():
            raise InvalidInputError("deleting cannot be undone", fix="give --yes")
        listed = neutralise(", ".join(job_ids))
        typer.confirm(f"delete {listed} with all logs, checkpoints and artifacts?", abort=True)
    with _client() as client:
        for job_id in job_ids:
            client.delete(job_id)
            write_line(f"{job_id}  deleted")

"""``elasticdl jobs``: list, inspect and control jobs, and download their artifacts."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elasticdl.cli import job_labels, observing
from elasticdl.cli.connection import connect
from elasticdl.cli.formats import FormatOption, JsonOption, OutputFormat, choose_format, print_data, print_next
from elasticdl.cli.job_logs import logs
from elasticdl.cli.job_names import JobGiven, JobsGiven, find_ids, find_job
from elasticdl.cli.job_picking import LOOKED_AT, Condition, is_value, pick, shown
from elasticdl.cli.output import EXIT_FAILED, EXIT_OK, EXIT_TIMEOUT, write_line
from elasticdl.cli.plain_text import neutralise
from elasticdl_core.errors import InvalidInputError
from elasticdl_core.job import JobState
from elasticdl_core.job.fields import ALL_REDUCE
from elasticdl_core.job.updates import words_of_spare

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


@app.command("list", epilog="Example: elasticdl jobs list --label team=ads --where 'param:lr<0.1' --sort -metric:auc")
def list_jobs(
    state: Annotated[list[JobState] | None, typer.Option("--state", help="Only in this state; repeatable.")] = None,
    name: Annotated[str, typer.Option("--name", help="Only with this name.")] = "",
    label: Annotated[list[str] | None, typer.Option("--label", help="Only with this KEY=VALUE; repeatable.")] = None,
    namespace: Annotated[str, typer.Option("--namespace", help="Only of this namespace.")] = "",
    owner: Annotated[str, typer.Option("--owner", help="Only of this owner.")] = "",
    search: Annotated[str, typer.Option("--search", help="Only with this in id, name or owner.")] = "",
    sort: Annotated[
        str,
        typer.Option(
            "--sort",
            help="By created_at, updated_at, name, priority, state, owner, progress, workers or end, or by "
            "metric:NAME, param:NAME, label:KEY or spec:FIELD; - before it for the largest first.",
        ),
    ] = "-created_at",
    where: Annotated[
        list[str] | None,
        typer.Option("--where", help="Only with this value, e.g. 'metric:auc>0.8' or param:lr=0.01; repeatable."),
    ] = None,
    limit: Annotated[int, typer.Option("--limit", min=1, help="At most this many.")] = 50,
    watch: Annotated[bool, typer.Option("--watch", help="Show the list anew until Ctrl-C.")] = False,
    output: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """List jobs, newest first unless told otherwise."""
    chosen = choose_format(output, as_json)
    if watch and chosen.of_data:
        raise InvalidInputError(f"--watch and {chosen} do not go together", fix="leave one of them out")
    several: dict[str, Any] = {"state": [str(one) for one in state or ()], "label": label or []}
    own = sort if is_value(sort) else ""
    conditions = [Condition.parse(one) for one in where or ()]
    keys = tuple(dict.fromkeys([*filter(None, [own.removeprefix("-")]), *(one.key for one in conditions)]))
    filters = several | {
        "name": name,
        "namespace": namespace,
        "owner": owner,
        "q": search,
        "sort": "" if own else sort,
    }
    given = {key: value for key, value in filters.items() if value}

    def fetch(client: Client) -> list[Job]:
        if not keys:
            return _first(client, given, limit)
        looked_at = _first(client, given, LOOKED_AT + 1)
        if len(looked_at) > LOOKED_AT:
            write_line(
                f"of {LOOKED_AT:,} jobs, the first in the API's order; narrow by --label or --name", to=sys.stderr
            )
        return pick(looked_at[:LOOKED_AT], conditions, own, limit)

    with connect() as client:
        if watch:
            _watch_list(lambda: fetch(client), wide=chosen is OutputFormat.WIDE, keys=keys)
            return
        jobs = fetch(client)
    if chosen.of_data:
        print_data([job.raw for job in jobs], chosen)
        return
    _print_jobs(jobs, wide=chosen is OutputFormat.WIDE, keys=keys)


def _first(client: Client, filters: dict[str, Any], limit: int) -> list[Job]:
    jobs: list[Job] = []
    for job in client.iterate(page_size=min(limit, 100), **filters):
        jobs.append(job)
        if len(jobs) == limit:
            break
    return jobs


_COLUMNS = ("ID", "TYPE", "STATE", "PROGRESS", "WORKERS", "PRIORITY", "AGE", "REASON")
_WIDE = ("NAMESPACE", "OWNER", "MODEL", "RANGE", "VERSION", "LOSS", "RECORDS/S", "CREATED")


def _row(job: Job) -> tuple[str, ...]:
    from elasticdl.cli.output import age

    return (
        job.id,
        str(job.type),
        str(job.state),
        f"{job.status.progress.fraction:.0%}" if job.status.progress.records_total else "-",
        f"{len(job.status.workers)}/{job.target_workers}" if not job.state.terminal else "-",
        str(job.priority),
        age(job.created_at),
        job.why,
    )


def _more(job: Job) -> tuple[str, ...]:
    """The columns that a wide list has before the reason."""
    from elasticdl.cli.output import count, moment

    status = job.status
    return (
        str(job.raw.get("namespace") or "-"),
        str(job.raw.get("owner") or "-"),
        str(job.spec.get("model_def") or "-"),
        f"{job.min_workers}-{job.max_workers}",
        str(status.model_version or "-"),
        "-" if status.loss is None else f"{status.loss:.4g}",
        count(status.samples_per_second) if status.samples_per_second else "-",
        moment(job.created_at),
    )


def _listing(jobs: list[Job], *, wide: bool, keys: Sequence[str]) -> tuple[Sequence[str], list[tuple[str, ...]]]:
    """Titles and rows; the reason, which may be long, comes last."""
    rows = [
        (*_row(job)[:-1], *(_more(job) if wide else ()), *(shown(job, key) for key in keys), job.why) for job in jobs
    ]
    titles = [key.partition(":")[2].upper() for key in keys]
    return (*_COLUMNS[:-1], *(_WIDE if wide else ()), *titles, _COLUMNS[-1]), rows


def _print_jobs(jobs: list[Job], *, wide: bool, keys: Sequence[str] = ()) -> None:
    from elasticdl.cli.output import WIDE_COLUMNS, print_table

    print_table(*_listing(jobs, wide=wide, keys=keys), empty="no jobs", width=WIDE_COLUMNS if wide else 160)


def _watch_list(fetch: Callable[[], list[Job]], *, wide: bool, keys: Sequence[str]) -> None:
    """Refreshes the list until Ctrl-C."""
    from elasticdl.cli.output import stdout, table

    if not sys.stdout.isatty():
        raise InvalidInputError("--watch needs a terminal", fix="leave it out, or use --json in a loop")
    from rich.live import Live

    with Live(console=stdout(), auto_refresh=False, screen=False) as live:
        try:
            while True:
                live.update(table(*_listing(fetch(), wide=wide, keys=keys)), refresh=True)
                time.sleep(REFRESH_S)
        except KeyboardInterrupt:
            return


@app.command("get", epilog="Example: elasticdl jobs get digits-x7k2p9 --watch")
def get(
    job: JobGiven,
    watch: Annotated[
        bool, typer.Option("--watch", help="Follow it until it ends; the exit code tells how. Ctrl-C detaches.")
    ] = False,
    output: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show one job."""
    chosen = choose_format(output, as_json)
    with connect() as client:
        found = find_job(client, job)
        if watch:
            from elasticdl.cli.following import follow_to_end

            raise typer.Exit(follow_to_end(client, found.id, chosen))
    if chosen.of_data:
        print_data(found.raw, chosen)
        return
    _show(found)


def _show(job: Job) -> None:
    from datetime import UTC, datetime

    from rich.text import Text

    from elasticdl.cli.following import conclude
    from elasticdl.cli.live import render
    from elasticdl.cli.output import moment, stdout

    console = stdout()
    console.print(render(job, (), datetime.now(UTC)))
    times = f"created {moment(job.created_at)}   started {moment(job.started_at)}   ended {moment(job.finished_at)}"
    bounds = f"workers {job.min_workers} to {job.max_workers}"
    if not job.state.terminal:
        bounds += f", now {job.target_workers}" + (f" ({job.target_reason})" if job.target_reason else "")
    console.print(Text(times, style="dim"))
    console.print(Text(f"{bounds}   priority {job.priority}"))
    strategy = job.status.strategy
    if strategy:
        chosen = f"{strategy.get('chosen', '')}{_bits(strategy)}"
        console.print(Text(f"{chosen}: {strategy.get('reason', '')}"))
        if strategy.get("records_per_update"):
            console.print(Text(_updates(strategy)))
    if job.best is not None:
        best = f"{job.best['metric']} {job.best['value']:g}, evaluation {job.best['evaluation']}"
        console.print(Text(f"best model: version {job.best['version']} ({best})"))
    if job.state.terminal:
        conclude(job)


def _updates(strategy: Mapping[str, Any]) -> str:
    """Describes the records of an update and the updates of an epoch."""
    parts, epoch = strategy.get("microbatches") or 1, strategy.get("updates_per_epoch")
    cut = f" in {parts} microbatches" if parts > 1 else ""
    return f"{strategy['records_per_update']:,} records an update{cut}" + (
        f", {epoch:,} updates an epoch" if epoch else ""
    )


def _bits(strategy: Mapping[str, Any]) -> str:
    """Whether a group's model follows from the job alone, or from who did the work, too."""
    of_group = strategy.get("chosen") == ALL_REDUCE
    return ", not deterministic" if of_group and strategy.get("deterministic") is False else ""


@app.command("events", epilog="Example: elasticdl jobs events digits-x7k2p9 --follow")
def events(
    job: JobGiven,
    follow: Annotated[bool, typer.Option("--follow", "--watch", "-f", help="Go on until the job ends.")] = False,
    output: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show what has happened to a job; as JSON an event a line, as YAML a document each."""
    chosen = choose_format(output, as_json)
    with connect() as client:
        job_id = find_job(client, job).id
        if not follow:
            for event in client.events(job_id):
                _print_event(event, chosen)
            return
        for update in client.updates(job_id):
            if update.event is not None:
                _print_event(update.event, chosen)


def _print_event(event: Event, chosen: OutputFormat) -> None:
    from elasticdl.cli.output import json_text, moment

    if chosen.of_data:
        print_next(event.raw, chosen)
        return
    line = f"{moment(event.at)}  {event.kind:<10}  {event.message}"
    if chosen is OutputFormat.WIDE:
        line = f"{event.id:>6}  {line}" + (f"  {json_text(event.detail)}" if event.detail else "")
    write_line(line)


app.command("logs", epilog="Example: elasticdl jobs logs digits-x7k2p9 --role ps --index 1 --tail 50 --follow")(logs)
observing.register(app)


@app.command("metrics", epilog="Example: elasticdl jobs metrics digits-x7k2p9 -o csv")
def metrics(job: JobGiven, output: FormatOption = None, as_json: JsonOption = False) -> None:
    """Show the losses and evaluations of a job."""
    from elasticdl.cli.output import print_table

    chosen = choose_format(output, as_json, csv=True)
    with connect() as client:
        found = client.metrics(find_job(client, job).id)
    if chosen is OutputFormat.CSV:
        from elasticdl.cli.metrics_csv import write_metrics

        write_metrics(found, sys.stdout)
        return
    if chosen.of_data:
        print_data(found, chosen)
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
    jobs: JobsGiven,
    wait: Annotated[bool, typer.Option("--wait", help="Return when the jobs have ended.")] = False,
    output: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Stop jobs for good."""
    with connect() as client:
        asked = [client.cancel(job_id) for job_id in find_ids(client, jobs, only=True)]
        if wait:
            asked = [client.wait(job.id) for job in asked]
    _print_states(asked, choose_format(output, as_json))


@app.command("wait", epilog="Example: elasticdl jobs wait digits-x7k2p9 --for RUNNING --timeout 600")
def wait(
    jobs: JobsGiven,
    states: Annotated[
        list[JobState] | None,
        typer.Option("--for", help="A state to wait for; repeatable.", show_default="any in which a job is over"),
    ] = None,
    timeout: Annotated[
        float | None, typer.Option("--timeout", min=0, help="Seconds to wait at most.", show_default="no limit")
    ] = None,
    patience: Annotated[
        float | None,
        typer.Option("--patience", min=0, help="Seconds that the API may be away meanwhile.", show_default="600"),
    ] = None,
    output: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Wait until jobs are over, or in a state; the exit code tells how the first that did not succeed ended.

    With --for it is 0 when all came into one of the states, and 1 when one is over without. 5: the time is over.
    """
    from elasticdl.cli.following import code_of
    from elasticdl.client.requests import PATIENCE_S

    chosen = choose_format(output, as_json)
    wanted = frozenset(states or ())
    with connect() as client:
        deadline = None if timeout is None else time.monotonic() + timeout
        found = []
        for job_id in find_ids(client, jobs):
            left = None if deadline is None else max(0.0, deadline - time.monotonic())
            try:
                found.append(
                    client.wait(
                        job_id, left, states=wanted or None, patience_s=PATIENCE_S if patience is None else patience
                    )
                )
            except TimeoutError as error:
                write_line(f"error: {error}", to=sys.stderr)
                raise typer.Exit(EXIT_TIMEOUT) from None
    _print_states(found, chosen)
    codes = [(EXIT_OK if job.state in wanted else EXIT_FAILED) if wanted else code_of(job) for job in found]
    raise typer.Exit(next((code for code in codes if code), EXIT_OK))


@app.command("suspend", epilog="Example: elasticdl jobs suspend digits-x7k2p9")
def suspend(jobs: JobsGiven, output: FormatOption = None, as_json: JsonOption = False) -> None:
    """Stop jobs so that they can go on later; their workers are free for others."""
    with connect() as client:
        asked = [client.suspend(job_id) for job_id in find_ids(client, jobs)]
    _print_states(asked, choose_format(output, as_json))


@app.command("resume", epilog="Example: elasticdl jobs resume digits-x7k2p9")
def resume(jobs: JobsGiven, output: FormatOption = None, as_json: JsonOption = False) -> None:
    """Let suspended jobs go on where they were."""
    with connect() as client:
        asked = [client.resume(job_id) for job_id in find_ids(client, jobs)]
    _print_states(asked, choose_format(output, as_json))


def _print_states(jobs: list[Job], chosen: OutputFormat) -> None:
    if chosen.of_data:
        print_data([job.raw for job in jobs], chosen)
        return
    for job in jobs:
        asked = str(job.raw.get("desired") or "run")
        note = f" ({asked} was asked for)" if asked != "run" and not job.state.terminal else ""
        write_line(f"{job.id}  {job.state}{note}")


@app.command("scale", epilog="Example: elasticdl jobs scale digits-x7k2p9 --min-workers 1 --max-workers 4")
def scale(
    job: JobGiven,
    min_workers: Annotated[int | None, typer.Option("--min-workers", min=1, help="Fewest that it runs with.")] = None,
    max_workers: Annotated[int | None, typer.Option("--max-workers", min=1, help="It never has more.")] = None,
    num_workers: Annotated[
        int | None, typer.Option("--num-workers", min=1, help="Another name of --max-workers.")
    ] = None,
    priority: Annotated[
        int | None, typer.Option("--priority", min=-1000, max=1000, help="Higher goes first.")
    ] = None,
    output: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Change how many workers a job may have, and how it ranks, while it runs."""
    with connect() as client:
        aliases = {} if num_workers is None else {"num_workers": num_workers}
        scaled = client.scale(find_job(client, job).id, min_workers, max_workers, priority, **aliases)
    chosen = choose_format(output, as_json)
    if chosen.of_data:
        print_data(scaled.raw, chosen)
        return
    write_line(f"{scaled.id}  workers {scaled.min_workers} to {scaled.max_workers}, priority {scaled.priority}")
    told = scaled.status.strategy.get("microbatches") or scaled.raw.get("spec", {}).get("microbatches") or 0
    if words := words_of_spare(scaled.max_workers, int(told)):
        write_line(words, to=sys.stderr)


job_labels.register(app)


@app.command("artifacts", epilog="Example: elasticdl jobs artifacts digits-x7k2p9 model.keras --download ./model")
def artifacts(
    job: JobGiven,
    names: Annotated[
        list[str] | None, typer.Argument(metavar="[NAME...]", help="Only these.", show_default=False)
    ] = None,
    download: Annotated[str, typer.Option("--download", metavar="DIR", help="Fetch them into this directory.")] = "",
    output: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """List what a job made, or fetch it."""
    from elasticdl.cli.following import ARTIFACT_COLUMNS, artifact_rows
    from elasticdl.cli.output import print_table

    chosen = choose_format(output, as_json)
    with connect() as client:
        job_id = find_job(client, job).id
        found = [item for item in client.artifacts(job_id) if not names or item.name in names]
        places: Sequence[Path] = ()
        if download:
            places = client.download(job_id, Path(download).absolute(), names or None)
    if download and chosen.of_data:
        print_data([str(place) for place in places], chosen)
    elif download and places:
        write_line("\n".join(str(place) for place in places))
    elif chosen.of_data:
        print_data([item.raw for item in found], chosen)
    else:
        print_table(ARTIFACT_COLUMNS, artifact_rows(found), empty="no artifacts")


@app.command("delete", epilog="Example: elasticdl jobs delete digits-x7k2p9 --yes")
def delete(
    jobs: JobsGiven,
    yes: Annotated[bool, typer.Option("--yes", "-y", help="Do not ask.")] = False,
) -> None:
    """Delete jobs that have ended, with their logs, checkpoints and artifacts."""
    if not yes and not sys.stdin.isatty():
        raise InvalidInputError("deleting cannot be undone", fix="give --yes")
    with connect() as client:
        ids = find_ids(client, jobs, only=True)
        if not yes:
            listed = neutralise(", ".join(ids))
            typer.confirm(f"delete {listed} with all logs, checkpoints and artifacts?", abort=True)
        for job_id in ids:
            client.delete(job_id)
            write_line(f"{job_id}  deleted")

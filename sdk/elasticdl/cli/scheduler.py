"""``elasticdl explain``, ``what-if`` and ``top``: what the scheduler does, why, and what it would do."""

from __future__ import annotations

import sys
import time
from collections.abc import Callable, Mapping
from typing import TYPE_CHECKING, Annotated, Any

import typer

from elasticdl.cli.connection import connect
from elasticdl.cli.formats import FormatOption, JsonOption, OutputFormat, choose_format, print_data
from elasticdl.cli.job_names import JobGiven, find_ids, find_job
from elasticdl_core.errors import InvalidInputError

if TYPE_CHECKING:
    pass

PANEL = "Scheduling"


def register(app: typer.Typer) -> None:
    """Adds the commands to the command line."""
    app.command("explain", rich_help_panel=PANEL, epilog="Example: elasticdl explain digits-x7k2p9")(explain)
    app.command("what-if", rich_help_panel=PANEL, epilog=_WHAT_IF_EXAMPLES, no_args_is_help=True)(what_if)
    app.command("top", rich_help_panel=PANEL, epilog="Example: elasticdl top --once")(top)


def explain(
    job: JobGiven,
    output: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Say why a job has the workers that it has, who holds what it lacks, what would help, and when it will end."""
    chosen = choose_format(output, as_json)
    with connect() as client:
        found = client.explain(find_job(client, job).id)
    if chosen.of_data:
        print_data(found, chosen)
        return
    from elasticdl.cli.output import stdout
    from elasticdl.cli.scheduling_views import explanation

    stdout().print(explanation(found))


_WHAT_IF_EXAMPLES = """Examples:

    elasticdl what-if --workers 1:4 --priority 5 --records 60000 --like digits-x7k2p9

    elasticdl what-if --cancel digits-x7k2p9

    elasticdl what-if --priority digits-x7k2p9=10 --workers wide-x2k9d4=1:2

    elasticdl what-if --slots +4"""


def what_if(
    workers: Annotated[
        list[str] | None,
        typer.Option(
            "--workers",
            metavar="[ID=]MIN:MAX",
            help="A new job with these bounds; or with ID=, other bounds of that job. Repeatable.",
        ),
    ] = None,
    priority: Annotated[
        list[str] | None,
        typer.Option("--priority", metavar="[ID=]N", help="Priority of the new jobs; or with ID=, of that job."),
    ] = None,
    records: Annotated[
        float | None, typer.Option("--records", min=1, help="Records of the new jobs, over all epochs.")
    ] = None,
    like: Annotated[
        str, typer.Option("--like", metavar="JOB", help="The new jobs are as fast, and as long, as this one.")
    ] = "",
    speed: Annotated[
        float | None, typer.Option("--speed", min=1e-9, help="Records a second of one worker of the new jobs.")
    ] = None,
    cancel: Annotated[
        list[str] | None, typer.Option("--cancel", metavar="JOB", help="Without this job. Repeatable.")
    ] = None,
    slots: Annotated[
        str, typer.Option("--slots", metavar="N", help="With that many worker slots; +N or -N for more or fewer.")
    ] = "",
    devices: Annotated[
        int | None, typer.Option("--devices", min=0, metavar="N", help="With that many GPUs in the cluster.")
    ] = None,
    request: Annotated[
        str,
        typer.Option(
            "--worker-resource-request",
            "--worker_resource_request",
            metavar="gpu=SHARE",
            help="The share of a GPU for a worker of the new jobs.",
        ),
    ] = "",
    output: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Tell what would happen with other jobs, priorities, bounds, slots or GPUs. Nothing is changed."""
    chosen = choose_format(output, as_json)
    question = _question(workers or [], priority or [], cancel or [], slots, devices)
    details = {
        "records": records,
        "like": like or None,
        "records_per_second": speed,
        "worker_resource_request": request or None,
    }
    given = {name: value for name, value in details.items() if value is not None}
    if given and not question["add"]:
        raise InvalidInputError(
            f"--{next(iter(given)).replace('records_per_second', 'speed')} describes a new job, and there is none",
            fix="add one with --workers MIN:MAX",
        )
    with connect() as client:
        if like:
            given["like"] = find_job(client, like).id
        question["add"] = [{**job, **given} for job in question["add"]]
        question["cancel"] = find_ids(client, cancel or [])
        for name in ("priorities", "sizes"):
            question[name] = {find_job(client, job).id: value for job, value in question[name].items()}
        found = client.what_if(**{name: value for name, value in question.items() if value not in ([], {}, None)})
    from elasticdl.cli.output import stdout

    if chosen.of_data:
        print_data(found, chosen)
        return
    from elasticdl.cli.scheduling_views import comparison

    stdout().print(comparison(found))


def _question(
    workers: list[str], priority: list[str], cancel: list[str], slots: str, devices: int | None
) -> dict[str, Any]:
    sizes: dict[str, dict[str, int]] = {}
    add: list[dict[str, Any]] = []
    for text in workers:
        job_id, _, bounds = text.rpartition("=")
        least, most = _bounds(text, bounds)
        if job_id:
            sizes[job_id] = {"min_workers": least, "max_workers": most}
        else:
            name = "new" if not add else f"new-{len(add) + 1}"
            add.append({"name": name, "min_workers": least, "max_workers": most})
    priorities: dict[str, int] = {}
    for text in priority:
        job_id, _, value = text.rpartition("=")
        rank = _whole("priority", text, value)
        if job_id:
            priorities[job_id] = rank
        elif not add:
            raise InvalidInputError(
                f"--priority {text} is of a new job, and there is none",
                fix=f"add one with --workers MIN:MAX, or write --priority ID={text}",
            )
        else:
            for job in add:
                job["priority"] = rank
    question: dict[str, Any] = {"add": add, "cancel": cancel, "priorities": priorities, "sizes": sizes}
    if slots:
        question["add_slots" if slots[0] in "+-" else "slots"] = _whole("slots", slots, slots)
    if devices is not None:
        question["devices"] = devices
    if not any(question.values()) and not slots and devices is None:
        fix = "give --workers, --priority, --cancel, --slots or --devices"
        raise InvalidInputError("there is no change to try", fix=fix)
    return question


def _bounds(text: str, bounds: str) -> tuple[int, int]:
    least, colon, most = bounds.partition(":")
    low = _whole("workers", text, least)
    high = _whole("workers", text, most) if colon else low
    if not 1 <= low <= high:
        raise InvalidInputError(f"--workers {text}: there is no such range", fix="write MIN:MAX, e.g. --workers 1:4")
    return low, high


_FIXES = {"workers": "write MIN:MAX or ID=MIN:MAX", "priority": "write N or ID=N", "slots": "write N, +N or -N"}


def _whole(flag: str, text: str, value: str) -> int:
    try:
        return int(value)
    except ValueError:
        fixes = {
            "workers": "write MIN:MAX or ID=MIN:MAX",
            "priority": "write N or ID=N",
            "slots": "write N, +N or -N",
        }
        raise InvalidInputError(f"--{flag} {text}: {value!r} is not a whole number", fix=fixes[flag]) from None


def top(
    once: Annotated[bool, typer.Option("--once", help="Print it once and return; for scripts and pipes.")] = False,
    interval: Annotated[
        float, typer.Option("--interval", min=0.5, max=3600, help="Seconds between two looks.")
    ] = 2.0,
    output: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show the cluster live: slots, and every job with its workers, speed, progress, expected end and reason.

    As JSON or YAML it is printed once.
    """
    chosen = choose_format(output, as_json)
    wide = chosen is OutputFormat.WIDE
    with connect() as client:
        if chosen.of_data:
            print_data(client.plan(), chosen)
        elif once:
            from elasticdl.cli.output import WIDE_COLUMNS, stdout
            from elasticdl.cli.scheduling_views import cluster

            stdout(WIDE_COLUMNS if wide else 160).print(cluster(client.plan(), wide=wide))
        else:
            _watch(client.plan, interval, wide=wide)


def _watch(fetch: Callable[[], Mapping[str, Any]], interval_s: float, *, wide: bool) -> None:
    """Refreshes the full-screen view until Ctrl-C; shows an outage of the API and retries."""
    from rich.live import Live
    from rich.text import Text

    from elasticdl.cli.output import stdout
    from elasticdl.cli.scheduling_views import cluster
    from elasticdl_core.errors import UnavailableError

    if not sys.stdout.isatty():
        raise InvalidInputError("top needs a terminal", fix="give --once or -o json")
    shown: Any = Text("looking")
    with Live(shown, console=stdout(), auto_refresh=False, screen=True) as live:
        try:
            while True:
                try:
                    shown = cluster(fetch(), wide=wide)
                except UnavailableError as error:
                    shown = Text(f"{error.message}; it is tried again", style="bold yellow")
                live.update(shown, refresh=True)
                time.sleep(interval_s)
        except KeyboardInterrupt:
            return

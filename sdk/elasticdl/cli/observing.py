"""``elasticdl jobs stacks`` and ``trace``: where the processes of a job are, and what they do for some seconds."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Annotated, Any

import typer

from elasticdl.cli.connection import connect
from elasticdl.cli.formats import FormatOption, JsonOption, choose_format, print_data
from elasticdl.cli.job_names import JobGiven, find_job
from elasticdl.cli.output import write_line
from elasticdl.cli.plain_text import neutralise
from elasticdl_core.errors import InvalidInputError
from elasticdl_core.ports.launcher import Role


def register(app: typer.Typer) -> None:
    """Adds the commands to ``elasticdl jobs``."""
    app.command("stacks", epilog="Example: elasticdl jobs stacks digits-x7k2p9 --role worker")(stacks)
    app.command("trace", epilog="Example: elasticdl jobs trace digits-x7k2p9 --seconds 5 --output trace.json")(trace)


def stacks(
    job: JobGiven,
    role: Annotated[
        Role | None, typer.Option("--role", help="Only of this kind of process.", show_default=False)
    ] = None,
    index: Annotated[
        int | None, typer.Option("--index", min=0, help="Only of processes with this number.", show_default=False)
    ] = None,
    brief: Annotated[bool, typer.Option("--brief", help="Only what each process waits for, without calls.")] = False,
    output: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Show where the processes of a job are, and what each waits for; hanging ones too.

    The innermost call of a thread comes first.
    """
    chosen = choose_format(output, as_json)
    with connect() as client:
        found = client.stacks(find_job(client, job).id)
    processes = [one for one in found["processes"] if role in (None, one["role"]) and index in (None, one["index"])]
    if chosen.of_data:
        print_data({**found, "processes": processes}, chosen)
        return
    if not processes:
        write_line("no such process runs; `elasticdl jobs events` tells what became of it")
    for one in processes:
        _show_process(one, brief=brief)


def trace(
    job: JobGiven,
    seconds: Annotated[float, typer.Option("--seconds", min=0.1, max=30.0, help="For how long.")] = 5.0,
    target: Annotated[
        Path | None, typer.Option("--output", "-o", help="The file to write.", show_default="<job>.trace.json")
    ] = None,
) -> None:
    """Record what the processes of a job do for some seconds, for https://ui.perfetto.dev or chrome://tracing."""
    with connect() as client:
        job_id = find_job(client, job).id
        recorded = client.trace(job_id, seconds)
    place = target or Path(f"{job_id}.trace.json")
    try:
        place.write_text(json.dumps(recorded), encoding="utf-8")
    except OSError as error:
        raise InvalidInputError(
            f"cannot write {place}: {error.strerror}", fix="name a file that can be written, with --output"
        ) from None
    write_line(f"{place}: {len(recorded['traceEvents']):,} events; open it at https://ui.perfetto.dev")


def _show_process(process: Mapping[str, Any], *, brief: bool) -> None:
    name = f"{process['role']}-{process['index']}.{process['incarnation']}"
    write_line(f"{name}: {neutralise(process['waits_for'])} ({neutralise(process['state'])})")
    if brief:
        return
    if process["error"]:
        write_line(f"  {neutralise(process['error'])}")
    for thread in process["threads"]:
        write_line(f"  {neutralise(thread['name'])}: {neutralise(thread['waits_for'])}")
        for frame in thread["frames"]:
            write_line(f"    {neutralise(frame['function'])} ({neutralise(frame['file'])}:{frame['line']})")

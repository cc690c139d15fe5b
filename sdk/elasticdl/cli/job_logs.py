"""``elasticdl jobs logs``: what one process of a job printed, or all of them, and of that what matches."""

from __future__ import annotations

import re
import sys
from collections.abc import Iterable, Iterator
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Annotated

import typer

from elasticdl.cli.connection import connect
from elasticdl.cli.job_names import JobGiven, find_job
from elasticdl.cli.output import stdout, write_log
from elasticdl.cli.plain_text import neutralise_log
from elasticdl_core.errors import InvalidInputError, NotFoundError
from elasticdl_core.ports.launcher import Role

if TYPE_CHECKING:
    from elasticdl.client import Client, Job

_UNITS = {"s": 1, "m": 60, "h": 3600, "d": 86400}
_COLOURS = {Role.MASTER: "magenta", Role.PS: "yellow", Role.WORKER: "cyan"}


def logs(
    job: JobGiven,
    role: Annotated[
        Role | None, typer.Option("--role", help="Kind of process.", show_default="worker; with --all every kind")
    ] = None,
    index: Annotated[
        int | None, typer.Option("--index", min=0, help="Number of the process among its kind.", show_default="0")
    ] = None,
    all_of_them: Annotated[
        bool, typer.Option("--all", "-a", help="Of all processes, one after the other, each line with its process.")
    ] = False,
    grep: Annotated[
        str, typer.Option("--grep", metavar="REGEX", help="Only lines that this regular expression finds.")
    ] = "",
    tail: Annotated[
        int | None,
        typer.Option(
            "--tail", "-n", min=0, max=100_000, help="Only this many last lines of each process, 100,000 at most."
        ),
    ] = None,
    since: Annotated[
        str,
        typer.Option(
            "--since",
            metavar="AGO|TIME",
            help="Only what was printed since then: 30s, 10m, 2h or 1d ago, or a time such as 2026-01-31T09:30 "
            "(local, unless it has a zone). Up to a second more is printed.",
            show_default=False,
        ),
    ] = "",
    follow: Annotated[
        bool, typer.Option("--follow", "--watch", "-f", help="Go on with what is printed until the job is over.")
    ] = False,
    raw: Annotated[
        bool, typer.Option("--raw", help="Print control characters as they are; only for logs that you trust.")
    ] = False,
) -> None:
    """Print what a process of a job printed, in all its incarnations; control characters are shown, not obeyed."""
    wanted = _pattern(grep)
    start = moment_of(since, datetime.now(UTC)) if since else None
    if all_of_them and index is not None:
        raise InvalidInputError("--all and --index do not go together", fix="leave one of them out")
    if all_of_them and follow:
        raise InvalidInputError(
            "--all and --follow do not go together", fix="follow one process: --role worker --index 0 --follow"
        )
    with connect() as client:
        found = find_job(client, job)
        if all_of_them:
            for kind, number, text in _processes(client, found, role, tail, start):
                _print_marked(kind, number, [line for line in text.splitlines() if wanted.search(line)], raw=raw)
            return
        kind, number = role or Role.WORKER, index or 0
        if follow:
            for line in client.follow_logs(found.id, role=kind, index=number, tail=tail, since=start):
                if wanted.search(line):
                    write_log(line + "\n", raw=raw)
            return
        text = client.logs(found.id, role=kind, index=number, tail=tail, since=start)
        write_log("".join(line for line in text.splitlines(keepends=True) if wanted.search(line)), raw=raw)


def _pattern(text: str) -> re.Pattern[str]:
    try:
        return re.compile(text)
    except (re.error, RecursionError, OverflowError) as error:
        raise InvalidInputError(
            f"--grep {text!r} is no regular expression: {error}", fix="put \\ before characters such as ( [ * +"
        ) from None


def moment_of(text: str, now: datetime) -> datetime:
    """The moment that ``10m`` (ago) or a time stands for.

    Raises:
        InvalidInputError: it is neither, or lies in the future.
    """
    ago = re.fullmatch(r"([0-9]{1,9})([smhd])", text)
    try:
        if ago:
            return now - timedelta(seconds=int(ago[1]) * _UNITS[ago[2]])
        at = datetime.fromisoformat(text).astimezone(UTC)
    except (ValueError, OverflowError, OSError):
        raise InvalidInputError(
            f"--since {text!r} is no time", fix="write 30s, 10m, 2h or 1d, or a time such as 2026-01-31T09:30"
        ) from None
    if at > now:
        raise InvalidInputError(f"--since {text!r} lies in the future", fix="give a time that is over")
    return at


def _processes(
    client: Client, job: Job, only: Role | None, tail: int | None, since: datetime | None
) -> Iterator[tuple[Role, int, str]]:
    """The logs of all processes that there are or were: master, PS, workers, each kind by number."""
    status = {Role.MASTER: 1, Role.PS: _most(job.status.ps), Role.WORKER: _most(job.status.workers)}
    for role in (Role.MASTER, Role.PS, Role.WORKER):
        if only not in (None, role):
            continue
        number = 0
        while True:
            try:
                text = client.logs(job.id, role=role, index=number, tail=tail, since=since)
            except NotFoundError:
                text = ""
            # A process that is known may be silent; beyond those, numbers go up to the first that never was.
            if not text and number >= status[role]:
                break
            yield role, number, text
            number += 1


def _most(processes: Iterable[object]) -> int:
    """One more than the highest number among what a master reports of its processes."""
    indexes = [one.get("index") for one in processes if isinstance(one, dict)]
    return max((index + 1 for index in indexes if isinstance(index, int)), default=0)


def _print_marked(role: Role, number: int, lines: Iterable[str], *, raw: bool) -> None:
    """Prints lines with the process that they are of, in a colour of its kind on a terminal."""
    mark = f"{role}-{number}"
    if raw or not sys.stdout.isatty():
        for line in lines:
            write_log(f"{mark} | {line}\n", raw=raw)
        return
    from rich.text import Text

    console = stdout()
    for line in lines:
        for part in neutralise_log(line).split("\n"):
            console.print(Text.assemble((f"{mark} | ", _COLOURS[role]), part), soft_wrap=True)

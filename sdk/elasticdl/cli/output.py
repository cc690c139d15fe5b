"""Formats the output of the command line: errors with their fix, numbers, times and tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import TYPE_CHECKING, Any

from elasticdl_core.errors import (
    ElasticDLError,
    InvalidInputError,
    SpecError,
    UnavailableError,
    UserCodeError,
)
from elasticdl_core.json_numbers import from_json, to_json

if TYPE_CHECKING:
    from rich.console import Console

EXIT_OK = 0
EXIT_FAILED = 1
"""The job failed, or the command could not be carried out."""
EXIT_USAGE = 2
"""A flag, a value or the model module is wrong; nothing was submitted."""
EXIT_CANCELLED = 3
"""The job was cancelled."""
EXIT_UNAVAILABLE = 4
"""The API does not answer."""
EXIT_INTERRUPTED = 130
"""Ctrl-C; a job on a cluster goes on."""


def stdout() -> Console:
    """A console on standard output; tables keep their columns when there is no terminal."""
    from rich.console import Console

    return Console(highlight=False, width=None if sys.stdout.isatty() else 160)


def stderr() -> Console:
    """A console on standard error."""
    from rich.console import Console

    return Console(highlight=False, stderr=True, soft_wrap=True)


def exit_code(error: ElasticDLError) -> int:
    """The exit code that an error ends a command with."""
    if isinstance(error, InvalidInputError):
        return EXIT_USAGE
    return EXIT_UNAVAILABLE if isinstance(error, UnavailableError) else EXIT_FAILED


def show_error(error: ElasticDLError) -> None:
    """Prints what is wrong, where, and what to do, on standard error."""
    from rich.text import Text

    console = stderr()
    if isinstance(error, UserCodeError) and error.traceback:
        console.print(Text(error.traceback.rstrip()))
    if isinstance(error, SpecError):
        for problem in error.problems:
            console.print(_line("error", f"--{problem.field}: {problem.message}", problem.fix))
        return
    console.print(_line("error", error.message, error.fix))


def _line(label: str, message: str, fix: str) -> Any:
    from rich.text import Text

    text = Text.assemble((f"{label}: ", "bold red"), message)
    if fix:
        text.append("\n  fix: ", style="bold")
        text.append(fix)
    return text


def print_json(data: Any) -> None:
    """Prints data as indented JSON on standard output."""
    sys.stdout.write(json.dumps(to_json(data), indent=2, ensure_ascii=False, allow_nan=False) + "\n")


def print_bold(line: str) -> None:
    """Prints a line in bold."""
    from rich.text import Text

    stdout().print(Text(line, style="bold yellow"))


def skipped_words(entry: Mapping[str, Any]) -> str:
    """An entry of ``skipped`` in one line."""
    of = "validation: " if entry.get("of") == "validation" else ""
    records = entry.get("records")
    many = "an unknown number of records" if records is None else f"{records:,} record{'' if records == 1 else 's'}"
    return f"skipped: {of}{many} passed over ({entry.get('reason')}), such as {entry.get('example')}"


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str) -> None:
    """Prints rows under column titles, or a sentence when there are none."""
    console = stdout()
    listed = list(rows)
    if not listed:
        console.print(empty)
        return
    console.print(table(columns, listed))


def table(columns: Sequence[str], rows: Iterable[Sequence[str]]) -> Any:
    """A table without borders; cells are not parsed as markup."""
    from rich.table import Table
    from rich.text import Text

    made = Table(box=None, pad_edge=False, header_style="bold")
    for column in columns:
        made.add_column(column, overflow="fold")
    for row in rows:
        made.add_row(*(Text(cell) for cell in row))
    return made


def count(number: float) -> str:
    """A number with separators; with one decimal only when it is small and needs it."""
    return f"{number:,.0f}" if number >= 100 or number == int(number) else f"{number:,.1f}"


def size(number: float) -> str:
    """A number of bytes with a unit."""
    for unit in ("B", "KiB", "MiB", "GiB"):
        if number < 1024:
            return f"{number:.0f} {unit}" if unit == "B" else f"{number:.1f} {unit}"
        number /= 1024
    return f"{number:.1f} TiB"


def duration(seconds: float | None) -> str:
    """A duration as h:mm:ss."""
    return "-" if seconds is None else str(timedelta(seconds=max(0, round(seconds))))


def moment(at: datetime | None) -> str:
    """A time of day and date in the zone of this machine."""
    return "-" if at is None else at.astimezone().strftime("%Y-%m-%d %H:%M:%S")


def age(at: datetime | None, now: datetime | None = None) -> str:
    """The time since a moment, with a unit."""
    if at is None:
        return "-"
    seconds = max(0, int(((now or datetime.now(UTC)) - at).total_seconds()))
    for unit, length in (("d", 86400), ("h", 3600), ("m", 60)):
        if seconds >= 2 * length:
            return f"{seconds // length}{unit}"
    return f"{seconds}s"


def loss_words(mean: float, last: float | None, learning_rate: float | None) -> list[str]:
    """The mean loss of the last minibatches, the latest one, and the learning rate."""
    words = [f"loss {mean:.4g}" + (f" (last {last:.4g})" if last is not None else "")]
    return [*words, f"lr {learning_rate:.4g}"] if learning_rate is not None else words


def metric_words(metrics: Mapping[str, Any]) -> list[str]:
    """Metrics by name, each as ``name value``; numbers that are not finite may be given as JSON spells them."""
    shown = from_json(metrics)
    return [f"{name} {value:.4g}" if isinstance(value, float) else f"{name} {value}" for name, value in shown.items()]


def training_words(metrics: Mapping[str, Any]) -> str:
    """The metrics of a training minibatch, told apart from those of an evaluation; nothing where there are none."""
    return f"training: {', '.join(metric_words(metrics))}" if metrics else ""

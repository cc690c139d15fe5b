"""Formats the output of the command line: errors with their fix, numbers, times and tables."""

from __future__ import annotations

import json
import sys
from collections.abc import Iterable, Mapping, Sequence
from datetime import UTC, datetime, timedelta
from typing import IO, TYPE_CHECKING, Any

from elasticdl.cli.plain_text import neutralise, neutralise_json, neutralise_log
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
EXIT_TIMEOUT = 5
"""What was waited for did not come in the time that was given."""
EXIT_INTERRUPTED = 130
"""Ctrl-C; a job on a cluster goes on."""


def console_on(stream: IO[str], **settings: Any) -> Console:
    """A console that shows control characters in what it prints, instead of handing them to the terminal.

    Args:
        stream: where it prints.
        **settings: further arguments of rich's console.
    """
    from rich.console import Console, ConsoleOptions, RenderableType
    from rich.segment import Segment

    class PlainConsole(Console):
        def render(self, renderable: RenderableType, options: ConsoleOptions | None = None) -> Iterable[Segment]:
            for segment in super().render(renderable, options):
                yield segment if segment.control else Segment(neutralise(segment.text), segment.style)

    return PlainConsole(file=stream, highlight=False, **settings)


def stdout(width: int = 160) -> Console:
    """A console on standard output; tables keep their columns when there is no terminal, in lines of some width."""
    return console_on(sys.stdout, width=None if sys.stdout.isatty() else width)


def stderr() -> Console:
    """A console on standard error."""
    return console_on(sys.stderr, soft_wrap=True)


def write_line(line: object = "", *, to: IO[str] | None = None) -> None:
    """Prints a line for people, on standard output by default; nothing in it acts on the terminal."""
    stream = to or sys.stdout
    stream.write(neutralise(str(line)) + "\n")
    stream.flush()


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


def write_log(text: str, *, raw: bool = False) -> None:
    """Prints a part of a log on standard output, at once; as it is only if ``raw``."""
    sys.stdout.write(text if raw else neutralise_log(text))
    sys.stdout.flush()


def print_json(data: Any) -> None:
    """Prints data as indented JSON on standard output."""
    sys.stdout.write(json_text(data, indent=2) + "\n")


def print_json_line(data: Any) -> None:
    """Prints data as JSON on one line of standard output, at once."""
    sys.stdout.write(json_text(data) + "\n")
    sys.stdout.flush()


def json_text(data: Any, *, indent: int | None = None) -> str:
    """Data as JSON."""
    return neutralise_json(json.dumps(to_json(data), indent=indent, ensure_ascii=False, allow_nan=False))


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


WIDE_COLUMNS = 320
"""How long lines of wide tables may be where there is no terminal."""


def print_table(columns: Sequence[str], rows: Iterable[Sequence[str]], *, empty: str, width: int = 160) -> None:
    """Prints rows under column titles, or a sentence when there are none.

    The first column, by which rows are named, stays on one line, and the others are as wide as their titles at
    least: a narrow terminal breaks lines by itself, and what is copied from it is whole.
    """
    console = stdout(width)
    listed = list(rows)
    if not listed:
        console.print(empty)
        return
    made = table(columns, listed)
    name = next(index for index, title in enumerate(columns) if title)
    made.columns[name].no_wrap = True
    longest = [max(len(row[index]) for row in listed) if index <= name else 0 for index in range(len(columns))]
    needed = sum(max(len(title), wide) + 2 for title, wide in zip(columns, longest, strict=True))
    console.print(made, width=max(console.width, needed), crop=False)


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

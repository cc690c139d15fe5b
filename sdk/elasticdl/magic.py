"""Cell magic ``%%elasticdl`` for notebooks: the cell holds statements, as a file of ``elasticdl sql`` does."""

from __future__ import annotations

import contextlib
import io
import sys
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import TYPE_CHECKING, Any, TextIO

from IPython.core.error import UsageError
from IPython.core.magic_arguments import MagicArgumentParser
from IPython.display import display

from elasticdl.cli.ending import of_system
from elasticdl.cli.output import EXIT_OK, table
from elasticdl.cli.plain_text import neutralise
from elasticdl.cli.sql import parse_all, run_statement
from elasticdl.extras import require
from elasticdl_core.errors import ElasticDLError, SpecError

if TYPE_CHECKING:
    from IPython.core.interactiveshell import InteractiveShell
    from IPython.lib.pretty import RepresentationPrinter


class Results(list[Mapping[str, Any]]):
    """Rows of an evaluation or explanation, which notebooks show as a table."""

    def _repr_html_(self) -> str:
        return self._shown_as("text/html")

    def _repr_pretty_(self, printer: RepresentationPrinter, cycle: bool) -> None:
        printer.text(self._shown_as("text/plain").rstrip("\n"))

    def _shown_as(self, kind: str) -> str:
        cells = [[neutralise(_cell(value)) for value in row.values()] for row in self]
        made = table(list(self[0]) if self else [], cells)
        return str(made._repr_mimebundle_((kind,), ())[kind])


def load_ipython_extension(shell: InteractiveShell) -> None:
    """Adds ``%%elasticdl`` to a notebook.

    Args:
        shell: that of the notebook.
    """
    with _told_in_one_line():
        require("`%%elasticdl`", "sql")
    shell.register_magic_function(run_cell, "cell", "elasticdl")


def run_cell(line: str, cell: str) -> Results | None:
    """Runs the statements of a cell, as ``elasticdl sql --file`` does, one after the other and each time all.

    Args:
        line: the options of ``elasticdl sql``: ``--source``, ``--models``, ``--local``, ``--dry-run``, ``--save``.
        cell: the statements.

    Returns:
        Metrics or importances, where the last statement evaluates or explains; those before it are displayed.
    """
    from elasticdl.sql.grammar import split_statements

    given = _options().parse_argstring(line)
    results = None
    with _told_in_one_line(), contextlib.redirect_stdout(_Lines(sys.stdout)):
        texts = split_statements(f"\n{cell}")  # the first line of the cell is the magic's
        if not texts:
            raise UsageError("there is no statement; write SELECT ... TO TRAIN ... below %%elasticdl")
        for one in parse_all(texts, given.dry_run, given.save):
            if results:
                display(results)
            ended = run_statement(one, given.source, given.models, given.local, given.dry_run, given.save)
            if ended.code != EXIT_OK:
                raise UsageError(f"{one.verb} {one.subject} did not succeed (exit code {ended.code}); see above")
            results = Results(ended.rows)
    return results or None


class _Lines(io.TextIOBase):
    """Writes to a notebook, which is no terminal: progress comes in lines."""

    def __init__(self, stream: TextIO) -> None:
        self._stream = stream

    def write(self, text: str) -> int:
        return self._stream.write(text)

    def flush(self) -> None:
        self._stream.flush()


def _options() -> MagicArgumentParser:
    parser = MagicArgumentParser("%%elasticdl")
    parser.allow_abbrev = False
    parser.add_argument("--source", default="")
    parser.add_argument("--models", type=Path)
    parser.add_argument("--local", action="store_true")
    parser.add_argument("--dry-run", "--dry_run", action="store_true")
    parser.add_argument("--save", type=Path)
    return parser


@contextlib.contextmanager
def _told_in_one_line() -> Iterator[None]:
    """Turns errors of ours into IPython's, which are shown without a traceback and end the cell."""
    try:
        yield
    except SpecError as error:
        raise UsageError("; ".join(_line(f"{one.field}: {one.message}", one.fix) for one in error.problems)) from None
    except ElasticDLError as error:
        raise UsageError(_line(error.message, error.fix)) from None
    except OSError as error:
        told = of_system(error)
        raise UsageError(_line(told.message, told.fix)) from None
    except SystemExit:
        raise UsageError("interrupted") from None


def _line(message: str, fix: str) -> str:
    """An error in one line; that of a place in a statement goes without its text, which is above."""
    return neutralise("; ".join(part for part in (message.partition("\n")[0], fix) if part))


def _cell(value: Any) -> str:
    return f"{value:.4g}" if isinstance(value, float) else str(value)

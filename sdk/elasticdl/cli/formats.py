"""The formats of listings: ``-o table|wide|json|yaml``, and ``--json`` as it always was."""

from __future__ import annotations

import enum
import json
import sys
from typing import Annotated, Any

import typer

from elasticdl.cli.output import print_json, print_json_line
from elasticdl.cli.plain_text import neutralise
from elasticdl_core.errors import InvalidInputError
from elasticdl_core.json_numbers import to_json


class OutputFormat(enum.StrEnum):
    """Formats of printed output."""

    TABLE = "table"
    WIDE = "wide"
    JSON = "json"
    YAML = "yaml"
    CSV = "csv"

    @property
    def of_data(self) -> bool:
        """Whether it is for programs: all that the API answers."""
        return self in {OutputFormat.JSON, OutputFormat.YAML}


_HELP = "wide has more columns, json and yaml all there is; csv is of `jobs metrics` alone."
FormatOption = Annotated[OutputFormat | None, typer.Option("--output", "-o", help=_HELP, show_default="table")]
PlainFormatOption = Annotated[OutputFormat | None, typer.Option("--format", "-o", help=_HELP, show_default="table")]
"""The same for commands whose ``--output`` is a place."""
JsonOption = Annotated[bool, typer.Option("--json", help="Print what the API answers, as JSON: -o json.")]


def choose_format(output: OutputFormat | None, as_json: bool, *, csv: bool = False) -> OutputFormat:
    """The format that was asked for.

    Args:
        output: what ``-o`` says.
        as_json: whether ``--json`` was given.
        csv: whether the command shows what is a table of numbers.

    Raises:
        InvalidInputError: two were, or one that the command does not have.
    """
    if output is OutputFormat.CSV and not csv:
        raise InvalidInputError("-o csv is for `elasticdl jobs metrics`", fix="give table, wide, json or yaml")
    if as_json and output not in (None, OutputFormat.JSON):
        raise InvalidInputError(f"--json and -o {output} do not go together", fix="leave one of them out")
    return OutputFormat.JSON if as_json else output or OutputFormat.TABLE


def print_data(data: Any, output: OutputFormat) -> None:
    """Prints data as JSON or YAML on standard output."""
    if output is OutputFormat.JSON:
        print_json(data)
        return
    sys.stdout.write(_yaml_text(data))


def print_next(data: Any, output: OutputFormat) -> None:
    """Prints one of several things that come one after another, at once: JSON on a line, or a YAML document."""
    if output is OutputFormat.JSON:
        print_json_line(data)
        return
    sys.stdout.write("---\n" + _yaml_text(data))
    sys.stdout.flush()


def _yaml_text(data: Any) -> str:
    import yaml

    plain = json.loads(json.dumps(to_json(data)))  # YAML's dumper takes no kind of text but str itself
    text = yaml.safe_dump(plain, sort_keys=False, allow_unicode=True)
    return text if neutralise(text) == text else yaml.safe_dump(plain, sort_keys=False)

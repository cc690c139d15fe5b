"""``jobs label``: what jobs are found by, changed at any time."""

from __future__ import annotations

from typing import Annotated

import typer

from elasticdl.cli.connection import connect
from elasticdl.cli.formats import FormatOption, JsonOption, choose_format, print_data
from elasticdl.cli.job_names import JobGiven, find_job
from elasticdl.cli.output import write_line
from elasticdl.cli.plain_text import neutralise
from elasticdl_core.errors import InvalidInputError

_FIX = "write KEY=VALUE to set a label, and KEY- to remove one"


def register(app: typer.Typer) -> None:
    """Adds the verb."""
    app.command("label", epilog="Example: elasticdl jobs label digits-x7k2p9 team=ads draft-")(label)


def label(
    job: JobGiven,
    labels: Annotated[
        list[str],
        typer.Argument(metavar="KEY=VALUE|KEY-...", help="A label to set, or one to remove.", show_default=False),
    ],
    output: FormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Set and remove labels of a job, also when it is over; those that are not named stay."""
    wanted = parse_labels(labels)
    with connect() as client:
        changed = client.label(find_job(client, job).id, wanted)
    chosen = choose_format(output, as_json)
    if chosen.of_data:
        print_data(changed.raw, chosen)
        return
    held = ", ".join(f"{key}={value}" for key, value in sorted(changed.spec.get("labels", {}).items()))
    write_line(f"{changed.id}  {neutralise(held) or 'no labels'}")


def parse_labels(given: list[str]) -> dict[str, str | None]:
    """Labels to set, and with None those to remove.

    Raises:
        InvalidInputError: one is neither, or is named twice.
    """
    found: dict[str, str | None] = {}
    for one in given:
        key, equals, value = one.partition("=")
        if not equals:
            key = one.removesuffix("-")
        if not key or (not equals and not one.endswith("-")):
            raise InvalidInputError(f"{one!r} is no label", fix=_FIX)
        if key in found:
            raise InvalidInputError(f"the label {key!r} is given twice", fix="give each label once")
        found[key] = value if equals else None
    return found

"""``elasticdl namespaces``: who is apart from whom, what their jobs may read, what they may take."""

from __future__ import annotations

import re
import sys
from collections.abc import Sequence
from typing import Annotated, Any

import typer

from elasticdl.cli.connection import connect
from elasticdl.cli.formats import FormatOption, JsonOption, choose_format, print_data
from elasticdl.cli.output import print_table, write_line
from elasticdl_core.errors import ConflictError, InvalidInputError, NotFoundError

app = typer.Typer(
    no_args_is_help=True,
    help="Make, list, change and remove namespaces.",
    epilog="""Examples:

    elasticdl namespaces create team-a --data-root /data/team-a

    elasticdl namespaces set team-a --limit guaranteed_slots=4 --limit max_slots=8 --limit max_priority=10

    elasticdl namespaces set team-a --source shop=postgresql://reader@db.example/shop

    elasticdl namespaces delete team-a""",
)
Name = Annotated[str, typer.Argument(metavar="NAME", help="Of the namespace.", show_default=False)]
Roots = Annotated[
    list[str] | None,
    typer.Option(
        "--data-root",
        help="A root of its jobs' data besides their own folders: an absolute path, or how a URL begins; repeatable.",
        show_default=False,
    ),
]
Limits = Annotated[
    list[str] | None,
    typer.Option("--limit", help="A limit, as NAME=NUMBER; repeatable.", show_default=False),
]
Sources = Annotated[
    list[str] | None,
    typer.Option(
        "--source",
        metavar="NAME=URL",
        help="A database that its statements may read: sqlite:///FILE or postgresql://USER:PASSWORD@HOST/DATABASE; - "
        "reads the URL from standard input; repeatable.",
        show_default=False,
    ),
]


@app.command("create", epilog="Example: elasticdl namespaces create team-a --data-root /data/team-a")
def create(name: Name, data_root: Roots = None, limit: Limits = None, source: Sources = None) -> None:
    """Make a namespace; for administrators of the cluster."""
    limits, sources = _limits(limit), _sources(source, ())
    with connect() as client:
        if any(one["name"] == name for one in client.namespaces()):
            raise ConflictError(
                f"there is a namespace {name!r} already", fix=f"change it: `elasticdl namespaces set {name}`"
            )
        client.put_namespace(name, data_roots=data_root or [], limits=limits or {}, sources=sources)
    write_line(f"The namespace {name} is made; give somebody a token of it: `elasticdl tokens create`.")


@app.command("set", epilog="Example: elasticdl namespaces set team-a --data-root /data/team-a --limit max_streams=20")
def change(
    name: Name,
    data_root: Roots = None,
    limit: Limits = None,
    source: Sources = None,
    no_source: Annotated[
        list[str] | None, typer.Option("--no-source", metavar="NAME", help="Take a source away; repeatable.")
    ] = None,
    no_data_roots: Annotated[bool, typer.Option("--no-data-roots", help="Take all data roots away.")] = False,
    no_limits: Annotated[bool, typer.Option("--no-limits", help="Take all limits away.")] = False,
) -> None:
    """Change a namespace: data roots and limits that are given replace those it has; all others stay."""
    if (data_root and no_data_roots) or (limit and no_limits):
        raise InvalidInputError("an option takes away what another one gives", fix="leave one of them out")
    roots = [] if no_data_roots else data_root
    limits = {} if no_limits else _limits(limit)
    sources = _sources(source, no_source or ())
    if roots is None and limits is None and sources is None:
        raise InvalidInputError("there is nothing to change", fix="give --data-root, --limit or --source")
    with connect() as client:
        if all(one["name"] != name for one in client.namespaces()):
            raise NotFoundError(
                f"there is no namespace {name!r}", fix=f"make it: `elasticdl namespaces create {name}`"
            )
        client.put_namespace(name, data_roots=roots, limits=limits, sources=sources)
    write_line(f"The namespace {name} is changed.")


@app.command("list", epilog="Example: elasticdl namespaces list")
def list_namespaces(output: FormatOption = None, as_json: JsonOption = False) -> None:
    """List the namespaces that you see."""
    chosen = choose_format(output, as_json)
    with connect() as client:
        found = client.namespaces()
    if chosen.of_data:
        print_data(found, chosen)
        return
    rows = [
        (
            str(one["name"]),
            str(one["jobs"]),
            str(one["tokens"]),
            ", ".join(one["data_roots"]) or "-",
            ", ".join(f"{name}={value}" for name, value in one["limits"].items()) or "-",
            ", ".join(one["sources"]) or "-",
        )
        for one in found
    ]
    print_table(("name", "jobs", "tokens", "data roots", "limits", "sources"), rows, empty="No namespaces.")


@app.command("delete", epilog="Example: elasticdl namespaces delete team-a")
def delete(name: Name) -> None:
    """Remove a namespace without jobs; its tokens are refused from the next request on."""
    with connect() as client:
        client.delete_namespace(name)
    write_line(f"The namespace {name} is removed.")


def _sources(given: list[str] | None, removed: Sequence[str]) -> dict[str, str | None] | None:
    found: dict[str, str | None] = dict.fromkeys(removed)
    for one in given or ():
        name, equals, url = one.partition("=")
        url = sys.stdin.readline().strip() if url == "-" else url
        if not (name and equals and url) or name in found:
            raise InvalidInputError(f"{name!r} is no source, or is there twice", fix="write NAME=URL")
        found[name] = url
    return found or None


def _limits(given: list[str] | None) -> dict[str, Any] | None:
    if given is None:
        return None
    found = {}
    for one in given:
        name, equals, value = one.partition("=")
        if not (name and equals and re.fullmatch(r"-?[0-9]{1,9}", value)):
            raise InvalidInputError(f"{one!r} is no limit", fix="write NAME=NUMBER, e.g. --limit max_streams=20")
        found[name] = int(value)
    return found

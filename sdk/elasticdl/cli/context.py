"""``elasticdl context``: the APIs that this user works with, by name."""

from __future__ import annotations

import os
import sys
from pathlib import Path
from typing import Annotated

import typer

from elasticdl.cli.formats import FormatOption, JsonOption, choose_format, print_data
from elasticdl.cli.output import print_table, write_line
from elasticdl_core.errors import InvalidInputError

app = typer.Typer(
    no_args_is_help=True,
    help="Keep the addresses and tokens of several clusters under names.",
    epilog="""Examples:

    elasticdl context add lab --url https://lab.example.org --token-file token.txt --use

    elasticdl context list

    elasticdl context use lab

`elasticdl --context lab jobs list` asks that API once.""",
)


def complete_context(incomplete: str) -> list[str]:
    """Names of contexts for a shell; none, and no word, where the file cannot be read."""
    from elasticdl.client.contexts import contexts_file, read_contexts
    from elasticdl_core.errors import ElasticDLError

    try:
        return [name for name in read_contexts(contexts_file()).known if name.startswith(incomplete)]
    except ElasticDLError:
        return []


Name = Annotated[
    str, typer.Argument(metavar="NAME", help="The context.", show_default=False, autocompletion=complete_context)
]


def choose(name: str) -> None:
    """Lets all that this command asks go to a context.

    Raises:
        InvalidInputError: the environment names an API, which goes before contexts.
    """
    from elasticdl.client.contexts import CONTEXT_VARIABLE
    from elasticdl.client.endpoint import URL_VARIABLE

    if os.environ.get(URL_VARIABLE):
        raise InvalidInputError(
            f"{URL_VARIABLE} is set and goes before --context {name}",
            fix=f"unset {URL_VARIABLE}, or leave --context out",
        )
    os.environ[CONTEXT_VARIABLE] = name


@app.command("list", epilog="Example: elasticdl context list")
def list_contexts(output: FormatOption = None, as_json: JsonOption = False) -> None:
    """List the contexts; tokens are not shown."""
    from elasticdl.client.contexts import contexts_file, read_contexts

    chosen = choose_format(output, as_json)
    contexts = read_contexts(contexts_file())
    if chosen.of_data:
        data = [
            {
                "name": name,
                "url": one.url,
                "token": bool(one.token),
                "ca_file": one.ca_file,
                "current": name == contexts.current,
            }
            for name, one in contexts.known.items()
        ]
        print_data(data, chosen)
        return
    rows = [
        ("*" if name == contexts.current else "", name, one.url, "yes" if one.token else "no")
        for name, one in contexts.known.items()
    ]
    print_table(("", "NAME", "ADDRESS", "TOKEN"), rows, empty="no contexts")


@app.command("add", epilog="Example: elasticdl context add lab --url https://lab.example.org --token-file token.txt")
def add(
    name: Name,
    url: Annotated[str, typer.Option("--url", help="Address of the API.", show_default=False)],
    token_file: Annotated[
        str, typer.Option("--token-file", metavar="FILE", help="File with the token; - reads it from the input.")
    ] = "",
    ca_file: Annotated[
        str, typer.Option("--ca-file", metavar="FILE", help="Certificates that the API is verified by under https.")
    ] = "",
    use_it: Annotated[bool, typer.Option("--use", help="Use it from now on.")] = False,
) -> None:
    """Add a context, or replace the one of that name."""
    from elasticdl.client.contexts import Context, contexts_file, read_contexts, write_contexts
    from elasticdl.client.endpoint import find_endpoint

    token = _read_token(token_file) if token_file else ""
    endpoint = find_endpoint(url, token, {})
    contexts = read_contexts(contexts_file()).add(name, Context(endpoint.url, token, _check_ca(ca_file)))
    write_contexts(contexts_file(), contexts.use(name) if use_it else contexts)
    write_line(f"{name}  {endpoint.url}")


def _check_ca(path: str) -> str:
    """The file's path from anywhere; it can be used now, at least."""
    if not path:
        return ""
    from elasticdl_runtime.home import expand_home
    from elasticdl_runtime.tls import trust

    found = str(expand_home(path).absolute())
    trust(found)
    return found


def _read_token(place: str) -> str:
    try:
        return (sys.stdin.read() if place == "-" else Path(place).read_text(encoding="utf-8")).strip()
    except UnicodeDecodeError:
        raise InvalidInputError(f"{place} is not text", fix="give the file that holds the token alone") from None


@app.command("use", epilog="Example: elasticdl context use lab")
def use(name: Name) -> None:
    """Use a context from now on; ELASTICDL_API_URL goes before it."""
    from elasticdl.client.contexts import contexts_file, read_contexts, write_contexts

    contexts = read_contexts(contexts_file()).use(name)
    write_contexts(contexts_file(), contexts)
    write_line(f"{name}  {contexts.known[name].url}")


@app.command("remove", epilog="Example: elasticdl context remove lab")
def remove(name: Name) -> None:
    """Remove a context with its token."""
    from elasticdl.client.contexts import contexts_file, read_contexts, write_contexts

    write_contexts(contexts_file(), read_contexts(contexts_file()).remove(name))
    write_line(f"{name}  removed")

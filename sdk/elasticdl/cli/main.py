"""The command line: ``elasticdl``. Importing it is light; commands import what they need when they run."""

from __future__ import annotations

import sys
from typing import Annotated

import typer

from elasticdl.cli import (
    cluster,
    context,
    data,
    doctor,
    job_commands,
    jobs,
    namespaces,
    reserve,
    scheduler,
    simulate,
    sql,
    tensorboard,
    tokens,
    zoo,
)
from elasticdl.cli.context import choose, complete_context
from elasticdl.cli.formats import FormatOption, JsonOption, choose_format, print_data
from elasticdl.cli.output import write_line
from elasticdl_core.installation import own_distribution, own_version

_COMMANDS = "elasticdl.commands"
"""Entry points of the distribution that add verbs: those of services, which this package may not import."""
_EPILOG = """Start here:

    elasticdl zoo init zoo

    elasticdl data generate digits data/digits

    elasticdl train --local --model_zoo=zoo --model_def=digits.forward --training_data=data/digits/train

    elasticdl up --detach

    elasticdl train --model_zoo=zoo --model_def=digits.forward --training_data=data/digits/train --num_workers=2"""


def _version_asked(asked: bool) -> None:
    if asked:
        show_version()
        raise typer.Exit


def build_app() -> typer.Typer:
    """The whole command line."""
    app = typer.Typer(
        name="elasticdl",
        epilog=_EPILOG,
        no_args_is_help=True,
        pretty_exceptions_enable=False,
        rich_markup_mode="rich",
        context_settings={
            "help_option_names": ["-h", "--help"],
            "token_normalize_func": lambda token: token.replace("_", "-"),
        },
    )
    job_commands.register(app)
    sql.register(app)
    app.add_typer(jobs.app, name="jobs", rich_help_panel="Jobs")
    for entry in own_distribution().entry_points.select(group=_COMMANDS):
        entry.load()(app)
    cluster.register(app)
    reserve.register(app)
    doctor.register(app)
    scheduler.register(app)
    tensorboard.register(app)
    app.add_typer(context.app, name="context", rich_help_panel="Access")
    simulate.register(app)
    tokens.register(app)
    app.add_typer(namespaces.app, name="namespaces", rich_help_panel="Access")
    app.add_typer(zoo.app, name="zoo", rich_help_panel="Models and data")
    app.add_typer(data.app, name="data", rich_help_panel="Models and data")
    app.command("version")(show_version)
    app.callback()(root)
    return app


def root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_version_asked)
    ] = False,
    chosen: Annotated[
        str,
        typer.Option("--context", metavar="NAME", help="Ask this API.", autocompletion=complete_context),
    ] = "",
) -> None:
    """Elastic deep-learning training: fill in a few functions, submit, done."""
    if chosen:
        choose(chosen)


def show_version(output: FormatOption = None, as_json: JsonOption = False) -> None:
    """Print the version of ElasticDL and of what it runs on."""
    chosen = choose_format(output, as_json)
    if chosen.of_data:
        print_data({"elasticdl": own_version(), "python": sys.version.split()[0]}, chosen)
        return
    write_line(f"elasticdl {own_version()}, Python {sys.version.split()[0]}")


def main(args: list[str] | None = None) -> None:
    """Runs a command; ends the process with its exit code.

    Args:
        args: arguments after the program's name; those of the process by default.
    """
    from elasticdl.cli.ending import run_to_its_end

    sys.exit(run_to_its_end(lambda: build_app()(args, prog_name="elasticdl")))


if __name__ == "__main__":
    main()

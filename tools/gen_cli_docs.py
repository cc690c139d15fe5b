"""Writes docs/cli.md from the command line itself; with --check it only tells whether the file is up to date."""

from __future__ import annotations

import argparse
import difflib
import inspect
import sys
from collections.abc import Iterator
from enum import Enum
from pathlib import Path
from typing import Annotated, Any, get_args, get_origin

import typer

from elasticdl.cli.main import build_app
from elasticdl.cli.removed_flags import REMOVED

TARGET = Path(__file__).resolve().parents[1] / "docs" / "cli.md"
INTRODUCTION = """# The command line

This page is made from the command line by `tools/gen_cli_docs.py`; change the code, not the page.

Names of options take underscores and dashes alike: `--model_zoo` is `--model-zoo`. An unknown option is refused with
a suggestion. Options that are true or false are written `--use_async`, `--use_async=false` or `--no-use_async`.
Key-value options are pairs separated by semicolons with JSON values, or one JSON object:
`--optimizer_params='lr=0.01;nesterov=true'`. Nothing is evaluated. Variables (`--envs`, `--labels`) are taken as
they stand, and may be separated by commas too.

The API is found from `ELASTICDL_API_URL` and `ELASTICDL_TOKEN`, else it is that of the context in use (see
`elasticdl context` and `elasticdl --context NAME ...`), else the cluster that `elasticdl up` started on this machine.
Contexts are kept in `$XDG_CONFIG_HOME/elasticdl/contexts.json`, readable for their user alone.
`ELASTICDL_TOKEN` is sent to the API of `ELASTICDL_API_URL` or of this machine, not to that of a context.
Under https an API is verified by the certificates of this machine, of `ELASTICDL_CA_FILE`, or of its context
(`--ca-file`).

A job is named by its id, the beginning of it, its name if one job has it, or `last` for the newest one.
`elasticdl --install-completion` lets the shell complete commands, options, jobs and contexts.

Ctrl-C while a job is followed leaves the job alone: it goes on, and the command says how to watch it again
(`elasticdl jobs get ID --watch`) and how to cancel it (`elasticdl jobs cancel ID`). With `--local` it ends the run.

What others wrote (names, reasons, logs, tracebacks) is shown with its control characters as escapes (`\\x1b`), so
that nothing in it acts on the terminal; `jobs logs --raw` prints a log as it is. Letters that the locale lacks are
shown as escapes too. No error ends in a traceback; `ELASTICDL_DEBUG=1` lets the one of an internal error through.

| exit code | means |
|---|---|
| 0 | done; of a followed job: it succeeded |
| 1 | the job failed, or the command could not be carried out, or its output could not be written |
| 2 | an option, a value or the model module is wrong; nothing was submitted |
| 3 | the job was cancelled |
| 4 | the API does not answer |
| 5 | what `jobs wait` waits for did not come in its `--timeout` |
| 130 | Ctrl-C |
"""


def render() -> str:
    """The page."""
    root = typer.main.get_command(build_app())
    lines = [INTRODUCTION]
    for name, command in _commands(root, "elasticdl"):
        lines.extend(_section(name, command))
    lines.extend(_removed())
    return "\n".join(lines).rstrip() + "\n"


def _commands(group: Any, name: str) -> Iterator[tuple[str, Any]]:
    for verb, command in group.commands.items():
        if command.hidden:
            continue
        if getattr(command, "commands", None):
            yield f"{name} {verb}", command
            yield from _commands(command, f"{name} {verb}")
        else:
            yield f"{name} {verb}", command


def _section(name: str, command: Any) -> Iterator[str]:
    yield f"\n{'#' * (len(name.split()))} {name}\n"
    yield _clean(command.help or "")
    arguments = [_argument(param) for param in command.params if param.param_type_name == "argument"]
    if not getattr(command, "commands", None):
        yield f"\n```\n{' '.join([name, *arguments, '[OPTIONS]'])}\n```"
    panels: dict[str, list[str]] = {}
    for param in command.params:
        if param.param_type_name == "option" and not param.hidden and param.name != "help":
            panels.setdefault(getattr(param, "rich_help_panel", None) or "", []).append(_row(command, param))
    for panel, rows in panels.items():
        yield f"\n| {panel or 'option'} | value | |\n|---|---|---|"
        yield from rows
    if command.epilog:
        yield "\n" + _examples(command.epilog)


def _argument(param: Any) -> str:
    shown = str(param.metavar or param.name.upper())
    return shown if param.required or shown.startswith("[") else f"[{shown}]"


def _row(command: Any, param: Any) -> str:
    names = ", ".join(f"`{name}`" for name in [*param.opts, *param.secondary_opts])
    value = "" if getattr(param, "is_flag", False) else f"`{_metavar(command, param)}`"
    shown = param.show_default
    default = shown if isinstance(shown, str) else param.default
    told = isinstance(shown, str) or (shown and default not in (None, "", False, (), []) and not callable(default))
    note = f" (default {getattr(default, 'value', default)})" if told else ""
    text = (_clean(param.help or "") + note).strip()
    return f"| {names} | {value} | {text} |".replace("|  |", "| |")


def _metavar(command: Any, param: Any) -> str:
    """The placeholder of a value, by the annotation of the command's function."""
    if param.metavar:
        return str(param.metavar).replace("|", "\\|")
    annotation = inspect.signature(command.callback, eval_str=True).parameters[param.name].annotation
    kinds = [kind for kind in _plain_types(annotation) if kind is not type(None)]
    choices = [kind for kind in kinds if issubclass(kind, Enum)]
    if choices:
        return "\\|".join(str(member.value) for member in choices[0])
    return {int: "N", float: "NUMBER", Path: "PATH"}.get(kinds[0], "TEXT")


def _plain_types(annotation: Any) -> Iterator[type]:
    """The types in an annotation: ``Annotated[list[int] | None, ...]`` has ``int`` and ``None``."""
    arguments = get_args(annotation)
    if not arguments:
        yield annotation
    elif get_origin(annotation) is Annotated:
        yield from _plain_types(arguments[0])
    else:
        for argument in arguments:
            yield from _plain_types(argument)


def _clean(text: str) -> str:
    return " ".join(text.replace("\f", " ").split()).replace("|", "\\|")


def _examples(epilog: str) -> str:
    """The epilog with its commands as code."""
    shown = []
    for paragraph in epilog.split("\n\n"):
        text = " ".join(paragraph.split())
        label, colon, rest = text.partition(": ")
        if text.startswith("elasticdl "):
            shown.append(f"```\n{text}\n```")
        elif colon and rest.startswith("elasticdl ") and label.startswith("Example"):
            shown.append(f"```\n{rest}\n```")
        elif not text.startswith("Example"):
            shown.append(text)
    return "\n".join(shown).replace("\n```\n```\n", "\n")


def _removed() -> Iterator[str]:
    yield "\n## Options of the original that are gone\n"
    yield "They are refused with the reason and with what to do now.\n\n| option | why | now |\n|---|---|---|"
    for pattern, gone in REMOVED.items():
        names = ", ".join(f"`--{name}`" for name in _readable(pattern))
        yield f"| {names} | {gone.reason} | {gone.instead} |"


def _readable(pattern: str) -> list[str]:
    plain = pattern.replace(r"\w+", "*").replace(r"\w*", "*").replace("s?", "")
    for group, members in {
        "(request|limit)": ("request", "limit"),
        "(throttle|start_delay)": ("throttle", "start_delay"),
    }.items():
        if group in plain:
            return [plain.replace(group, member) for member in members]
    return plain.split("|")


def main() -> int:
    """Writes or checks the page; returns the exit code."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--check", action="store_true", help="change nothing; fail if the page is out of date")
    wanted = render()
    if not parser.parse_args().check:
        TARGET.write_text(wanted)
        return 0
    present = TARGET.read_text() if TARGET.exists() else ""
    if present == wanted:
        return 0
    sys.stdout.writelines(
        difflib.unified_diff(present.splitlines(True), wanted.splitlines(True), "docs/cli.md", "now")
    )
    print("docs/cli.md is out of date: run python tools/gen_cli_docs.py")
    return 1


if __name__ == "__main__":
    sys.exit(main())

"""``elasticdl zoo``: create a model zoo, pack it, upload it."""

from __future__ import annotations

from importlib import resources
from importlib.resources.abc import Traversable
from pathlib import Path
from typing import Annotated

import typer

from elasticdl.cli.formats import FormatOption, JsonOption, PlainFormatOption, choose_format, print_data
from elasticdl.cli.output import write_line
from elasticdl.recognition import TENSORFLOW, TORCH
from elasticdl_core.errors import ConflictError, InvalidInputError

app = typer.Typer(
    no_args_is_help=True,
    help="Begin a model zoo, pack it, upload it.",
    epilog="""Examples:

    elasticdl zoo init zoo

    elasticdl zoo init zoo --framework torch

    elasticdl zoo build zoo --output zoo.zip

    elasticdl zoo push zoo""",
)
_TEMPLATES = {TENSORFLOW: "zoo_template", TORCH: "zoo_template_torch"}
Zoo = Annotated[Path, typer.Argument(metavar="DIR", help="Directory of the model modules.", show_default=False)]


@app.command("init", epilog="Example: elasticdl zoo init zoo")
def init(
    directory: Annotated[Path, typer.Argument(metavar="DIR", help="Directory to make.", show_default=False)],
    force: Annotated[bool, typer.Option("--force", help="Replace files of the same name.")] = False,
    framework: Annotated[str, typer.Option("--framework", help="tensorflow or torch.")] = TENSORFLOW,
) -> None:
    """Make a model zoo with a working model for handwritten digits and a README."""
    if framework not in _TEMPLATES:
        raise InvalidInputError(f"--framework {framework!r} is unknown", fix=f"give one of {', '.join(_TEMPLATES)}")
    template = resources.files("elasticdl.cli").joinpath(_TEMPLATES[framework])
    written = copy_template(template, directory, force=force)
    write_line("\n".join(str(path) for path in written))
    write_line(f"next: read {directory / 'README.md'}, or go straight on:\n")
    write_line("  elasticdl data generate digits data/digits")
    write_line(f"  elasticdl train --local --model_zoo={directory} --model_def=digits.forward \\")
    write_line("      --training_data=data/digits/train --validation_data=data/digits/validation --num_epochs=5")


def copy_template(template: Traversable, directory: Path, *, force: bool) -> list[Path]:
    """Copies the files of the template; returns their paths.

    Raises:
        ConflictError: a file is there already.
    """
    sources = sorted(
        (source for source in template.iterdir() if source.name.endswith((".py", ".md"))), key=lambda one: one.name
    )
    targets = [directory / source.name for source in sources if source.name != "__init__.py"]
    taken = [target for target in targets if target.exists()]
    if directory.exists() and not directory.is_dir():
        raise ConflictError(f"{directory} is not a directory", fix="give another place")
    if taken and not force:
        raise ConflictError(f"{taken[0]} is there already", fix="give another directory, or --force to replace it")
    directory.mkdir(parents=True, exist_ok=True)
    for source in sources:
        if source.name != "__init__.py":
            (directory / source.name).write_bytes(source.read_bytes())
    return targets


@app.command("build", epilog="Example: elasticdl zoo build zoo --output zoo.zip")
def build(
    zoo: Zoo,
    output: Annotated[Path | None, typer.Option("--output", metavar="FILE", help="Write the bundle here.")] = None,
    shown: PlainFormatOption = None,
    as_json: JsonOption = False,
) -> None:
    """Pack a model zoo into a bundle and print its digest; the same files always give the same digest."""
    from elasticdl_runtime.bundles import pack_bundle

    chosen = choose_format(shown, as_json)
    content, digest = pack_bundle(zoo)
    if output is not None:
        output.parent.mkdir(parents=True, exist_ok=True)
        output.write_bytes(content)
    if chosen.of_data:
        print_data({"digest": digest, "size": len(content), "path": str(output) if output else None}, chosen)
    else:
        write_line(digest)


@app.command("push", epilog="Example: elasticdl zoo push zoo")
def push(zoo: Zoo, output: FormatOption = None, as_json: JsonOption = False) -> None:
    """Pack and upload a model zoo and print its digest, which train takes as --model_bundle."""
    from elasticdl.client import Client

    chosen = choose_format(output, as_json)
    with Client() as client:
        digest = client.upload(zoo)
    if chosen.of_data:
        print_data({"digest": digest}, chosen)
    else:
        write_line(digest)

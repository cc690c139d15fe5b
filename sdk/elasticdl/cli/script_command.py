"""``elasticdl run``: a script with a training loop of its own, as a job or in this process."""

from __future__ import annotations

import shlex
from collections.abc import Sequence
from pathlib import Path

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.job.fields import SCRIPT

_FIX = "write `elasticdl run SCRIPT.py [FLAGS] -- [ARGUMENTS OF THE SCRIPT]`"
OWN = ("model_zoo", "model_bundle", "model_def", "script_args")
"""Fields of a job that follow from the script."""


def flags_of_script(args: Sequence[str]) -> list[str]:
    """The command line of ``elasticdl run``, as the flags of a job.

    The script is the one word that ends with ``.py``; its own arguments stand after ``--``.

    Raises:
        InvalidInputError: there is no script, or it cannot be named in a bundle.
    """
    if {"-h", "--help"} & set(args[: args.index("--")] if "--" in args else args):
        return ["--help"]
    at = args.index("--") if "--" in args else len(args)
    flags, own = list(args[:at]), list(args[at + 1 :])
    scripts = [word for word in flags if word.endswith(".py") and not word.startswith("-")]
    if len(scripts) != 1:
        raise InvalidInputError(
            f"there are several scripts: {', '.join(scripts)}" if scripts else "there is no script to run", fix=_FIX
        )
    script = scripts[0]
    flags.remove(script)
    for flag in flags:
        name = flag.removeprefix("--").partition("=")[0].replace("-", "_")
        if flag.startswith("--") and name in OWN:
            raise InvalidInputError(f"{flag} means nothing to `elasticdl run`", fix=_FIX)
    path = Path(script).expanduser().absolute()
    if not path.is_file():
        raise InvalidInputError(f"there is no script {path}", fix=_FIX)
    if path.suffix != ".py" or not path.stem.isidentifier():
        raise InvalidInputError(
            f"{path.name} is no name of a Python file that can be imported",
            fix="call it by letters, digits and underscores, with .py at the end",
        )
    return [
        f"--model_zoo={path.parent}",
        f"--model_def={path.stem}.{SCRIPT}",
        *([f"--script_args={shlex.join(own)}"] if own else []),
        *flags,
    ]

"""Runs a user's script, which has a training loop of its own."""

from __future__ import annotations

import runpy
import shlex
import sys
from pathlib import Path

from elasticdl_core.errors import UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_worker.user_code.modules import guarded, user_location
from elasticdl_worker.user_code.zoo_path import make_importable, refuse_hidden


def run_script(spec: JobSpec, zoo: Path) -> None:
    """Runs the script of a job to its end, as ``__main__`` and with the arguments of the job.

    Args:
        spec: the job.
        zoo: the directory of the script; it and its parent become importable, after everything that is installed.

    Raises:
        UserCodeError: it is not there, it raised, or it ended with an exit code.
    """
    zoo = zoo.resolve()
    path = zoo.joinpath(*spec.model_def.split(".")[:-1]).with_suffix(".py")
    if not path.is_file():
        raise UserCodeError(f"there is no script {path}", fix="name one that is in the directory")
    make_importable(zoo)
    refuse_hidden(zoo, path)
    sys.argv = [str(path), *shlex.split(spec.script_args)]
    try:
        with guarded("the script", (zoo,), fix=f"correct {path.name}"):
            _run(path, zoo)
    except UserCodeError as error:
        if error.traceback:
            raise
        # One of ours, which does not know where in the script it was raised.
        raise UserCodeError(error.message + user_location(error, (zoo,)), fix=error.fix) from error


def _run(path: Path, zoo: Path) -> None:
    try:
        runpy.run_path(str(path), run_name="__main__")
    except SystemExit as error:
        if error.code not in (None, 0):
            raise UserCodeError(
                f"the script called sys.exit({error.code!r}){user_location(error, (zoo,))}",
                fix=f"correct {path.name}, or the arguments that it gets after `--`",
            ) from error

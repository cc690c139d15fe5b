"""Makes a forked process what a new interpreter with its arguments and environment would be."""

from __future__ import annotations

import ctypes
import gc
import os
import runpy
import signal
import sys
import tempfile
from collections.abc import Mapping, Sequence
from pathlib import Path

_ARGUMENTS, _VARIABLES = slice(45, 47), slice(47, 49)
"""Where ``/proc/self/stat`` has the bounds of the two areas, counted from the process's state."""


def enter(environment: Mapping[str, str]) -> None:
    """Replaces all variables of this process."""
    for name in list(os.environ):
        del os.environ[name]
    os.environ.update(environment)


def show_as(argv: Sequence[str], environment: Mapping[str, str]) -> None:
    """Lets ``/proc``, and so ``ps``, show these arguments and variables, as far as there is room.

    Call it after ``enter``: the areas that are overwritten held the variables until then.
    """
    fields = Path("/proc/self/stat").read_bytes().rpartition(b")")[2].split()
    _overwrite(argv, fields[_ARGUMENTS])
    _overwrite([f"{name}={value}" for name, value in environment.items()], fields[_VARIABLES])


def _overwrite(texts: Sequence[str], bounds: list[bytes]) -> None:
    start, end = (int(bound) for bound in bounds)
    if start == 0:
        return  # hidden from this process
    room = end - start
    image = b""
    for text in texts:
        data = os.fsencode(text) + b"\0"
        if len(image) + len(data) < room:
            image += data
    ctypes.memmove(start, image.ljust(room, b"\0"), room)


def prepare_interpreter() -> None:
    """Undoes what the interpreter and the imports remember of the process that it was forked from."""
    signal.signal(signal.SIGINT, signal.default_int_handler)
    signal.signal(signal.SIGPIPE, signal.SIG_IGN)
    signal.signal(signal.SIGXFSZ, signal.SIG_IGN)
    tempfile.tempdir = None
    gc.enable()
    # Forks of one process would all draw the same numbers; Python's own generator is seeded anew by the fork.
    if "numpy.random" in sys.modules:
        sys.modules["numpy.random"].seed()
    if "multiprocessing.process" in sys.modules:
        sys.modules["multiprocessing.process"].current_process().authkey = os.urandom(32)


def run(argv: Sequence[str]) -> None:
    """Runs ``<python> -P -m <module> ...`` or ``<python> -P <file> ...`` as the interpreter's main program."""
    sys.orig_argv[:] = argv
    if argv[2] == "-m":
        sys.argv[:] = ["-m", *argv[4:]]
        runpy.run_module(argv[3], run_name="__main__", alter_sys=True)
    else:
        sys.argv[:] = [argv[2], *argv[3:]]
        runpy.run_path(argv[2], run_name="__main__")

"""The end of every command: an exit code and words for people, whatever went wrong, and never a traceback."""

from __future__ import annotations

import contextlib
import errno
import io
import os
import sys
from collections.abc import Callable
from typing import TextIO

from elasticdl.cli.output import EXIT_FAILED, EXIT_INTERRUPTED, EXIT_OK, exit_code, show_error
from elasticdl_core.errors import ElasticDLError, InvalidInputError

DEBUG_VARIABLE = "ELASTICDL_DEBUG"
"""Set to anything, it lets errors that nobody foresaw through, with their traceback."""


def run_to_its_end(command: Callable[[], object]) -> int:
    """Runs a command and gives its exit code.

    What an ``ElasticDLError`` says is shown. A reader of our output that goes away, such as ``head``, ends a command
    quietly; an output that cannot be written is told, and is a failure.

    Args:
        command: what to run; it may end with ``SystemExit``.
    """
    _prepare_streams()
    code = _run(command)
    written = [_written(stream) for stream in (sys.stdout, sys.stderr)]
    return code if all(written) else code or EXIT_FAILED


def _run(command: Callable[[], object]) -> int:
    try:
        command()
    except SystemExit as end:
        return end.code if isinstance(end.code, int) else EXIT_OK if end.code is None else EXIT_FAILED
    except KeyboardInterrupt:
        return EXIT_INTERRUPTED
    except ElasticDLError as error:
        return _told(error)
    except OSError as error:
        return EXIT_FAILED if error.errno == errno.EPIPE else _told(of_system(error))
    except UnicodeEncodeError:
        # Arguments and names of files may be any bytes; there is no other way for such text to come in.
        fix = "give names, paths and values in UTF-8"
        return _told(InvalidInputError("something that was given holds bytes that are no text", fix=fix))
    except Exception as error:
        if os.environ.get(DEBUG_VARIABLE):
            raise
        fix = f"set {DEBUG_VARIABLE}=1 to see where it happened, and report it"
        return _told(ElasticDLError(f"internal error: {type(error).__name__}: {error}", fix=fix))
    return EXIT_OK


def _told(error: ElasticDLError) -> int:
    with contextlib.suppress(OSError, ValueError):
        show_error(error)
    return exit_code(error)


def of_system(error: OSError) -> ElasticDLError:
    """Words for a refusal of the operating system."""
    why = error.strerror or str(error) or type(error).__name__
    if isinstance(error.filename, str | bytes):
        fix = "check the path, its rights and the space on its disk"
        return InvalidInputError(f"{os.fsdecode(error.filename)}: {why}", fix=fix)
    return ElasticDLError(f"the system refused: {why}", fix="see that there is space, memory and a working output")


def _prepare_streams() -> None:
    """Lets both outputs take every character, in any locale, and be there even where the caller closed them."""
    for name in ("stdout", "stderr"):
        stream = getattr(sys, name)
        if stream is None:
            setattr(sys, name, open(os.devnull, "w", encoding="utf-8"))  # noqa: SIM115, PTH123 - for the process
        elif isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")


def _written(stream: TextIO) -> bool:
    """Whether all that was printed has left this process; if not, nothing is tried again at the interpreter's end."""
    try:
        stream.flush()
    except (OSError, ValueError) as error:
        if isinstance(error, OSError) and error.errno != errno.EPIPE and stream is sys.stdout:
            why = f"the output could not be written: {error.strerror}"
            _told(ElasticDLError(why, fix="print to where there is space"))
        with contextlib.suppress(OSError, ValueError):
            nowhere = os.open(os.devnull, os.O_WRONLY)
            os.dup2(nowhere, stream.fileno())
            os.close(nowhere)
        return False
    return True

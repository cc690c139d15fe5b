"""Paths as people write them: ``~`` is a home directory."""

from __future__ import annotations

import os
from pathlib import Path

from elasticdl_core.errors import InvalidInputError


class NoHomeError(InvalidInputError):
    """A path begins with ``~``, and nobody knows where that is."""


def expand_home(path: str | os.PathLike[str]) -> Path:
    """A path whose first part may be ``~`` or ``~user``.

    Raises:
        NoHomeError: there is no such user, or nobody knows where our own home is.
    """
    try:
        return Path(path).expanduser()
    except RuntimeError:
        raise NoHomeError(
            f"{os.fspath(path)}: there is no home directory that this could mean",
            fix="write the path out, or set HOME",
        ) from None

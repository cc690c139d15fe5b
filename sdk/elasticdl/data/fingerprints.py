"""The state of each source as a job's plan was made from it, which the process that reads it compares."""

from __future__ import annotations

from collections.abc import Mapping

from elasticdl_core.errors import DataError

_planned: dict[str, str] = {}


def expect(planned: Mapping[str, str]) -> None:
    """Says what the sources of this process' job were like when they were listed; it works for one job.

    Args:
        planned: name of a source -> its fingerprint.
    """
    _planned.update(planned)


def planned(beginning: str) -> str:
    """The name of a source of this process' job that begins so; empty if none is known."""
    return next((name for name in _planned if name.startswith(beginning)), "")


def require(name: str, found: str, first: str = "") -> None:
    """Compares a source as it is with what was planned, and with what it was like when it was first looked at here.

    Args:
        name: the source.
        found: its fingerprint now.
        first: that of the first look; empty for none.

    Raises:
        DataError: it has changed; both fingerprints are named.
    """
    for before, when in ((_planned.get(name, ""), "its tasks were planned"), (first, "it was first read")):
        if before and before != found:
            raise DataError(
                f"{name}: was changed after {when}: it was {before}, it is {found}",
                fix="submit the job again, and give files that are written later names of their own",
            )

"""Deadlines of calls whose time depends on a size that is the user's."""

from __future__ import annotations

SLOWEST_BYTES_S = 50e6
"""What memory, sockets and updates move at least, in bytes a second, on a machine that has much else to do."""
SLOWEST_FILE_BYTES_S = 10e6
"""What is written to, or read from, a slow disk that others use as well."""


def deadline_for(seconds: float, nbytes: float) -> float:
    """The seconds that a call may take: so many whatever the size, and those that it takes to move its bytes."""
    return seconds + nbytes / SLOWEST_BYTES_S


def deadline_for_files(seconds: float, nbytes: float) -> float:
    """The same of a call that writes or reads files of so many bytes."""
    return seconds + nbytes / SLOWEST_FILE_BYTES_S

"""Files under the data directory, reached without ever following a link that a job may have planted."""

from __future__ import annotations

import contextlib
import os
import re
import zipfile
from collections.abc import Generator, Iterable
from pathlib import Path
from typing import IO, cast

from elasticdl_core.errors import NotFoundError
from elasticdl_runtime import safe_files

CHUNK = 1 << 18
_JOB_ID = re.compile(r"[a-z0-9][-a-z0-9]{0,60}")


def plain_name(job_id: str) -> str:
    """The job id, if it can be one: it is used in paths and queries.

    Raises:
        NotFoundError: it cannot, so there is no such job.
    """
    if not _JOB_ID.fullmatch(job_id):
        raise NotFoundError("there is no such job", fix="list the jobs: `elasticdl jobs list`, or GET /jobs")
    return job_id


def open_regular(base: Path, relative: str) -> int:
    """Opens a file below ``base`` for reading, as ``safe_files.open_regular``: no link is followed, in either sense.

    Returns:
        A file descriptor; the caller closes it.

    Raises:
        NotFoundError: there is no such file, it leaves ``base``, or it is no regular file of one name.
    """
    try:
        return safe_files.open_regular(base, relative)
    except FileNotFoundError:
        raise missing(relative) from None


def read_pieces(descriptor: int) -> Generator[bytes]:
    """The content of an open file, piece by piece; it stays open."""
    while piece := os.read(descriptor, CHUNK):
        yield piece


def zip_pieces(members: Iterable[tuple[str, Generator[bytes]]]) -> Generator[bytes]:
    """Files as a zip file, piece by piece.

    Args:
        members: the names in the zip file, and the contents, which are read one after the other.
    """
    sink = _Sink()
    with zipfile.ZipFile(cast(IO[bytes], sink), "w", zipfile.ZIP_STORED) as archive:
        for name, pieces in members:
            with archive.open(zipfile.ZipInfo(name), "w", force_zip64=True) as target, contextlib.closing(pieces):
                for piece in pieces:
                    target.write(piece)
                    yield sink.take()
            yield sink.take()
    yield sink.take()


class _Sink:
    """A file for writing whose content is taken from it piece by piece."""

    def __init__(self) -> None:
        self._pieces = bytearray()
        self._position = 0

    def write(self, data: bytes) -> int:
        """Takes data."""
        self._pieces += data
        self._position += len(data)
        return len(data)

    def tell(self) -> int:
        """Bytes written so far."""
        return self._position

    def seek(self, offset: int, whence: int = 0, /) -> int:
        """Refuses: what was given away cannot be changed."""
        raise OSError("not seekable")

    def seekable(self) -> bool:
        """It is not."""
        return False

    def flush(self) -> None:
        """Does nothing: there is nothing below."""

    def take(self) -> bytes:
        """Returns the bytes written since they were last taken."""
        taken = bytes(self._pieces)
        self._pieces.clear()
        return taken


def missing(relative: str) -> NotFoundError:
    """Says that there is no such file."""
    return NotFoundError(
        f"there is no file {relative!r}", fix="list them: `elasticdl jobs get ID`, or GET /jobs/{id}/artifacts"
    )

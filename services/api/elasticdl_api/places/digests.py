"""Artifacts are given away only as they were when the job reported them: their SHA-256 is compared first.

A file is hashed once; after that its identity says that it is the same: device, inode, size, and the times of its
last change, of which nobody can set the second (``ctime``) without setting the clock. What is changed while it is
sent is noticed, too: the last piece goes out only if the file is still as it was.
"""

from __future__ import annotations

import hashlib
import os
from collections import OrderedDict
from collections.abc import Generator
from concurrent.futures import ThreadPoolExecutor
from typing import NamedTuple

from elasticdl_core.errors import ConflictError
from elasticdl_runtime.lifecycle import in_thread

CHUNK = 1 << 18
_HASHED_AT_ONCE = 2
_REMEMBERED = 8192
_DIGITS = frozenset("0123456789abcdef")


class ArtifactChangedError(ConflictError):
    """A file is not what the job reported."""

    code = "artifact_changed"


class FileState(NamedTuple):
    """The facts that tell one state of a file from all others."""

    device: int
    inode: int
    size: int
    modified_ns: int
    changed_ns: int

    @classmethod
    def of(cls, descriptor: int) -> FileState:
        """The state of an open file."""
        found = os.fstat(descriptor)
        return cls(found.st_dev, found.st_ino, found.st_size, found.st_mtime_ns, found.st_ctime_ns)


class ArtifactDigests:
    """Compares files with their digests, a few at a time in threads of its own, and remembers what it saw."""

    def __init__(self) -> None:
        self._threads = ThreadPoolExecutor(_HASHED_AT_ONCE, thread_name_prefix="digests")
        self._known: OrderedDict[FileState, str] = OrderedDict()

    async def require(self, descriptor: int, name: str, size: int, sha256: str) -> None:
        """Compares an open file with what was reported of it.

        Args:
            descriptor: the file; it stays open, at its beginning.
            name: of the artifact, for people.
            size: bytes that it had.
            sha256: its digest, 64 hex digits.

        Raises:
            ArtifactChangedError: it is another one, or no digest was reported.
        """
        if len(sha256) != 64 or not _DIGITS.issuperset(sha256):
            raise ArtifactChangedError(
                f"the artifact {name!r} was reported without a digest, so nobody can tell whether it is the job's",
                fix="run the job again: all that it exports is reported with a digest",
            )
        state = FileState.of(descriptor)
        if state.size == size:
            digest = self._known.get(state)
            if digest is None:
                digest = await in_thread(lambda: _hash(descriptor), threads=self._threads)
                if FileState.of(descriptor) == state:
                    self._remember(state, digest)
            if digest == sha256:
                return
        raise changed(name)

    def _remember(self, state: FileState, digest: str) -> None:
        self._known[state] = digest
        while len(self._known) > _REMEMBERED:
            self._known.popitem(last=False)


def changed(name: str) -> ArtifactChangedError:
    """Says that a file is not what the job made."""
    return ArtifactChangedError(
        f"the artifact {name!r} was changed after the job reported it: its SHA-256 is another one now",
        fix="restore the file, or run the job again; let nothing else write into the job's output",
    )


def unchanged_pieces(descriptor: int, name: str) -> Generator[bytes]:
    """The content of an open file that was compared, piece by piece; it stays open.

    Raises:
        ArtifactChangedError: it was changed meanwhile; the last piece is not given away then.
    """
    state = FileState.of(descriptor)
    held = os.read(descriptor, CHUNK)
    while piece := os.read(descriptor, CHUNK):
        yield held
        held = piece
    if FileState.of(descriptor) != state:
        raise changed(name)
    yield held


def _hash(descriptor: int) -> str:
    """The SHA-256 of an open file, read by position: where its reader is does not change."""
    hasher, position = hashlib.sha256(), 0
    while piece := os.pread(descriptor, 1 << 20, position):
        hasher.update(piece)
        position += len(piece)
    return hasher.hexdigest()

"""Artifacts in object stores, given away only as they were when the job reported them."""

from __future__ import annotations

import hashlib
from collections.abc import Generator
from dataclasses import dataclass

from elasticdl_api.places.digests import CHUNK, changed
from elasticdl_core.errors import NotFoundError
from elasticdl_runtime.object_store import ObjectStore


@dataclass(frozen=True, slots=True)
class StoredArtifact:
    """An object that a job reported.

    Attributes:
        url: of the object.
        name: of the artifact.
        size: bytes that it had.
        sha256: its digest, 64 hex digits.
    """

    url: str
    name: str
    size: int
    sha256: str

    def require(self) -> None:
        """Sees that the object is there, and as long as it was.

        Raises:
            NotFoundError: it is not there.
            ArtifactChangedError: it is another one.
            UnavailableError, PermissionDeniedError: the store does not give it.
        """
        store, name = self._found()
        try:
            size = store.size(name)
        except FileNotFoundError:
            raise NotFoundError(
                f"{self.url} is not there any more",
                fix="run the job again, or restore the object",
            ) from None
        if size != self.size:
            raise changed(self.name)

    def pieces(self) -> Generator[bytes]:
        """Its content, hashed on the way: the last piece is not given away where another one was reported.

        Raises:
            ArtifactChangedError: it is another one.
            UnavailableError, PermissionDeniedError: the store does not give it.
        """
        store, name = self._found()
        digest, held = hashlib.sha256(), b""
        with store.open(name) as file:
            while piece := file.read(CHUNK):
                digest.update(piece)
                if held:
                    yield held
                held = piece
        if digest.hexdigest() != self.sha256:
            raise changed(self.name)
        yield held

    def _found(self) -> tuple[ObjectStore, str]:
        folder, _, name = self.url.rpartition("/")
        return ObjectStore(folder), name

"""A file or directory that is being downloaded: beside its place until it is whole and checked."""

from __future__ import annotations

import hashlib
import tempfile
import uuid
import zipfile
from collections.abc import Mapping
from pathlib import Path, PurePosixPath
from typing import IO

from elasticdl.client.views import Artifact
from elasticdl_core.errors import ConflictError
from elasticdl_runtime import durable


def place_of(directory: Path, name: str) -> Path:
    """The path of an artifact; its name cannot lead out of the directory."""
    parts = PurePosixPath(name).parts
    if not parts or PurePosixPath(name).is_absolute() or ".." in parts:
        raise ConflictError(f"the artifact's name {name!r} leads out of {directory}", fix="fetch it by its URL")
    return directory.joinpath(*parts)


class ArtifactFile:
    """A file beside its final place, moved there when whole."""

    def __init__(self, destination: Path) -> None:
        durable.make_folder(destination.parent)
        self._destination = destination
        self._digest = hashlib.sha256()
        self._path = destination.parent / f".{destination.name}.{uuid.uuid4().hex}.part"
        self._file: IO[bytes] = self._path.open("xb")

    def write(self, piece: bytes) -> None:
        """Adds bytes."""
        self._file.write(piece)
        self._digest.update(piece)

    def keep(self, artifact: Artifact, headers: Mapping[str, str]) -> Path:
        """Checks what came and moves it to its place; a packed directory is unpacked there."""
        self._file.close()
        packed = headers.get("content-type", "").startswith("application/zip") and not artifact.name.endswith(".zip")
        if packed:
            _unpack(self._path, self._destination)
            return self._destination
        if artifact.sha256 and self._digest.hexdigest() != artifact.sha256:
            raise ConflictError(
                f"{artifact.name} came with the SHA-256 {self._digest.hexdigest()}, not {artifact.sha256}",
                fix="download it again; if that does not help, the file on the cluster has been changed",
            )
        durable.place(self._path, self._destination)
        return self._destination

    def discard(self) -> None:
        """Removes what is still lying about."""
        self._file.close()
        self._path.unlink(missing_ok=True)


def _unpack(packed: Path, destination: Path) -> None:
    """Unpacks a directory beside its place and moves it there; no member leads out of it, and no link is made."""
    with tempfile.TemporaryDirectory(dir=destination.parent, prefix=f".{destination.name}.") as folder:
        fresh = Path(folder) / "content"
        fresh.mkdir()
        try:
            with zipfile.ZipFile(packed) as archive:
                archive.extractall(fresh)
        except zipfile.BadZipFile as error:
            raise ConflictError(f"{destination.name} came damaged: {error}", fix="download it again") from None
        if destination.is_dir() and not any(destination.iterdir()):
            destination.rmdir()
        if destination.exists():
            raise ConflictError(f"{destination} is there already", fix="give another place, or remove it first")
        durable.place(fresh, destination)

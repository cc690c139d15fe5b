"""A backup in one file: a tar archive whose last member, the manifest, names all others with their checksums."""

from __future__ import annotations

import hashlib
import io
import json
import os
import shutil
import stat
import tarfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path, PurePosixPath
from typing import IO, Any

from elasticdl_core.errors import ConflictError, InvalidInputError
from elasticdl_runtime import durable

FORMAT = 1
MANIFEST = "manifest.json"
_CHUNK = 1 << 20
_MANIFEST_BYTES = 1 << 30
_FIX = "use another copy of the backup"


@dataclass(slots=True)
class BackupManifest:
    """The manifest of a backup.

    Attributes:
        revision: of the database's schema.
        version: of ElasticDL that made it.
        created_at: seconds since the epoch.
        tables: name, columns and rows of each table.
        sequences: the last value of each.
        files: SHA-256 and size of each member.
        format: of the archive.
        root: the data directory that paths in the tables lead to; empty in backups that do not say it.
    """

    revision: str
    version: str
    created_at: float
    tables: list[dict[str, Any]]
    sequences: dict[str, int]
    files: dict[str, dict[str, Any]] = field(default_factory=dict)
    format: int = FORMAT
    root: str = ""


class BackupWriter:
    """Writes a backup; nothing has its name before it is complete.

    Args:
        path: the backup; readable for its owner alone, as it holds everything that users told the cluster.

    Raises:
        InvalidInputError: it cannot be written there.
    """

    def __init__(self, path: Path) -> None:
        if not path.name or (path.exists() and not path.is_file()):
            raise InvalidInputError(f"{path} is not a regular file", fix="give the file that shall be the backup")
        self._path = path
        self._temporary = path.with_name(f".{path.name}.{os.getpid()}.tmp")
        try:
            descriptor = os.open(self._temporary, os.O_WRONLY | os.O_CREAT | os.O_TRUNC | os.O_NOFOLLOW, 0o600)
        except OSError as error:
            raise InvalidInputError(
                f"{path} cannot be written: {error.strerror}", fix="give a file in a folder that is yours"
            ) from None
        self._file = os.fdopen(descriptor, "wb")
        self._archive = tarfile.open(fileobj=self._file, mode="w", format=tarfile.PAX_FORMAT)  # noqa: SIM115
        self._files: dict[str, dict[str, Any]] = {}

    def add(self, name: str, source: IO[bytes]) -> None:
        """Adds what an open file holds now, no more if it grows."""
        size = os.fstat(source.fileno()).st_size
        member = tarfile.TarInfo(name)
        member.size, member.mode, member.mtime = size, 0o600, int(time.time())
        reader = _Hashing(source, size)
        self._archive.addfile(member, reader)
        self._files[name] = {"size": size, "sha256": reader.hasher.hexdigest()}

    def add_file(self, name: str, path: Path) -> None:
        """Adds a file."""
        with path.open("rb") as file:
            self.add(name, file)

    def add_tree(self, root: Path, prefix: str) -> None:
        """Adds the regular files below a folder; no link is followed, and what goes meanwhile is left out."""
        folders = [root]
        while folders:  # not os.walk, whose stack grows with the depth
            try:
                with os.scandir(folders.pop()) as entries:
                    found = sorted(entries, key=lambda entry: entry.name)
            except OSError:
                continue
            folders += [Path(entry.path) for entry in reversed(found) if entry.is_dir(follow_symlinks=False)]
            for path in [Path(entry.path) for entry in found if entry.is_file(follow_symlinks=False)]:
                try:
                    descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK | os.O_CLOEXEC)
                except OSError:
                    continue
                with os.fdopen(descriptor, "rb") as file:
                    if stat.S_ISREG(os.fstat(descriptor).st_mode):
                        self.add(f"{prefix}/{path.relative_to(root).as_posix()}", file)

    def finish(self, manifest: BackupManifest) -> None:
        """Writes the manifest and gives the backup its name."""
        manifest.files = self._files
        text = json.dumps({name: getattr(manifest, name) for name in BackupManifest.__slots__}).encode()
        member = tarfile.TarInfo(MANIFEST)
        member.size, member.mode = len(text), 0o600
        self._archive.addfile(member, io.BytesIO(text))
        self._archive.close()
        self._file.close()
        durable.place(self._temporary, self._path)

    def abandon(self) -> None:
        """Removes what was written of a backup that failed; does nothing after its end."""
        self._file.close()
        self._temporary.unlink(missing_ok=True)


class _Hashing:
    """Reads exactly so many bytes, and hashes them; a file that shrank is filled with zeros."""

    def __init__(self, source: IO[bytes], size: int) -> None:
        self._source, self._left = source, size
        self.hasher = hashlib.sha256()

    def read(self, wanted: int = -1) -> bytes:
        """The next bytes."""
        count = self._left if wanted < 0 else min(wanted, self._left)
        data = self._source.read(count)
        data += bytes(count - len(data))
        self._left -= len(data)
        self.hasher.update(data)
        return data


def read_manifest(path: Path) -> BackupManifest:
    """The manifest of a backup, all of whose files are there and as they were written.

    Raises:
        InvalidInputError: it is no backup, or damaged.
        ConflictError: a newer version made it.
    """
    seen: dict[str, dict[str, Any]] = {}
    manifest: dict[str, Any] | None = None
    with _opened(path) as archive:
        for name, member, source in _members(archive, path):
            if name == MANIFEST:
                if member.size > _MANIFEST_BYTES:
                    raise _damaged(path, "its manifest is too large")
                manifest = _parse(path, source.read())
                continue
            digest = hashlib.file_digest(source, "sha256").hexdigest()  # type: ignore[arg-type]
            seen[name] = {"size": member.size, "sha256": digest}
    if not isinstance(manifest, dict) or "format" not in manifest:
        raise _damaged(path, "it has no manifest: it was cut off, or is no backup of ours")
    if manifest["format"] != FORMAT:
        raise ConflictError(f"{path} is a backup of format {manifest['format']}", fix="use a newer ElasticDL")
    try:
        found = BackupManifest(**manifest)
    except TypeError:
        raise _damaged(path, "its manifest is not one of ours") from None
    if found.files != seen:
        wrong = sorted(name for name in {*found.files, *seen} if found.files.get(name) != seen.get(name))
        raise _damaged(path, f"{wrong[0]!r} is missing or not as it was written")
    return found


def extract(path: Path, prefix: str, target: Path) -> int:
    """Writes the members below a prefix into a folder; returns how many. The manifest was read before.

    Raises:
        InvalidInputError: a member's name leaves the folder.
    """
    count = 0
    with _opened(path) as archive:
        for name, _, source in _members(archive, path):
            if not name.startswith(f"{prefix}/"):
                continue
            place = target / name.removeprefix(f"{prefix}/")
            durable.make_folder(place.parent, 0o700)
            with durable.writing(place) as file:
                shutil.copyfileobj(source, file, _CHUNK)
            count += 1
    return count


def _members(archive: tarfile.TarFile, path: Path) -> Iterator[tuple[str, tarfile.TarInfo, IO[bytes]]]:
    for member in archive:
        parts = PurePosixPath(member.name).parts
        source = archive.extractfile(member) if member.isreg() else None
        if source is None or not parts or parts[0] == "/" or ".." in parts or "\0" in member.name:
            raise _damaged(path, f"it holds {member.name[:100]!r}, which is no file of a backup")
        yield member.name, member, source


@contextmanager
def _opened(path: Path) -> Iterator[tarfile.TarFile]:
    if path.exists() and not path.is_file():
        raise InvalidInputError(f"{path} is not a regular file", fix="give the backup's path")
    try:
        with tarfile.open(path, mode="r:") as archive:
            yield archive
    except (tarfile.TarError, EOFError, ValueError) as error:
        raise _damaged(path, str(error)) from None
    except FileNotFoundError:
        raise InvalidInputError(f"there is no file {path}", fix="give the backup's path") from None


def _damaged(path: Path, why: str) -> InvalidInputError:
    return InvalidInputError(f"{path} cannot be restored: {why}", fix=_FIX)


def _parse(path: Path, text: bytes) -> Any:
    try:
        return json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _damaged(path, f"its manifest cannot be read: {error}") from None

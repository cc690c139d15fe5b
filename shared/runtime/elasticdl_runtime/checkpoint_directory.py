"""Checkpoints on disk and in object stores: where they go, their manifests, removing old ones.

A checkpoint is a directory with the files of all PS and ``manifest.json``, which is written last, atomically.
"""

from __future__ import annotations

import contextlib
import errno
import json
import secrets
from collections.abc import Collection
from pathlib import Path

from elasticdl_core.checkpoint_manifest import Manifest
from elasticdl_core.errors import ElasticDLError, PermissionDeniedError
from elasticdl_core.path_policy import PathPolicy, is_url, join_place
from elasticdl_runtime import durable
from elasticdl_runtime.object_store import ObjectStore
from elasticdl_runtime.path_checks import require_place, require_reach
from elasticdl_runtime.stored_checkpoints import MANIFEST
from elasticdl_runtime.tree_removal import remove_tree


class CheckpointDirectory:
    """The directory of a job's checkpoints: a folder, or one of an object store.

    Args:
        root: the directory, as an absolute path or a URL; a folder is made when first used.
        job_id: marks what is this job's; other checkpoints are never touched.
        reach: what the job may touch; None for everything.
    """

    def __init__(self, root: str | Path, job_id: str, reach: PathPolicy | None = None) -> None:
        self.root = str(root).rstrip("/") if is_url(str(root)) else str(Path(root).absolute())
        self._job_id = job_id
        self._reach = reach

    def prepare(self, version: int) -> str:
        """Makes a new, empty directory for a checkpoint.

        Raises:
            OSError: the disk does not allow it, or the directory leads by a link to where the job may not write.
        """
        name = f"version-{version:010d}-{secrets.token_hex(3)}"
        try:
            path = join_place(require_place(self.root, self._reach, writing=True), name)
            if not is_url(path):
                durable.make_folder(Path(path).parent)
                Path(path).mkdir()
                require_reach(path, self._reach, writing=True)
        except PermissionDeniedError as error:
            raise OSError(errno.EPERM, error.message) from None
        return path

    def abandon(self, directory: str) -> None:
        """Removes a checkpoint that was never committed; what cannot be removed counts nowhere without a manifest."""
        if is_url(directory):
            with contextlib.suppress(ElasticDLError, OSError):
                _remove_objects(directory)
        else:
            remove_tree(Path(directory))

    def sweep(self, known: Collection[str]) -> None:
        """Removes what masters before this one left without committing it, or without removing it.

        Call it only if the whole directory is this job's folder. A whole checkpoint that is newer than the known ones
        stays: a database that was restored does not know what was committed since its backup.

        Args:
            known: directories of committed checkpoints, by whatever path leads there: their names are drawn.
        """
        names = {Path(directory).name for directory in known}
        newest = max(names, default="")
        for path in Path(self.root).glob("version-*"):
            if path.name not in names and (path.name < newest or not (path / MANIFEST).exists()):
                remove_tree(path)

    def prune(self, manifest: Manifest) -> None:
        """Removes a checkpoint of this job: its manifest first, so that a half removed one does not look whole.

        Raises:
            OSError: something of it cannot be removed, or the store does not remove it.
        """
        directory = manifest["directory"]
        if manifest.get("job_id") != self._job_id:
            return
        if is_url(directory):
            try:
                if directory.rpartition("/")[0] == self.root:
                    _remove_objects(directory)
            except ElasticDLError as refused:
                raise OSError(errno.EIO, refused.message) from None
            return
        folder = Path(directory)
        if folder.parent not in (Path(self.root), Path(self.root).resolve()):
            return
        (folder / MANIFEST).unlink(missing_ok=True)
        if (error := remove_tree(folder)) is not None:
            raise error


def commit_manifest(manifest: Manifest, path: Path | None = None, *, again: bool = False) -> None:
    """Writes a manifest so that it is there wholly or not at all, also after a power cut.

    In an object store it is put only where there is none.

    Args:
        manifest: what to write.
        path: the file; None for the one that makes its directory a checkpoint.
        again: whether the checkpoint has one, which this one follows.

    Raises:
        OSError: the disk does not allow it.
        ConflictError: the store has another one.
        ElasticDLError: the store does not take it.
    """
    directory, text = manifest["directory"], json.dumps(manifest, indent=1)
    if path is None and is_url(directory):
        store = ObjectStore(directory)
        (store.put if again else store.put_new)(MANIFEST, text.encode())
        return
    path = path or Path(directory) / MANIFEST
    durable.write(path, text)
    durable.sync_folder(path.parent.parent)


def _remove_objects(directory: str) -> None:
    # Once more is enough: who removes it comes back, and others may wait for it.
    store = ObjectStore(directory, tries=2, deadline_s=10.0)
    store.delete([MANIFEST])
    store.delete(store.sizes())

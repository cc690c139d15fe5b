"""Checkpoints on disk: where they go, their manifests, removing old ones.

A checkpoint is a directory with the files of all PS and ``manifest.json``, which is written last, atomically.
"""

from __future__ import annotations

import errno
import json
import secrets
from collections.abc import Collection
from pathlib import Path

from elasticdl_core.checkpoint_manifest import Manifest
from elasticdl_core.errors import PermissionDeniedError
from elasticdl_core.places import Reach
from elasticdl_runtime import durable
from elasticdl_runtime.places import require_reach
from elasticdl_runtime.stored_checkpoints import MANIFEST
from elasticdl_runtime.tree_removal import remove_tree


class CheckpointDirectory:
    """The directory of a job's checkpoints.

    Args:
        root: the directory; made when first used.
        job_id: marks what is this job's; other checkpoints are never touched.
        reach: what the job may touch; None for everything.
    """

    def __init__(self, root: Path, job_id: str, reach: Reach | None = None) -> None:
        self.root = root
        self._job_id = job_id
        self._reach = reach

    def prepare(self, version: int) -> Path:
        """Makes a new, empty directory for a checkpoint.

        Raises:
            OSError: the disk does not allow it, or the directory leads by a link to where the job may not write.
        """
        try:
            root = require_reach(self.root.absolute(), self._reach, writing=True)
            path = root / f"version-{version:010d}-{secrets.token_hex(3)}"
            durable.make_folder(root)
            path.mkdir()
            require_reach(path, self._reach, writing=True)
        except PermissionDeniedError as error:
            raise OSError(errno.EPERM, error.message) from None
        return path

    def abandon(self, directory: Path) -> None:
        """Removes a checkpoint that was never committed."""
        remove_tree(directory)

    def sweep(self, known: Collection[str]) -> None:
        """Removes what masters before this one left without committing it.

        Call it only if the whole directory is this job's.

        Args:
            known: directories of committed checkpoints.
        """
        for path in self.root.glob("version-*"):
            if str(path.absolute()) not in known:
                remove_tree(path)

    def prune(self, manifest: Manifest) -> None:
        """Removes a checkpoint of this job: its manifest first, so that a half removed one does not look whole.

        Raises:
            OSError: something of it cannot be removed.
        """
        directory = Path(manifest["directory"])
        if manifest.get("job_id") != self._job_id or directory.parent not in (
            self.root.absolute(),
            self.root.resolve(),
        ):
            return
        (directory / MANIFEST).unlink(missing_ok=True)
        if (error := remove_tree(directory)) is not None:
            raise error


def commit_manifest(manifest: Manifest, path: Path | None = None) -> None:
    """Writes a manifest so that it is there wholly or not at all, also after a power cut.

    Args:
        manifest: what to write.
        path: the file; None for the one that makes its directory a checkpoint.
    """
    path = path or Path(manifest["directory"]) / MANIFEST
    durable.write(path, json.dumps(manifest, indent=1))
    durable.sync_folder(path.parent.parent)

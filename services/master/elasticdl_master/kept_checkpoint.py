"""The checkpoint of another job that a job begins with: the same one for all of its masters and workers.

Both begin at any time. By then the job that trained may have removed the checkpoint, and the newest of a folder may
be another one. Where each worker reads it the job keeps a copy; where parameter servers read it once the job keeps in
mind which one it is, for the tables in it may be larger than the disk has room for twice.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from elasticdl_core.checkpoint_manifest import Manifest
from elasticdl_core.errors import DataError, InvalidInputError
from elasticdl_core.path_policy import PathPolicy, is_url, join_place
from elasticdl_master.copied_files import copy_verified
from elasticdl_runtime.checkpoint_directory import commit_manifest
from elasticdl_runtime.object_store import ObjectStore
from elasticdl_runtime.path_checks import require_place
from elasticdl_runtime.safe_files import read_regular
from elasticdl_runtime.stored_checkpoints import MANIFEST, MAX_MANIFEST_BYTES, find_checkpoint, read_manifest
from elasticdl_runtime.tree_removal import remove_tree

_FOLDER = "initial"
_NAMED = "named.json"
_MOST_SLOTS = 3
"""Of any optimizer."""


def find_kept(job_dir: Path, reach: PathPolicy | None = None) -> Manifest | None:
    """The checkpoint that the job keeps, or keeps in mind; None if neither yet.

    Args:
        job_dir: of the job.
        reach: what the job may read; None for everything.

    Raises:
        DataError: it is damaged.
        PermissionDeniedError: the checkpoint that it keeps in mind is not the job's to read any more.
    """
    folder = job_dir / _FOLDER
    if (folder / MANIFEST).is_file():
        return find_checkpoint(str(folder))
    try:
        named = read_regular(folder, _NAMED, MAX_MANIFEST_BYTES)
        place = str(json.loads(named)["directory"])
    except FileNotFoundError:
        return None
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise DataError(
            f"{folder / _NAMED} cannot be read: {error}",
            fix="submit the job again: it cannot go on without this file",
        ) from None
    require_place(place, reach)
    return read_manifest(named, place)


def keep_in_mind(manifest: Manifest, job_dir: Path) -> None:
    """Writes down which checkpoint it is, for the masters to come; one that is written down already stays.

    Raises:
        DataError: the disk does not allow it.
    """
    folder = job_dir / _FOLDER
    try:
        if not _is_written(manifest, folder):
            folder.mkdir(parents=True, exist_ok=True)
            commit_manifest(manifest, folder / _NAMED)
    except OSError as error:
        raise DataError(
            f"{folder / _NAMED} cannot be written: {error.strerror}",
            fix="see to the disk of the cluster's data directory",
        ) from None


def _is_written(manifest: Manifest, folder: Path) -> bool:
    try:
        known: object = json.loads(read_regular(folder, _NAMED, MAX_MANIFEST_BYTES))
    except (OSError, ValueError):
        return False
    return known == manifest


def keep(manifest: Manifest, job_dir: Path) -> Manifest:
    """Copies a checkpoint, and checks it on the way; its manifest comes last.

    Returns:
        The manifest of the copy.

    Raises:
        DataError: a file is missing or damaged, or cannot be written.
        UnavailableError: the store that it is in does not answer.
    """
    folder, source = job_dir / _FOLDER, manifest["directory"]
    if str(folder) == source:
        return manifest
    remove_tree(folder)  # what an earlier master began
    try:
        folder.mkdir(parents=True)
        for file in manifest["files"]:
            name = file["name"]
            target, size, digest = folder / Path(name).name, file["size"], file["sha256"]
            if is_url(source):
                whole = ObjectStore(source).fetch(name, target, size, digest)
            else:
                whole = copy_verified(Path(source), name, target, size, digest)
            if not whole:
                raise DataError(f"{join_place(source, name)} is damaged", fix="give another checkpoint_dir_for_init")
        kept: Manifest = {**manifest, "directory": str(folder)}
        commit_manifest(kept)
    except FileNotFoundError as error:
        raise DataError(
            f"the checkpoint in {source} is not whole: {error}", fix="give another checkpoint_dir_for_init"
        ) from None
    except OSError as error:
        raise DataError(
            f"the checkpoint in {source} cannot be copied to {folder}: {error.strerror}",
            fix="see to the disk of the cluster's data directory, or give --distribution_strategy "
            "ParameterServerStrategy, which needs no copy",
        ) from None
    return kept


def require_room(manifest: Manifest, memory_mib: int) -> None:
    """Sees that a worker may hold the parameters of a checkpoint, by what its files say at least.

    Args:
        manifest: of the checkpoint.
        memory_mib: the most that a worker may ever take; 0 for no limit.

    Raises:
        InvalidInputError: it may not.
    """
    needed = sum(file["size"] for file in manifest["files"]) // (1 + _slots(manifest)) >> 20
    if memory_mib and needed > memory_mib:
        raise InvalidInputError(
            f"the parameters of the checkpoint take {needed:,} MiB, and a worker gets {memory_mib:,} MiB at most",
            fix="raise worker_memory_mib, or give --distribution_strategy ParameterServerStrategy: its workers pull "
            "those rows of tables that they need",
        )


def _slots(manifest: Manifest) -> int:
    """The number of values that the optimizer keeps beside each parameter; too many rather than too few."""
    model = manifest.get("model")
    try:
        described: Any = json.loads(model) if isinstance(model, str) else model
        return len(described["slots"])
    except (ValueError, TypeError, KeyError):
        return _MOST_SLOTS


def remove_kept(job_dir: Path) -> None:
    """Removes the copy, and what is kept in mind: the job has ended."""
    remove_tree(job_dir / _FOLDER)

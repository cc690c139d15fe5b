"""The checkpoint of a job whose workers read it themselves: kept by the job, so that all of them read the same one.

Workers begin at any time, and so do masters. By then the job that trained may have removed the checkpoint, and the
newest of a folder may be another one.
"""

from __future__ import annotations

import json
import shutil
from pathlib import Path

from elasticdl_core.checkpoint_manifest import Manifest
from elasticdl_core.errors import DataError
from elasticdl_master.checkpoint_directory import MANIFEST, find_checkpoint
from elasticdl_master.copied_files import copy_verified

_FOLDER = "initial"


def find_kept(job_dir: Path) -> Manifest | None:
    """The checkpoint that the job keeps; None if it keeps none yet.

    Raises:
        DataError: it is damaged.
    """
    folder = job_dir / _FOLDER
    return find_checkpoint(str(folder)) if (folder / MANIFEST).is_file() else None


def keep(manifest: Manifest, job_dir: Path) -> Manifest:
    """Copies a checkpoint, and checks it on the way; its manifest comes last.

    Returns:
        The manifest of the copy.

    Raises:
        DataError: a file is missing or damaged, or cannot be written.
    """
    folder, source = job_dir / _FOLDER, Path(manifest["directory"])
    if folder == source:
        return manifest
    shutil.rmtree(folder, ignore_errors=True)  # what an earlier master began
    try:
        folder.mkdir(parents=True)
        for file in manifest["files"]:
            name = file["name"]
            if not copy_verified(source, name, folder / Path(name).name, file["size"], file["sha256"]):
                raise DataError(f"{source / name} is damaged", fix="give another checkpoint_dir_for_init")
        kept: Manifest = {**manifest, "directory": str(folder)}
        temporary = folder / f".{MANIFEST}.tmp"
        temporary.write_text(json.dumps(kept))
        temporary.rename(folder / MANIFEST)
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


def remove_kept(job_dir: Path) -> None:
    """Removes it: the job has ended."""
    shutil.rmtree(job_dir / _FOLDER, ignore_errors=True)

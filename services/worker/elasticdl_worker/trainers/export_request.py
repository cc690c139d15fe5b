"""What an export task asks for, and where a checkpoint lies."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

from elasticdl_core.checkpoint_manifest import Manifest
from elasticdl_core.errors import DataError
from elasticdl_core.job import JobSpec
from elasticdl_core.training_rules import DeclaredRules, export_formats
from elasticdl_runtime.checkpoint_files import CheckpointContent, CheckpointFile, read_checkpoint


class ExportPayload(TypedDict):
    """The payload of an export task; what is empty is the job's to say."""

    checkpoint_directory: str
    manifest: Manifest
    output: NotRequired[str]
    formats: NotRequired[list[str]]


@dataclass(frozen=True)
class ExportRequest:
    """What to export, and where to.

    Attributes:
        directory: the checkpoint's directory.
        files: its files.
        output: the directory to write into.
        formats: by name, e.g. ``keras``.
    """

    directory: str
    files: tuple[CheckpointFile, ...]
    output: Path
    formats: tuple[str, ...]

    @classmethod
    def of(cls, payload: ExportPayload, spec: JobSpec, job_dir: Path, declared: DeclaredRules) -> ExportRequest:
        """Reads the payload of an export task.

        Args:
            payload: of the task.
            spec: the job, for what the payload leaves open.
            job_dir: the job's directory; the default output is its ``artifacts/model``.
            declared: what the callbacks ask for; they may add a format.
        """
        output = Path(payload.get("output") or spec.output or job_dir / "artifacts" / "model")
        formats = export_formats(payload.get("formats") or spec.export_formats.split(","), declared)
        return cls(str(payload["checkpoint_directory"]), _files(payload["manifest"]), output, formats)

    def read(self) -> CheckpointContent:
        """Reads the checkpoint.

        Raises:
            DataError: it is damaged.
        """
        return read_checkpoint(self.directory, self.files)


def locate_checkpoint(path: Path) -> tuple[Path, tuple[CheckpointFile, ...], int]:
    """Finds a checkpoint for a local run: a directory with a manifest, or a directory of such directories.

    Returns:
        Directory, files and model version of the newest one.

    Raises:
        DataError: there is no checkpoint.
    """
    manifests = sorted(path.glob("*/manifest.json")) if not (path / "manifest.json").is_file() else []
    manifest = path / "manifest.json" if not manifests else max(manifests, key=_version)
    if not manifest.is_file():
        raise DataError(f"there is no checkpoint in {path}", fix="give a checkpoint of a training job")
    return manifest.parent, _files(json.loads(manifest.read_text())), _version(manifest)


def find_checkpoint(path: Path) -> tuple[CheckpointContent, int]:
    """Reads a checkpoint for a local run, which is found as ``locate_checkpoint`` does it.

    Returns:
        The newest one, and its model version.

    Raises:
        DataError: there is no checkpoint, or it is damaged.
    """
    directory, files, version = locate_checkpoint(path)
    return read_checkpoint(directory, files), version


def _version(manifest: Path) -> int:
    return int(json.loads(manifest.read_text()).get("version", 0))


def _files(manifest: Manifest) -> tuple[CheckpointFile, ...]:
    return tuple(CheckpointFile(str(f["name"]), int(f["size"]), str(f["sha256"])) for f in manifest["files"])

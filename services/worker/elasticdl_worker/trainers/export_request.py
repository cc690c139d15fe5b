"""The request of an export task, and the path of a checkpoint."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import NotRequired, TypedDict

from elasticdl_core.checkpoint_manifest import Manifest, check_same_layers
from elasticdl_core.job import JobSpec
from elasticdl_core.training_rules import DeclaredRules, export_formats
from elasticdl_runtime.checkpoint_files import CheckpointContent, CheckpointFile, read_checkpoint
from elasticdl_runtime.stored_checkpoints import find_checkpoint as find_manifest


class ExportPayload(TypedDict):
    """The payload of an export task; what is empty is the job's to say."""

    checkpoint_directory: str
    manifest: Manifest
    output: NotRequired[str]
    formats: NotRequired[list[str]]


@dataclass(frozen=True)
class ExportRequest:
    """The form of an export, and its path.

    Attributes:
        directory: the checkpoint's directory.
        files: its files.
        output: the directory to write into, or its URL.
        formats: by name, e.g. ``keras``.
        layers: what the checkpoint's names of layers stand for, as far as it says that.
    """

    directory: str
    files: tuple[CheckpointFile, ...]
    output: str
    formats: tuple[str, ...]
    layers: Mapping[str, str] = field(default_factory=dict)

    @classmethod
    def of(cls, payload: ExportPayload, spec: JobSpec, job_dir: Path, declared: DeclaredRules) -> ExportRequest:
        """Reads the payload of an export task.

        Args:
            payload: of the task.
            spec: the job, for what the payload leaves open.
            job_dir: the job's directory; the default output is its ``artifacts/model``.
            declared: what the callbacks ask for; they may add a format.
        """
        output = str(payload.get("output") or spec.output or job_dir / "artifacts" / "model")
        formats = export_formats(payload.get("formats") or spec.export_formats.split(","), declared)
        manifest = payload["manifest"]
        return cls(
            str(payload["checkpoint_directory"]), _files(manifest), output, formats, manifest.get("layers", {})
        )

    def read(self) -> CheckpointContent:
        """Reads the checkpoint.

        Raises:
            DataError: it is damaged.
        """
        return read_checkpoint(self.directory, self.files)


def locate_checkpoint(
    path: str, layers: Mapping[str, str] | None = None
) -> tuple[str, tuple[CheckpointFile, ...], int]:
    """Finds the checkpoint that a local run begins with, by the rule of all masters.

    Args:
        path: the directory, or its URL.
        layers: what names of layers stand for in the model that shall begin with it.

    Returns:
        Its directory, files and model version.

    Raises:
        DataError: there is no checkpoint, or its manifest is damaged.
        InvalidInputError: layers changed their names.
    """
    manifest = find_manifest(path)
    check_same_layers(manifest.get("layers", {}), layers or {})
    return manifest["directory"], _files(manifest), manifest["version"]


def find_checkpoint(
    path: str, *, with_slots: bool, layers: Mapping[str, str] | None = None
) -> tuple[CheckpointContent, int]:
    """Reads a checkpoint for a local run, which is found as ``locate_checkpoint`` does it.

    Args:
        path: the directory, or its URL.
        with_slots: whether with the optimizer's slots.
        layers: as for ``locate_checkpoint``.

    Returns:
        The checkpoint, and its model version.

    Raises:
        DataError: there is no checkpoint, or it is damaged.
        InvalidInputError: layers changed their names.
    """
    directory, files, version = locate_checkpoint(path, layers)
    return read_checkpoint(directory, files, with_slots=with_slots), version


def _files(manifest: Manifest) -> tuple[CheckpointFile, ...]:
    return tuple(CheckpointFile(str(f["name"]), int(f["size"]), str(f["sha256"])) for f in manifest["files"])

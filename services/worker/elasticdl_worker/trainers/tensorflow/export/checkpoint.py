"""From a checkpoint to a model that plain Keras loads, and into a model that trains in this process."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import NotRequired, TypedDict

import numpy as np

from elasticdl_core.checkpoint_manifest import Manifest
from elasticdl_core.errors import DataError, InvalidInputError
from elasticdl_core.job import JobSpec
from elasticdl_core.training_rules import DeclaredRules, export_formats
from elasticdl_runtime.checkpoint_files import CheckpointContent, CheckpointFile, read_checkpoint
from elasticdl_worker.parameters import Rows
from elasticdl_worker.trainers.output_files import OutputFile
from elasticdl_worker.trainers.tensorflow.export.model_files import (
    export_model,
    fill_embeddings,
)
from elasticdl_worker.trainers.tensorflow.model.build import BuildOptions, PreparedModel, build_model
from elasticdl_worker.trainers.tensorflow.step.local_trainer import LocalTrainer
from elasticdl_worker.trainers.tensorflow.types import Array, NestedSpec
from elasticdl_worker.user_code import ModelModule


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
        formats: ``keras``, ``saved_model``.
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


def export_checkpoint(
    module: ModelModule, features_spec: NestedSpec, request: ExportRequest, seed: int
) -> list[OutputFile]:
    """Exports the model of a checkpoint.

    Args:
        module: the user's module; the model is built anew, with all Keras embeddings in the graph.
        features_spec: nested ``tf.TypeSpec`` of a minibatch of features.
        request: what to export, and where to.
        seed: the job's seed.

    Returns:
        The files: ``{"name", "path", "sha256", "size"}``; names relative to the output, paths absolute.

    Raises:
        DataError: the checkpoint is damaged.
        InvalidInputError: the checkpoint is of another model.
    """
    content = read_checkpoint(request.directory, request.files)
    model = build_model(module, features_spec, BuildOptions(None, seed))
    open_tables = load_into(model, content)
    return export_model(model, request.output, request.formats, open_tables, content.table_specs)


def load_into(model: PreparedModel, content: CheckpointContent) -> dict[str, Rows]:
    """Sets a model's values from a checkpoint.

    Args:
        model: a model with all Keras embeddings in the graph.
        content: the checkpoint.

    Returns:
        The tables of ``elasticdl.layers.Embedding`` layers, which have no weights in the model.

    Raises:
        InvalidInputError: the checkpoint is of another model.
    """
    own = model.values()
    tables: dict[str, Rows] = dict(content.tables)
    # An embedding that the checkpoint has as a table is a weight of this model, and filled from the table.
    filled = tuple(f"{name}/" for name in model.registry.in_graph if name in tables)
    missing = sorted(name for name in own if name not in content.dense and not name.startswith(filled))
    if missing:
        raise InvalidInputError(
            f"the checkpoint has no parameter {missing[0]!r}; it has {sorted(content.dense)[:10]}",
            fix="use the model definition and model_params that the checkpoint was made with",
        )
    values: dict[str, Array] = {}
    for name, value in content.dense.items():
        if name not in own:
            continue
        if value.shape != own[name].shape:
            raise InvalidInputError(
                f"{name} has shape {value.shape} in the checkpoint and {own[name].shape} in the model",
                fix="use the model definition and model_params that the checkpoint was made with",
            )
        values[name] = np.asarray(value)
    model.assign(values)
    return fill_embeddings(model, tables, content.table_specs)


def restore_local(trainer: LocalTrainer, path: Path) -> None:
    """Starts a local run from a checkpoint: a directory with a manifest, or a directory of such directories.

    Raises:
        DataError: there is no checkpoint, or it is damaged.
    """
    manifests = sorted(path.glob("*/manifest.json")) if not (path / "manifest.json").is_file() else []
    manifest = path / "manifest.json" if not manifests else max(manifests, key=_version)
    if not manifest.is_file():
        raise DataError(f"there is no checkpoint in {path}", fix="give a checkpoint of a training job")
    content = read_checkpoint(manifest.parent, _files(json.loads(manifest.read_text())))
    trainer.start_version = _version(manifest)
    for name, rows in load_into(trainer.model, content).items():
        trainer.tables.fill(name, rows, content.table_specs[name])


def _version(manifest: Path) -> int:
    return int(json.loads(manifest.read_text()).get("version", 0))


def _files(manifest: Manifest) -> tuple[CheckpointFile, ...]:
    return tuple(CheckpointFile(str(f["name"]), int(f["size"]), str(f["sha256"])) for f in manifest["files"])

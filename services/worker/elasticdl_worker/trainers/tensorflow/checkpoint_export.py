"""From a checkpoint to a model that plain Keras loads, and into a model that trains in this process."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl.callbacks import SavedModelExporter
from elasticdl_core.errors import DataError, InvalidInputError
from elasticdl_core.job import JobSpec
from elasticdl_runtime.checkpoint_files import CheckpointContent, CheckpointFile, read_checkpoint
from elasticdl_worker.trainers.tensorflow.export import Rows, export_model, fill_embeddings
from elasticdl_worker.trainers.tensorflow.local_trainer import LocalTrainer
from elasticdl_worker.trainers.tensorflow.model import BuildOptions, PreparedModel, build_model
from elasticdl_worker.user_code import ModelModule


def export_checkpoint(
    spec: JobSpec,
    module: ModelModule,
    features_spec: Any,
    callbacks: Sequence[Any],
    payload: Mapping[str, Any],
    job_dir: Path,
) -> list[dict[str, Any]]:
    """Exports the model of a checkpoint.

    Args:
        spec: the job.
        module: the user's module; the model is built anew, with all Keras embeddings in the graph.
        features_spec: nested ``tf.TypeSpec`` of a minibatch of features.
        callbacks: of the module; a ``SavedModelExporter`` adds that format.
        payload: of the export task: ``checkpoint`` (its manifest: ``directory`` and ``files``, each with ``name``,
            ``size`` and ``sha256``) and ``output``, the directory to write into.
        job_dir: the job's directory, for the default output ``artifacts/model``.

    Returns:
        The files: ``{"path", "sha256", "size"}``, with absolute paths.

    Raises:
        DataError: the checkpoint is damaged.
        InvalidInputError: the checkpoint is of another model.
    """
    formats = [name for name in spec.export_formats.split(",") if name]
    if any(isinstance(callback, SavedModelExporter) for callback in callbacks):
        formats = list(dict.fromkeys([*formats, "saved_model"]))
    output = Path(payload.get("output") or spec.output or job_dir / "artifacts" / "model")
    content = _read(payload.get("checkpoint") or payload)
    model = build_model(module, features_spec, BuildOptions(None, spec.seed))
    open_tables = load_into(model, content)
    return [
        {**file, "path": str(output / file["path"])} for file in export_model(model, output, formats, open_tables)
    ]


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
    from_tables = {f"{name}/embeddings" for name in model.registry.in_graph if name in tables}
    missing = sorted(name for name in own if name not in content.dense and name not in from_tables)
    if missing and model.registry.in_graph:
        missing = [name for name in missing if not name.startswith(tuple(f"{n}/" for n in tables))]
    if missing:
        raise InvalidInputError(
            f"the checkpoint has no parameter {missing[0]!r}; it has {sorted(content.dense)[:10]}",
            fix="use the model definition and model_params that the checkpoint was made with",
        )
    values: dict[str, NDArray[Any]] = {}
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
    return fill_embeddings(model, tables)


def restore_local(trainer: LocalTrainer, path: Path) -> None:
    """Starts a local run from a checkpoint: a directory with a manifest, or a directory of such directories.

    Raises:
        DataError: there is no checkpoint, or it is damaged.
    """
    manifests = sorted(path.glob("*/manifest.json")) if not (path / "manifest.json").is_file() else []
    manifest = path / "manifest.json" if not manifests else max(manifests, key=_version)
    if not manifest.is_file():
        raise DataError(f"there is no checkpoint in {path}", fix="give a checkpoint of a training job")
    content = _read({"directory": str(manifest.parent), **json.loads(manifest.read_text())})
    for name, rows in load_into(trainer.model, content).items():
        trainer.tables.fill(name, rows)


def _version(manifest: Path) -> int:
    return int(json.loads(manifest.read_text()).get("version", 0))


def _read(manifest: Mapping[str, Any]) -> CheckpointContent:
    files = [CheckpointFile(str(f["name"]), int(f["size"]), str(f["sha256"])) for f in manifest["files"]]
    return read_checkpoint(str(manifest["directory"]), files)

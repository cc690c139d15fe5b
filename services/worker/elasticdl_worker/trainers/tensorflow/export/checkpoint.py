"""From a checkpoint to a model that plain Keras loads."""

from __future__ import annotations

from pathlib import Path

import numpy as np

from elasticdl_core.checkpoint_manifest import check_same_layers
from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime.checkpoint_files import CheckpointContent
from elasticdl_worker.parameters import Rows
from elasticdl_worker.trainers.checkpoint_match import OTHER_MODEL_FIX, check_has_tables, check_nothing_left
from elasticdl_worker.trainers.export_request import ExportRequest
from elasticdl_worker.trainers.output_files import OutputFile
from elasticdl_worker.trainers.tensorflow.export.model_files import (
    export_model,
    fill_embeddings,
)
from elasticdl_worker.trainers.tensorflow.model.build import BuildOptions, PreparedModel, build_model
from elasticdl_worker.trainers.tensorflow.types import Array, NestedSpec
from elasticdl_worker.user_code import ModelModule


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
    content = request.read()
    model = build_model(module, features_spec, BuildOptions(None, seed))
    check_same_layers(request.layers, model.layers)
    open_tables = load_into(model, content)
    return export_model(model, Path(request.output), request.formats, open_tables, content.table_specs)


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
            fix=OTHER_MODEL_FIX,
        )
    check_has_tables(content, model.tables)
    check_nothing_left(content, own, {*model.tables, *model.registry.in_graph})
    values: dict[str, Array] = {}
    for name, value in content.dense.items():
        if value.shape != own[name].shape:
            raise InvalidInputError(
                f"{name} has shape {value.shape} in the checkpoint and {own[name].shape} in the model",
                fix=OTHER_MODEL_FIX,
            )
        values[name] = np.asarray(value)
    model.assign(values)
    return fill_embeddings(model, tables, content.table_specs)

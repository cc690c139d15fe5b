"""From a checkpoint to a model that plain PyTorch loads, and into a model that trains in this process."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn

from elasticdl_core.errors import InvalidInputError
from elasticdl_runtime.checkpoint_files import CheckpointContent
from elasticdl_runtime.initializers import whole_matrix
from elasticdl_worker.group.replica import ModelLayout, ReplicaState
from elasticdl_worker.group.state_files import CheckpointPart, TableRows, extra_of
from elasticdl_worker.parameters import Rows
from elasticdl_worker.trainers.checkpoint_match import OTHER_MODEL_FIX, check_has_tables, check_nothing_left
from elasticdl_worker.trainers.export_request import ExportRequest, find_checkpoint
from elasticdl_worker.trainers.minibatch import Tensors
from elasticdl_worker.trainers.output_files import OutputFile
from elasticdl_worker.trainers.torch.device import host_array
from elasticdl_worker.trainers.torch.export.model_files import export_model
from elasticdl_worker.trainers.torch.model.build import BuiltModel
from elasticdl_worker.trainers.torch.model.optimizers import TorchOptimizerPlan, name_of
from elasticdl_worker.trainers.torch.replica.slots import TorchSlots
from elasticdl_worker.trainers.torch.step.local_trainer import TorchLocalTrainer


class TorchLocalModel(TorchLocalTrainer):
    """Training in one process, from a checkpoint if that is wanted, and to an export.

    Attributes:
        sample: features of a few records, for the export; None where there are none.
    """

    sample: Tensors = None
    rule_of_rows = ""
    plan: Callable[[], TorchOptimizerPlan]

    def checkpoint(self) -> CheckpointPart:
        """A copy of all that training goes on from, in the words of parameter servers."""
        optimizer, model = self.tables.optimizer, self.model
        assert optimizer is not None
        plan = self.plan()
        opened = self.tables.tables
        slots = TorchSlots(optimizer, {**model.trainable, **{name: one.weight for name, one in opened.items()}})
        values, steps = slots.values(), slots.steps()
        names = {id(weight): name for name, weight in model.trainable.items()}
        tables = []
        for name, table in opened.items():
            ids, rows = table.ids_and_rows()
            records = np.concatenate([rows, *(one[1 : len(ids) + 1] for one in values[name])], 1)
            spec = replace(table.spec, group=plan.groups.get(id(table.weight), 0))
            tables.append(TableRows(spec, ids, records, steps[name]))
        whole = set()
        for spec, weight in model.closed.values():
            name = names.get(id(weight), "")
            if name:
                whole.add(name)
                records = np.concatenate([host_array(weight), *values[name]], 1)
                spec = replace(spec, group=plan.groups.get(id(weight), 0))
                tables.append(TableRows(spec, np.arange(len(records)), records, steps[name]))
        dense = [spec for spec in model.dense_specs(plan.groups) if spec.name not in whole]
        layout = ModelLayout(dense, plan.spec, slots.names)
        extra = {} if tables else slots.extra()
        return CheckpointPart(
            layout, ReplicaState(self.version, model.values(), values, extra, steps), 0, 1, {}, tables
        )

    def restore(self, path: str) -> None:
        """Begins from a checkpoint: a directory with a manifest, or a directory of such directories."""
        optimizer = self.tables.optimizer
        content, self.start_version = find_checkpoint(path, with_slots=optimizer is not None)
        for name, rows in load_into(self.model, content).items():
            self.tables.tables[name].fill(*rows)
        if optimizer is not None:
            self._take_slots(optimizer, content)

    def _take_slots(self, optimizer: torch.optim.Optimizer, content: CheckpointContent) -> None:
        """Goes on with the optimizer's slots, as a job does; another optimizer begins with slots of its own."""
        open_tables = self.tables.tables
        trained = {**self.model.trainable, **{name: one.weight for name, one in open_tables.items()}}
        slots = TorchSlots(optimizer, trained)
        found: dict[str, Sequence[NDArray[Any]]] = {}
        steps = dict(content.steps)
        extra = {}
        if content.slots == slots.names:
            found |= {name: several for name, several in content.dense_slots.items() if several}
            for table, several in content.row_slots.items():
                ids = content.tables[table][0]
                steps[table] = steps[f"{table}.weight"] = content.row_steps[table]
                if table in open_tables:
                    places = open_tables[table].place(torch.from_numpy(np.array(ids)), None).numpy()
                    found[table] = slots.spread(table, several, places)
                elif f"{table}.weight" in trained:
                    found[f"{table}.weight"] = slots.spread(f"{table}.weight", several, ids)
            if found.keys() == trained.keys() and not content.tables and content.optimizer.name == name_of(optimizer):
                extra = extra_of(content.replica)
        slots.assign(found, steps, extra)

    def export(self, output: Path, formats: Sequence[str]) -> list[OutputFile]:
        """Writes the trained model into a directory."""
        open_tables = {name: table.ids_and_rows() for name, table in self.tables.tables.items()}
        specs = {name: table.spec for name, table in self.tables.tables.items()}
        return export_model(self.model.on_host(), self.sample, output, formats, open_tables, specs)


def export_checkpoint(model: BuiltModel, sample: Tensors, request: ExportRequest) -> list[OutputFile]:
    """Exports the model of a checkpoint.

    Args:
        model: built anew, the weights of its closed embeddings in it.
        sample: features of a few records.
        request: what to export, and where to.

    Raises:
        DataError: the checkpoint is damaged.
        InvalidInputError: the checkpoint is of another model.
    """
    content = request.read()
    open_tables = load_into(model, content)
    return export_model(model, sample, Path(request.output), request.formats, open_tables, content.table_specs)


def load_into(model: BuiltModel, content: CheckpointContent) -> dict[str, Rows]:
    """Sets a model's values from a checkpoint.

    Args:
        model: with the weights of its closed embeddings in it.
        content: the checkpoint.

    Returns:
        The tables of ``elasticdl.torch.Embedding`` layers, which have no weights in the model.

    Raises:
        InvalidInputError: the checkpoint is of another model.
    """
    own = {**model.trainable, **model.state}
    weights = {f"{name}.weight": name for name in content.tables}
    values: dict[str, Any] = {}
    for name, tensor in own.items():
        if name in content.dense:
            values[name] = np.asarray(content.dense[name])
        elif name in weights:
            values[name] = _matrix(content, weights[name], len(tensor), _padding_of(model, tensor))
        else:
            raise InvalidInputError(
                f"the checkpoint has no parameter {name!r}; it has {sorted(content.dense)[:10]}", fix=OTHER_MODEL_FIX
            )
        if tuple(values[name].shape) != tuple(tensor.shape):
            raise InvalidInputError(
                f"{name} has shape {values[name].shape} in the checkpoint and {tuple(tensor.shape)} in the model",
                fix=OTHER_MODEL_FIX,
            )
    check_has_tables(content, model.tables)
    check_nothing_left(content, own, [*model.tables, *(weights[name] for name in own if name in weights)])
    model.assign(values)
    return {name: rows for name, rows in content.tables.items() if name in model.tables}


def _padding_of(model: BuiltModel, weight: torch.Tensor) -> int | None:
    """The row of an embedding's weight that stays zero."""
    for layer in model.net.modules():
        if isinstance(layer, nn.Embedding | nn.EmbeddingBag) and layer.weight is weight:
            return layer.padding_idx
    return None


def _matrix(content: CheckpointContent, table: str, size: int, padding: int | None) -> Any:
    """The whole matrix of a table: ids without a row have the one that they begin with."""
    ids, rows = content.tables[table]
    spec = content.table_specs[table]
    matrix = whole_matrix(spec, ids, rows, size)
    if padding is not None:
        matrix[padding] = 0.0
    return matrix

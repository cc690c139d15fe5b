"""A model that trains in this process, from a checkpoint to the files that plain Keras loads."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl_runtime.checkpoint_files import CheckpointContent
from elasticdl_worker.group.replica import ModelLayout, ReplicaState
from elasticdl_worker.group.state_files import CheckpointPart, TableRows
from elasticdl_worker.trainers.export_request import find_checkpoint
from elasticdl_worker.trainers.output_files import OutputFile
from elasticdl_worker.trainers.tensorflow.export.checkpoint import load_into
from elasticdl_worker.trainers.tensorflow.export.model_files import export_model
from elasticdl_worker.trainers.tensorflow.framework import raw_variable
from elasticdl_worker.trainers.tensorflow.model.optimizers import TranslatedOptimizer
from elasticdl_worker.trainers.tensorflow.model.slots import OptimizerSlots
from elasticdl_worker.trainers.tensorflow.step.local_trainer import LocalTrainer
from elasticdl_worker.trainers.tensorflow.types import KerasVariable


class LocalModel(LocalTrainer):
    """Steps of plain Keras training, with a beginning and an end in files."""

    translated: TranslatedOptimizer
    rule_of_rows = ""

    def checkpoint(self) -> CheckpointPart:
        """A copy of all that training goes on from, in the words of parameter servers."""
        optimizer, model = self.optimizer, self.model
        assert optimizer is not None
        trained = self._trained_by_name()
        slots = OptimizerSlots(optimizer, trained)
        values, steps = slots.values(), slots.steps()
        fresh = [np.zeros(1, np.float32)] * len(slots.names)
        specs = {spec.name: spec for spec in model.table_specs(optimizer)}
        tables = []
        for name, table in self.tables.tables.items():
            ids, rows = table.ids_and_rows()
            kept = [np.resize(one[: len(ids)], rows.shape) for one in values.get(name, fresh)]
            tables.append(TableRows(specs[name], ids, np.concatenate([rows, *kept], 1), steps.get(name, 0)))
        names = {id(variable): name for name, variable in trained.items()}
        decays = {spec.name: spec.weight_decay for spec in model.dense_specs(optimizer)}
        whole = set()
        for table_name, spec in model.registry.closed.items():
            weight = model.registry.in_graph[table_name].weights[0]
            name = names.get(id(weight), "")
            if name:
                whole.add(name)
                records = np.concatenate([np.asarray(raw_variable(weight).numpy(), np.float32), *values[name]], 1)
                spec = replace(spec, weight_decay=decays[name])
                tables.append(TableRows(spec, np.arange(len(records)), records, steps[name]))
        dense = [spec for spec in model.dense_specs(optimizer) if spec.name not in whole]
        layout = ModelLayout(dense, self.translated.spec, slots.names, layers=model.layers)
        return CheckpointPart(layout, ReplicaState(self.version, model.values(), values, {}, steps), 0, 1, {}, tables)

    def _trained_by_name(self) -> dict[str, KerasVariable]:
        model = self.model
        trained = dict(zip(model.trainable, model.keras_model.trainable_variables, strict=True))
        of_tables = set(model.trained_tables())
        return trained | {name: one.variable for name, one in self.tables.tables.items() if name in of_tables}

    def restore(self, path: str) -> None:
        """Begins from a checkpoint: a directory with a manifest, or a directory of such directories.

        Raises:
            DataError: there is no checkpoint, or it is damaged.
        """
        content, self.start_version = find_checkpoint(
            path, with_slots=self.optimizer is not None, layers=self.model.layers
        )
        for name, rows in load_into(self.model, content).items():
            self.tables.tables[name].fill(*rows)
        self.rebuild()  # around tables that grew
        if self.optimizer is not None:
            self._take_slots(content)

    def _take_slots(self, content: CheckpointContent) -> None:
        """Goes on with the optimizer's slots, as a job does; another optimizer begins with slots of its own."""
        optimizer, model = self.optimizer, self.model
        assert optimizer is not None
        trained = self._trained_by_name()
        slots = OptimizerSlots(optimizer, trained)
        found: dict[str, Sequence[NDArray[Any]]] = {}
        if content.slots == slots.names:
            names = {id(variable): name for name, variable in trained.items()}
            found |= {name: several for name, several in content.dense_slots.items() if several}
            for table, several in content.row_slots.items():
                name, places = table, content.tables[table][0]
                if table in self.tables.tables:
                    places = self.tables.tables[table].place(places)[0].astype(np.int64)
                else:
                    name = names.get(id(model.registry.in_graph[table].weights[0]), "")
                if name in trained:
                    found[name] = slots.spread(name, several, places)
        slots.assign(found, [*content.steps.values(), *content.row_steps.values()])

    def export(self, output: Path, formats: Sequence[str]) -> list[OutputFile]:
        """Writes the trained model into a directory."""
        open_tables = {name: table.ids_and_rows() for name, table in self.tables.tables.items()}
        specs = {name: table.spec for name, table in self.tables.tables.items()}
        return export_model(self.model, output, formats, open_tables, specs)

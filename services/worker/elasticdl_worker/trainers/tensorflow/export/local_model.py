"""A model that trains in this process, from a checkpoint to the files that plain Keras loads."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

from elasticdl_worker.trainers.export_request import find_checkpoint
from elasticdl_worker.trainers.output_files import OutputFile
from elasticdl_worker.trainers.tensorflow.export.checkpoint import load_into
from elasticdl_worker.trainers.tensorflow.export.model_files import export_model
from elasticdl_worker.trainers.tensorflow.step.local_trainer import LocalTrainer


class LocalModel(LocalTrainer):
    """Steps of plain Keras training, with a beginning and an end in files."""

    def restore(self, path: Path) -> None:
        """Begins from a checkpoint: a directory with a manifest, or a directory of such directories.

        Raises:
            DataError: there is no checkpoint, or it is damaged.
        """
        content, self.start_version = find_checkpoint(path)
        for name, rows in load_into(self.model, content).items():
            self.tables.fill(name, rows, content.table_specs[name])

    def export(self, output: Path, formats: Sequence[str]) -> list[OutputFile]:
        """Writes the trained model into a directory."""
        open_tables = {name: table.ids_and_rows() for name, table in self.tables.tables.items()}
        specs = {name: table.spec for name, table in self.tables.tables.items()}
        return export_model(self.model, output, formats, open_tables, specs)

"""The records of a minibatch of a script: those of the job's data, or the numbers of the script's own."""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path
from typing import Any

from elasticdl.data import Shard, create_data_reader
from elasticdl_core.job import JobSpec
from elasticdl_core.shuffling import Reading
from elasticdl_core.skips import Skips
from elasticdl_worker.trainers.task_records import TaskRecords
from elasticdl_worker.user_code import ModelModule

OWN = "records"
"""The name of the one shard of a script's own records."""


class ScriptRecords:
    """Reads them; one thread calls it.

    Args:
        spec: the job.
        zoo: directory of the script, whose code counts as the user's.
        size: of the script's own dataset; None for the job's data.
    """

    def __init__(self, spec: JobSpec, zoo: Path, size: int | None) -> None:
        self._own = size
        if size is None:
            self.reader = create_data_reader(spec.training_data, spec.records_per_task, spec.data_reader_params)
            self._records = TaskRecords(self.reader, ModelModule(zoo, (zoo,), build_model=lambda: None))
            self._kind, self._names = self.reader.records_kind, self.reader.metadata.column_names

    def shards(self) -> list[Shard]:
        """All records."""
        if self._own is not None:
            return [Shard(OWN, 0, self._own)]
        return list(self.reader.create_shards())

    @property
    def grain(self) -> tuple[int, int] | None:
        """As the reader of the job's data tells it."""
        return None if self._own is not None else self.reader.grain

    @property
    def damaged(self) -> dict[str, str]:
        """Files whose rest cannot be read, with ``on_corrupt=skip``, and what is wrong with them; once listed."""
        return {} if self._own is not None else self.reader.damaged_files

    def read(self, shard: Shard, reading: Reading | None) -> tuple[list[Any], Skips]:
        """The records at positions, and those that were passed over.

        Args:
            shard: the positions.
            reading: where their records lie, if they are shuffled.

        Raises:
            DataError: the data cannot be read.
        """
        if self._own is not None:
            return list(_numbers(shard, reading)), Skips()
        self._records.begin(shard, reading)
        found = [
            self._kind.named(record, self._names)
            for batch in self._records.batches(max(1, shard.records), list)
            for record in batch
        ]
        return found, self._records.skips


def _numbers(shard: Shard, reading: Reading | None) -> Iterator[int]:
    if reading is None:
        yield from range(shard.start, shard.end)
        return
    yield from (number for _, number in reading.in_order(shard.start, shard.end))

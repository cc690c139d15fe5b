"""The records of one task, as ``feed`` gets them: an iterable that knows how far it was read."""

from __future__ import annotations

from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset

from elasticdl.data import DataReader, Shard
from elasticdl_worker.trainers.task_records import TaskRecords

_CHUNK_RECORDS = 256


class FedRecords(IterableDataset[Any]):
    """The records of the present task; each iteration reads them anew.

    Records are ``bytes``, dicts by column name (CSV), or what a custom reader yields.

    Args:
        reader: of the records.
        records: reads those of the present task.
        shard: the task.

    Attributes:
        given: how many were given out in the present iteration.
    """

    def __init__(self, reader: DataReader, records: TaskRecords, shard: Shard) -> None:
        self.given = 0
        self._records = records
        self._shard = shard
        kind = reader.records_kind.kind
        self._names = list(reader.metadata.column_names) if kind == "columns" else []

    def __len__(self) -> int:
        """Number of records, those that cannot be read included."""
        return self._shard.end - self._shard.start

    def __iter__(self) -> Iterator[Any]:
        self.given = 0
        for records in self._records.batches(_CHUNK_RECORDS, list):
            for record in records:
                self.given += 1
                yield dict(zip(self._names, record, strict=True)) if self._names else record

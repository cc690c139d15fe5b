"""The records of one task, as ``feed`` gets them: an iterable that knows how far it was read."""

from __future__ import annotations

import copy
from collections.abc import Iterator
from typing import Any

from torch.utils.data import IterableDataset

from elasticdl.data import DataReader, Shard
from elasticdl_core.errors import UserCodeError
from elasticdl_worker.trainers.task_records import TaskRecords

_CHUNK_RECORDS = 256
ONCE = "go over the records once, each sample as often as it is to count: --num_epochs says how often data is read"


class FedRecords(IterableDataset[Any]):
    """The records of the present task; each iteration reads them anew.

    Records are ``bytes``, dicts by column name (CSV), or what a custom reader yields; windows are lists
    of ``bytes``, or dicts of a list for each column.

    Args:
        reader: of the records.
        records: reads those of the present task.
        shard: the task.
        alike: of how many records the first is given instead, to see what of them others depend on.

    Attributes:
        given: how many were given out in the present iteration.
        most: the same, in the iteration that came furthest.
        passes: iterations that came to the end.
        rows: how many rows ``feed`` has made of them so far; the reader of ``feed`` sets it.
    """

    def __init__(self, reader: DataReader, records: TaskRecords, shard: Shard, alike: int = 0) -> None:
        self.given = self.most = self.passes = self.rows = 0
        self._records = records
        self._shard = shard
        self._alike = alike
        self._kind, self._names = reader.records_kind, reader.metadata.column_names

    def __len__(self) -> int:
        """Number of records, those that cannot be read included."""
        return self._shard.end - self._shard.start

    def __iter__(self) -> Iterator[Any]:
        if self.passes and self.rows:
            raise UserCodeError("feed begins its records again after it gave samples of all of them", fix=ONCE)
        self.given = 0
        first: Any = None
        for records in self._records.batches(_CHUNK_RECORDS, list):
            for record in records:
                if self._alike and self.given == 0:
                    first = copy.deepcopy(record)
                self.given += 1
                self.most = max(self.most, self.given)
                shown = copy.deepcopy(first) if self.given <= self._alike else record
                yield self._kind.named(shown, self._names)
        self.passes += 1


def is_reading(iterator: Iterator[Any]) -> bool:
    """Whether an iterator reads records of a task."""
    return getattr(iterator, "gi_code", None) is FedRecords.__iter__.__code__

"""From the records of a task to minibatches, by the user's ``feed`` and ``collate``.

``feed`` is called for each task with an iterable of its records, and returns samples or ready minibatches: any
iterable, a ``torch.utils.data.Dataset``, a ``DataLoader``, or ``elasticdl.torch.Minibatches``.
"""

from __future__ import annotations

import functools
import itertools
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from torch import nn
from torch.utils.data import default_collate

from elasticdl.data import DataReader, Shard
from elasticdl_core.errors import ElasticDLError, UserCodeError
from elasticdl_core.shuffling import Reading
from elasticdl_worker.reporting.accounts import Intake
from elasticdl_worker.trainers.alone import LOOKED_AT, refuse_combining
from elasticdl_worker.trainers.minibatch import Minibatch, Tensors, not_a_pair
from elasticdl_worker.trainers.task_records import TaskRecords, records_at
from elasticdl_worker.trainers.torch.input.default_feed import default_feed
from elasticdl_worker.trainers.torch.input.records import ONCE, FedRecords
from elasticdl_worker.trainers.torch.input.returned import (
    Returned,
    are_turned,
    as_bytes,
    count_rows,
    is_endless,
    samples_of,
)
from elasticdl_worker.trainers.torch.model.trials import generators_kept
from elasticdl_worker.user_code import ModelModule

_SAMPLE_RECORDS = 4
_MOST = 10_000


class TorchInputPipeline:
    """Minibatches of tasks, for one mode.

    Args:
        reader: reads the records.
        module: the user's module, for its ``feed`` and ``collate``.
        mode: ``training``, ``evaluation`` or ``prediction``.
        minibatch_size: records in a minibatch that is made here; the last one of a task may have fewer.

    Attributes:
        ordered: whether the record at position ``i`` of a task was record ``i`` of its minibatches so far: ``feed``
            gave each sample before it took the next record, and left none out.

    Raises:
        UserCodeError: there is no ``feed``.
    """

    def __init__(self, reader: DataReader, module: ModelModule, mode: str, minibatch_size: int) -> None:
        self._reader = reader
        self._module = module
        self._mode = mode
        self._minibatch_size = minibatch_size
        self._records = TaskRecords(reader, module)
        self._fed = 0
        self.ordered = True
        self._feed = module.feed or default_feed(reader) or module.need("feed")
        self._looked_through = module.feed is None

    def minibatches(self, shard: Shard, reading: Reading | None = None) -> Iterator[Minibatch]:
        """Reads the minibatches of a shard; one shard at a time.

        Raises:
            DataError: the data cannot be read.
            UserCodeError: ``feed``, ``collate`` or the user's reader raised.
        """
        self._look_through()
        self._fed = 0
        records = self._records
        records.begin(shard, reading)
        given = FedRecords(self._reader, records, shard)
        updates = self._mode == "training"
        for features, labels, count, exact in self._batches(records, given, shard, reading, updates):
            self.ordered = self.ordered and exact
            first = shard.start + self._fed if self.ordered and not records.skipped else None
            yield Minibatch(features, labels, count, shard, first, reading)
            self._fed += count
        if given.most != self._fed:
            self.ordered = False

    @property
    def intake(self) -> Intake:
        """The intake of the present shard so far."""
        return Intake(self._fed, self._records.skips)

    def sample(self) -> Tensors:
        """The features of a few records, to run the model on once; None if there are none.

        Raises:
            DataError: they cannot be read.
            UserCodeError: ``feed`` raised, or gave nothing.
        """
        found = self.first(min(_SAMPLE_RECORDS, self._minibatch_size))
        return None if found is None else found.features

    def first(self, records: int, at: float = 0.0) -> Minibatch | None:
        """Records of the data from a place on, as part of it, or fewer; None if nothing is made of them.

        Raises:
            DataError: they cannot be read.
            UserCodeError: ``feed`` raised, or gave nothing.
        """
        few = records_at(self._reader, at, max(1, records))
        taken = TaskRecords(self._reader, self._module)
        taken.begin(few)
        for features, labels, rows, _ in self._batches(taken, FedRecords(self._reader, taken, few), few, None):
            return Minibatch(features, labels, rows, few)
        return None

    def _look_through(self) -> None:
        """Refuses a ``feed`` that makes samples of several records, each time; one that does not is tried once."""
        if not self._looked_through:
            records = records_at(self._reader, 0.0, LOOKED_AT)  # a group's part of an update may be two of them
            kept = functools.partial(generators_kept, nn.Module(), self._module.roots)

            def alike(few: Shard, first: int) -> list[bytes]:
                return self._samples_of([few], first)

            refuse_combining(self._samples_of, records, kept, self._module.path, alike)
            self._looked_through = True

    def _samples_of(self, ranges: Sequence[Shard], alike: int = 0) -> list[bytes]:
        found: list[bytes] = []
        for few in ranges:
            records = TaskRecords(self._reader, self._module)
            records.begin(few)
            given = FedRecords(self._reader, records, few, alike)
            rows = list(itertools.islice(samples_of(self._feed(given, self._mode, self._reader.metadata)), _MOST))
            if given.most < few.records or len(rows) == _MOST:
                raise UserCodeError("it takes others, or gives samples without end", fix=ONCE)
            found += map(as_bytes, rows)
        return found

    def _batches(
        self, records: TaskRecords, given: FedRecords, shard: Shard, reading: Reading | None, updates: bool = False
    ) -> Iterator[tuple[Tensors, Tensors, int, bool]]:
        """Features, labels and rows of each minibatch, and whether they are the next records in their order.

        Args:
            records: reads those of the task.
            given: the same for ``feed``.
            shard: the task.
            reading: where its records lie, if they are shuffled.
            updates: whether each minibatch makes an update.
        """
        returned: Returned | None = None
        taken = at_end = 0
        while True:
            held: list[Any] = []
            width = 1
            try:
                if returned is None:
                    made = self._feed(given, self._mode, self._reader.metadata)
                    returned = Returned(made, self._module.path)
                    if updates:
                        self._check_size(returned.batch_size, len(given))
                exact = not returned.ready
                while len(held) < (1 if returned.ready else self._minibatch_size) and (one := returned.next()):
                    held += one
                    taken += 1
                    exact = exact and given.given == taken
                    self._refuse_no_label(one[0])
                    if taken == 1:
                        self._check_begin(returned, given)
                if not held:
                    records.end(given.rows, taken=given.most, not_drawn=returned.not_drawn)
                    return
                width = len(held) if exact else 1
                batch = held[0] if returned.ready else self._collated(held)
                features, labels = self._split(batch)
                samples = returned.samples if returned.ready else len(held)
                rows = count_rows(features, labels, samples, self._with_one_less(returned, held))
                given.rows += rows
                at_end = at_end if given.passes else given.rows
                if is_endless(given.rows - at_end, given.most):
                    raise UserCodeError(
                        f"feed gives samples without end: {given.rows} of {given.most} records", fix=ONCE
                    )
            except Exception as error:
                raise self._explain(records, given, shard, reading, error, width) from error
            yield features, labels, rows, exact and self._keeps_order(held, features, rows)

    def _check_size(self, ready: int | None, records: int) -> None:
        """Refuses minibatches of a loader that are no updates of the job's size; a group asks for any number."""
        size = self._minibatch_size
        if ready is not None and (ready > size or ready < size <= records):
            raise UserCodeError(
                f"feed in {self._module.path} gives a DataLoader with batch_size={ready}, and an update of this job "
                f"has {size} records",
                fix=f"give it batch_size={size}, or the job --minibatch_size {ready}; or return the dataset itself",
            )

    def _check_begin(self, returned: Returned, given: FedRecords) -> None:
        """Refuses by the first sample what has no end, and what comes from elsewhere."""
        if not given.most:
            raise UserCodeError(
                f"feed in {self._module.path} gives samples without taking any of the records that it is given",
                fix="make samples of the records of its dataset: each task has its own, and custom_data_reader makes "
                "records of what is no file",
            )
        if returned.goes_round:
            raise UserCodeError(
                f"feed in {self._module.path} lets its records go round without end (itertools.cycle)", fix=ONCE
            )

    def _refuse_no_label(self, sample: Any) -> None:
        """Says which record has no label, before it is put together with others."""
        pair = isinstance(sample, tuple | list) and len(sample) == 2
        if pair and sample[1] is None and self._mode != "prediction" and self._module.collate is None:
            raise TypeError(f"the label is None, in mode {self._mode}")

    def _collated(self, samples: Sequence[Any]) -> Tensors:
        collate = self._module.collate
        return default_collate(list(samples)) if collate is None else collate(list(samples))

    def _keeps_order(self, held: Sequence[Any], features: Tensors, rows: int) -> bool:
        """Whether the rows that collate made are its samples in their order; in prediction it is tried.

        Who packs sequences sorts them by their lengths.
        """
        if rows != len(held) or rows < 2 or self._module.collate is None or self._mode != "prediction":
            return rows == len(held)
        try:
            with generators_kept(nn.Module(), self._module.roots):
                turned = self._collated([*held[1:], held[0]])
                return are_turned(features, turned, rows)
        except Exception:  # what user code raises
            return False

    def _with_one_less(self, returned: Returned, held: Sequence[Any]) -> Callable[[], Tensors]:
        """Puts the samples of a minibatch but for the last together; what counts its records is of interest."""

        def again() -> Tensors:
            # Whoever draws in collate draws for the minibatch alone.
            with generators_kept(nn.Module(), self._module.roots):
                made = returned.with_one_less() if returned.with_one_less else self._collated(held[:-1])
            features, labels = self._split(made)
            return features if labels is None else labels

        return again

    def _split(self, batch: Any) -> tuple[Tensors, Tensors]:
        if self._mode == "prediction":
            return batch, None
        if not isinstance(batch, tuple | list) or len(batch) != 2:
            raise not_a_pair(batch, self._module.path, self._mode)
        return batch[0], batch[1]

    def _explain(
        self,
        records: TaskRecords,
        given: FedRecords,
        shard: Shard,
        reading: Reading | None,
        error: Exception,
        width: int,
    ) -> ElasticDLError:
        """The reader's own error if it failed, else what the user's ``feed`` did, and on which latest records."""
        at: Sequence[Shard] = ()
        if given.given and not records.skipped:
            end = shard.start + given.given
            at = [Shard(shard.name, end - width, end)] if reading is None else reading.records(end - width, end)
        return records.explain(error, at=at)

"""Records by the master's leases, with the names and arguments of the original project's version 1.4."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

from elasticai_api.common.master_client import build_master_client
from elasticdl.own_loop import END, LoopFeed, other_batch_size
from elasticdl_core.errors import InvalidInputError, UserCodeError

TRAINING = 1
"""The original's number for tasks of training."""


@dataclass(frozen=True)
class FetchedShard:
    """Records to be trained on as one batch.

    Attributes:
        name: of the dataset.
        start: the first record.
        end: the one behind the last.
    """

    name: str
    start: int
    end: int


class DataShardService:
    """Records of the job, counted when a batch of them is reported.

    How records are cut and ordered is the job's to say: what is given here is compared with it.

    Args:
        batch_size: records in a batch of one worker.
        num_epochs: passes over the records; not compared if not given.
        dataset_size: number of records.
        shuffle: whether their order is random; True is compared.
        shuffle_shards: the same.
        task_type: training is the only one.
        num_minibatches_per_shard: batches in a task; compared if it is given.
        dataset_name: a name for messages.
        master_client: what ``build_master_client`` gives, which it is without one.
        remainder: must be left out.

    Raises:
        UserCodeError: the job says otherwise.
    """

    def __init__(
        self,
        batch_size: int,
        num_epochs: int | None = None,
        dataset_size: int | None = None,
        shuffle: bool = False,
        shuffle_shards: bool = False,
        task_type: int = TRAINING,
        num_minibatches_per_shard: int = 0,
        dataset_name: str | None = None,
        master_client: LoopFeed | None = None,
        remainder: object = None,
    ) -> None:
        feed = build_master_client() if master_client is None else master_client
        if task_type != TRAINING:
            raise UserCodeError(f"tasks of type {task_type} are not given to scripts", fix="evaluate in the script")
        if remainder is not None:
            raise UserCodeError("the data shard service takes no remainder", fix="leave it out")
        if dataset_size is None:
            raise UserCodeError(
                "the number of records is not known", fix="give dataset_size, or use elasticdl.torch.ElasticDataset"
            )
        if feed.batch_size % batch_size:
            raise other_batch_size(batch_size, feed)
        if num_epochs is not None and num_epochs != feed.epochs:
            raise UserCodeError(
                f"the script wants {num_epochs} epochs, and the job has {feed.epochs}",
                fix=f"give `elasticdl run` --num_epochs {num_epochs}",
            )
        if (shuffle or shuffle_shards) and not feed.shuffles:
            raise UserCodeError("the script wants records in random order", fix="leave --no-shuffle out")
        wanted, cut = num_minibatches_per_shard * batch_size, feed.records_per_task
        if num_minibatches_per_shard and wanted != cut:
            raise UserCodeError(
                f"the script wants shards of {wanted} records, and the job has tasks of {cut}",
                fix=f"give `elasticdl run` --num_minibatches_per_task {max(1, wanted // feed.records_per_update)}, "
                "or leave num_minibatches_per_shard out",
            )
        feed.use_records(dataset_size)
        self._feed = feed
        self._batch_size = batch_size
        self._size = dataset_size
        self._name = dataset_name or "training"
        self._begun = False

    def get_minibatch_count_per_epoch(self) -> int:
        """Whole batches in a pass over the records."""
        return self._size // self._batch_size

    @property
    def updates_per_epoch(self) -> int:
        """Updates that a pass over the records takes."""
        return -(-self._size // self._feed.records_per_update)

    def get_current_epoch(self) -> int:
        """Returns the number of the present pass over the records, from 0."""
        return self._feed.epoch

    def fetch_shard(self) -> FetchedShard | None:
        """The records of the next batch, or None when all are done. Report the batch before the next one is fetched.

        Raises:
            UserCodeError: the records come in random order, so that they are no range; or the last batch was not
                reported.
        """
        if self._feed.shuffles:
            raise UserCodeError(
                "a shard is a range of records, and the job's are in random order",
                fix="give `elasticdl run` --no-shuffle, or take them from a RecordIndexService",
            )
        if self._feed.uncommitted:
            raise UserCodeError(
                "a shard was fetched before the one before it was reported",
                fix="call report_batch_done() after each shard, before the next one is fetched",
            )
        first = self._next_record()
        if first is None:
            return None
        count = 1
        while count < self._batch_size and self._feed.take() is not END:
            count += 1
        return FetchedShard(self._name, first, first + count)

    def report_batch_done(
        self, batch_size: int | None = None, err_msg: str = "", task_ids: Sequence[int] = ()
    ) -> bool:
        """The batch is applied; does nothing where the step of a ``DistributedOptimizer`` has said so.

        Args:
            batch_size: its records; all that were fetched since the last report.
            err_msg: why the batch failed.
            task_ids: must be left out.

        Returns:
            Whether records were counted.

        Raises:
            UserCodeError: the batch failed, or is a part of the records that were fetched.
        """
        if err_msg:
            raise UserCodeError(f"a batch failed: {err_msg}", fix="correct the script")
        if task_ids:
            raise UserCodeError("tasks are not reported by their numbers", fix="leave task_ids out")
        if not self._feed.uncommitted:
            return False
        if batch_size is not None and batch_size < self._feed.uncommitted:
            raise UserCodeError(
                f"a batch of {batch_size} records is reported, and {self._feed.uncommitted} were fetched",
                fix="report all records that were fetched, as one batch, before the next ones are fetched",
            )
        self._feed.commit()
        return True

    def _next_record(self) -> int | None:
        """The next record of any pass; None when all are done."""
        while True:
            if not self._begun:
                self._feed.begin_pass()
                self._begun = True
            record = self._feed.take()
            if record is not END:
                return int(record)
            if self._feed.uncommitted:
                return int(self._feed.again())
            if self._feed.finished:
                return None
            self._begun = False


class RecordIndexService(DataShardService):
    """Gives out indexes of records one by one; arguments as for ``DataShardService``.

    A ``DataLoader`` whose dataset holds the service reads in the process that trains, whatever its ``num_workers``.
    """

    def __init__(
        self,
        batch_size: int,
        num_epochs: int | None = None,
        dataset_size: int | None = None,
        task_type: int = TRAINING,
        shuffle: bool = False,
        num_minibatches_per_shard: int = 0,
        dataset_name: str | None = None,
        master_client: LoopFeed | None = None,
        num_workers: int = 1,
    ) -> None:
        super().__init__(
            batch_size,
            num_epochs,
            dataset_size,
            shuffle,
            task_type=task_type,
            num_minibatches_per_shard=num_minibatches_per_shard,
            dataset_name=dataset_name,
            master_client=master_client,
        )
        from elasticdl.torch.loaders import read_where_it_trains

        read_where_it_trains(self)

    def fetch_record_index(self) -> int:
        """The next index. A batch that the data cut short is filled up with its own records, which count once.

        Raises:
            StopIteration: all records are done.
            InvalidInputError: this is a process of a ``DataLoader``.
        """
        from torch.utils.data import get_worker_info

        if get_worker_info() is not None:
            raise InvalidInputError(
                "records are given to the process that trains", fix="give DataLoader num_workers=0"
            )
        record = self._next_record()
        if record is None:
            raise StopIteration
        return record

    def record_index_gen(self) -> Iterator[int]:
        """All indexes."""
        while (record := self._next_record()) is not None:
            yield record


def build_data_shard_service(
    batch_size: int,
    num_epochs: int | None = None,
    dataset_size: int | None = None,
    shuffle: bool = False,
    shuffle_shards: bool = False,
    task_type: int = TRAINING,
    num_minibatches_per_shard: int = 0,
    dataset_name: str | None = None,
    remainder: object = None,
) -> DataShardService:
    """Makes a ``DataShardService``, whose arguments these are."""
    return DataShardService(
        batch_size=batch_size,
        num_epochs=num_epochs,
        dataset_size=dataset_size,
        shuffle=shuffle,
        shuffle_shards=shuffle_shards,
        task_type=task_type,
        num_minibatches_per_shard=num_minibatches_per_shard,
        dataset_name=dataset_name,
        remainder=remainder,
    )

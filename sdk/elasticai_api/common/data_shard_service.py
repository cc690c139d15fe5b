"""Indexes of records by the master's leases, with the names and arguments of the original project."""

from __future__ import annotations

from elasticdl.own_loop import END, LoopFeed
from elasticdl_core.errors import InvalidInputError, UserCodeError

TRAINING = 0


class DataShardService:
    """Records of the job, counted when a batch of them is reported.

    How records are cut and ordered is the job's to say: what is given here is compared with it.

    Args:
        master_client: what ``build_master_client`` gives.
        batch_size: records in a batch of one worker.
        num_epochs: passes over the records; not compared if not given.
        dataset_size: number of records.
        shuffle: whether their order is random; not compared.
        shuffle_shards: the same.
        task_type: training is the only one.

    Raises:
        UserCodeError: the job says otherwise.
    """

    def __init__(
        self,
        master_client: LoopFeed,
        batch_size: int,
        num_epochs: int | None = None,
        dataset_size: int | None = None,
        shuffle: bool = False,
        shuffle_shards: bool = False,
        task_type: int = TRAINING,
    ) -> None:
        feed = master_client
        if task_type != TRAINING:
            raise UserCodeError(f"tasks of type {task_type} are not given to scripts", fix="evaluate in the script")
        if dataset_size is None:
            raise UserCodeError(
                "the number of records is not known", fix="give dataset_size, or use elasticdl.torch.ElasticDataset"
            )
        if feed.minibatch_size % batch_size:
            raise UserCodeError(
                f"the script has batches of {batch_size} records, and the job minibatches of {feed.minibatch_size}",
                fix=f"give `elasticdl run` --minibatch_size {batch_size}",
            )
        if num_epochs is not None and num_epochs != feed.epochs:
            raise UserCodeError(
                f"the script wants {num_epochs} epochs, and the job has {feed.epochs}",
                fix=f"give `elasticdl run` --num_epochs {num_epochs}",
            )
        if (shuffle or shuffle_shards) and not feed.shuffles:
            raise UserCodeError("the script wants records in random order", fix="leave --no-shuffle out")
        feed.use_records(dataset_size)
        self._feed = feed

    def report_batch_done(self, batch_size: int | None = None, err_msg: str = "") -> bool:
        """The batch is applied; does nothing where the step of a ``DistributedOptimizer`` has said so.

        Returns:
            Whether records were counted.

        Raises:
            UserCodeError: the batch failed.
        """
        if err_msg:
            raise UserCodeError(f"a batch failed: {err_msg}", fix="correct the script")
        if not self._feed.uncommitted:
            return False
        self._feed.commit()
        return True


class RecordIndexService(DataShardService):
    """Gives out indexes of records one by one; arguments as for ``DataShardService``."""

    def __init__(
        self,
        master_client: LoopFeed,
        batch_size: int,
        num_epochs: int | None = None,
        dataset_size: int | None = None,
        task_type: int = TRAINING,
        shuffle: bool = False,
    ) -> None:
        super().__init__(master_client, batch_size, num_epochs, dataset_size, shuffle, task_type=task_type)
        self._begun = False

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
                raise StopIteration
            self._begun = False

"""The records of a job, for a training loop of one's own."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from typing import Any

import torch
from torch.utils.data import Dataset, IterableDataset, get_worker_info

from elasticdl.own_loop import END, current_feed
from elasticdl.torch.loaders import take_shuffle
from elasticdl_core.errors import InvalidInputError, UserCodeError


class ElasticDataset(IterableDataset[Any]):
    """The records of the job that the present process works for, in the order of the job's plan.

    Iterate over it, or give it to a ``DataLoader`` without processes of its own. One iteration is a pass: it ends
    with the epoch, and after a minibatch that the data cut short. The records of a batch count when ``commit`` is
    called, or ``step`` of a ``distributed_optimizer``; those of a loop that was left before come again.

    Args:
        dataset: where the samples come from: anything with a length and ``[]``. Without one they are the records of
            the job's ``training_data``: ``bytes``, or dicts by column.
        transform: makes a sample of each.
    """

    def __init__(self, dataset: Dataset[Any] | None = None, *, transform: Callable[[Any], Any] | None = None) -> None:
        self._feed = current_feed("ElasticDataset")
        size: int | None = None
        if dataset is not None:
            if not hasattr(dataset, "__len__") or not hasattr(dataset, "__getitem__"):
                raise UserCodeError(
                    f"a {type(dataset).__name__} has no length or no numbered samples",
                    fix="give ElasticDataset() a dataset with __len__ and __getitem__",
                )
            size = len(dataset)
        self._feed.use_records(size)
        take_shuffle(ElasticDataset, self._feed)
        self._dataset: Any = dataset
        self._transform = transform

    @property
    def batch_size(self) -> int:
        """Records that the loop's batches must have: those of an update (``--minibatch_size``) by its parts."""
        return self._feed.batch_size

    @property
    def epoch(self) -> int:
        """The number of the pass that the present record is of, from 0."""
        return self._feed.epoch

    @property
    def updates(self) -> int:
        """Updates that all workers together have made: the version of the model."""
        return self._feed.updates

    @property
    def finished(self) -> bool:
        """Whether all records of all epochs are done."""
        return self._feed.finished

    def commit(self, loss: float | torch.Tensor | None = None) -> None:
        """The batch is applied: its records are done.

        Only for loops whose optimizer is not a ``distributed_optimizer``, which does it itself.

        Args:
            loss: the batch's mean loss, to be shown.
        """
        self._feed.commit(float(loss.detach()) if isinstance(loss, torch.Tensor) else loss)

    def skip(self) -> None:
        """The batch makes no gradient: no step is made of it, and its records are counted as passed over.

        A loop that goes on to the next batch (``continue``, a step that a ``GradScaler`` leaves out) has skipped it,
        too; this is for the last batch of a pass as well.
        """
        self._feed.skip()

    def __len__(self) -> int:
        """Records of an epoch, of all workers together; so ``len(loader)`` is the number of batches of them all."""
        if self._dataset is None:
            raise TypeError(
                "the number of the job's records is not known to its script: give a schedule its number of steps, or "
                "let it ask ElasticDataset.updates"
            )
        return len(self._dataset)

    def __iter__(self) -> Iterator[Any]:
        if get_worker_info() is not None:
            raise InvalidInputError(
                "an ElasticDataset is read in the process that trains", fix="give DataLoader num_workers=0"
            )
        self._feed.begin_pass()
        while (record := self._feed.take()) is not END:
            sample = record if self._dataset is None else self._dataset[record]
            yield sample if self._transform is None else self._transform(sample)

"""The original project's controller of an elastic training loop, on ``elasticdl.torch``."""

from __future__ import annotations

import functools
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from torch import nn
from torch.optim import Optimizer

from elasticai_api.common.data_shard_service import DataShardService, RecordIndexService
from elasticai_api.common.master_client import build_master_client
from elasticdl.torch.distributed import DistributedOptimizer
from elasticdl_core.errors import UserCodeError


def create_elastic_controller(
    batch_size: int, num_epochs: int | None = None, dataset_size: int | None = None, shuffle: bool = False
) -> PyTorchAllReduceController:
    """Makes the controller of this process; its ``data_shard_service`` gives indexes of records.

    Args:
        batch_size: records in a batch of one worker.
        num_epochs: passes over the records.
        dataset_size: number of records.
        shuffle: whether their order is random.
    """
    service = RecordIndexService(
        batch_size=batch_size, num_epochs=num_epochs, dataset_size=dataset_size, shuffle=shuffle
    )
    return PyTorchAllReduceController(service)


class PyTorchAllReduceController:
    """Runs batches; workers that come and go do not show.

    Args:
        data_shard_service: gives the records.

    Attributes:
        data_shard_service: the same.
        batch_count_per_epoch: whole batches in a pass over the records.
    """

    def __init__(self, data_shard_service: DataShardService) -> None:
        self.data_shard_service = data_shard_service
        self.batch_count_per_epoch = data_shard_service.get_minibatch_count_per_epoch()
        self._feed = build_master_client()
        self._model: nn.Module | None = None
        self._optimizer: Optimizer | None = None

    @property
    def global_completed_batch_num(self) -> int:
        """Batches that all workers together have done."""
        return self._feed.updates * self._feed.microbatches

    def get_current_epoch(self) -> int:
        """Passes over the records that are done, by the number of updates; a newcomer's is that of the others."""
        begun = self._feed.epoch
        return max(begun, min(self._feed.updates // self.data_shard_service.updates_per_epoch, begun + 1))

    def set_resume_epoch(self, epoch: int) -> None:
        """Checks that the script begins where the job does, which goes on by itself where it was.

        Raises:
            UserCodeError: it wants to begin elsewhere.
        """
        if epoch != self._feed.epoch:
            raise UserCodeError(
                f"the script wants to go on with epoch {epoch}, and the job is in epoch {self._feed.epoch}",
                fix="leave set_resume_epoch out: a job goes on where it was",
            )

    def set_broadcast_model(self, model: nn.Module) -> None:
        """The model, whose parameters and buffers newcomers get."""
        self._model = model
        self._join()

    def set_broadcast_optimizer(self, optimizer: Optimizer) -> None:
        """The optimizer, whose state newcomers get."""
        self._optimizer = optimizer
        self._join()

    def elastic_run(self, func: Callable[..., Any]) -> Callable[..., Any]:
        """Wraps the function that trains on one batch: its records count when it has returned."""

        @functools.wraps(func)
        def train_one_batch(*args: Any, **kwargs: Any) -> Any:
            result = func(*args, **kwargs)
            self.data_shard_service.report_batch_done()
            return result

        return train_one_batch

    @contextmanager
    def scope(self) -> Iterator[None]:
        """A context for the loop."""
        yield

    def _join(self) -> None:
        if self._model is not None and isinstance(self._optimizer, DistributedOptimizer):
            self._optimizer.keep_model(self._model)

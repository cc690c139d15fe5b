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
from elasticdl.own_loop import LoopFeed
from elasticdl.torch.distributed import DistributedOptimizer


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
    feed = build_master_client()
    service = RecordIndexService(
        feed, batch_size=batch_size, num_epochs=num_epochs, dataset_size=dataset_size, shuffle=shuffle
    )
    return PyTorchAllReduceController(feed, service)


class PyTorchAllReduceController:
    """Runs batches; workers that come and go do not show.

    Args:
        master_client: what ``build_master_client`` gives.
        data_shard_service: gives the records.

    Attributes:
        data_shard_service: the same.
    """

    def __init__(self, master_client: LoopFeed, data_shard_service: DataShardService) -> None:
        self.data_shard_service = data_shard_service
        self._feed = master_client
        self._model: nn.Module | None = None
        self._optimizer: Optimizer | None = None

    @property
    def global_completed_batch_num(self) -> int:
        """Batches that all workers together have done."""
        return self._feed.updates * self._feed.microbatches

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

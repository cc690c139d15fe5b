"""Minibatches by a ``feed`` of columns, in PyTorch."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
import torch

from elasticdl_worker.trainers.column_feed import ColumnFeed
from elasticdl_worker.trainers.minibatch import Tensors
from elasticdl_worker.trainers.torch.nested import leaves


class TorchColumnPipeline(ColumnFeed):
    """Minibatches of tasks, for one mode; arrays become tensors of the same memory."""

    def _as_tensors(self, given: Any) -> Tensors:
        if isinstance(given, Mapping):
            return {key: self._as_tensors(value) for key, value in given.items()}
        if isinstance(given, tuple | list):
            made = [self._as_tensors(value) for value in given]
            return type(given)(*made) if hasattr(given, "_fields") else type(given)(made)
        if isinstance(given, np.ndarray) and given.dtype != object:
            return torch.from_numpy(np.ascontiguousarray(given))
        return torch.as_tensor(given) if isinstance(given, np.generic | int | float) else given

    def _leaves(self, tensors: Tensors) -> Sequence[Any]:
        return leaves(tensors)

    def _values(self, tensor: Any) -> Any:
        return tensor.detach().cpu().numpy() if tensor.dtype != torch.bfloat16 else None

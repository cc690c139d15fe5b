"""The client of all parameter servers of a job."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.model import DenseSpec, OptimizerSpec, TableSpec, UpdateMode
from elasticdl_worker.parameters.types import Gradients, Pulled, PushResult


class ParameterClient:
    """Talks to all PS of a job: one RPC per PS and call, all PS in parallel.

    Args:
        addresses: of PS 0, 1, ...
        token: returns the present job token.
        worker: the worker's incarnation as its token says it, e.g. ``worker-3.1``.
        wire_dtype: ``float32`` or ``bfloat16`` for rows and their gradients on the wire.
        patience_s: for how long an unreachable PS is tried again.
    """

    def __init__(
        self,
        addresses: Sequence[str],
        token: Callable[[], str],
        worker: str,
        wire_dtype: str = "float32",
        *,
        patience_s: float = 120.0,
    ) -> None:
        raise NotImplementedError

    async def ensure_model(
        self,
        dense: Mapping[str, NDArray[Any]],
        specs: Sequence[DenseSpec],
        tables: Sequence[TableSpec],
        optimizer: OptimizerSpec,
        mode: UpdateMode,
    ) -> bool:
        """Declares the model, and initialises it unless that was done before; True if this call did."""
        raise NotImplementedError

    async def pull(self, ids: Mapping[str, NDArray[np.int64]], *, dense: bool = True, pin: int = 0) -> Pulled:
        """Reads rows (ids unique per table) and the dense parameters that changed since the last pull."""
        raise NotImplementedError

    async def push(self, gradients: Gradients, *, version: int, learning_rate: float = 0.0) -> PushResult:
        """Applies gradients once, whatever the network does; ``version`` is that of the pull they come from."""
        raise NotImplementedError

    async def update_servers(self, addresses: Sequence[str], generation: str) -> None:
        """Takes the addresses of PS that were replaced; the next pull reads everything anew."""
        raise NotImplementedError

    async def close(self) -> None:
        """Closes the channels."""
        raise NotImplementedError

"""The amount of work of a model's operations, and whether a second thread is worth its while for them.

Nothing here looks at a clock: the number of threads changes the last bits of sums, so it follows from the model and
the size of a minibatch alone, the same in every worker and each time (performance log, 63).
"""

from __future__ import annotations

import math
from typing import Any

import torch
from torch.utils._python_dispatch import TorchDispatchMode
from torch.utils.flop_counter import flop_registry

SMALL = 10e6
"""Work up to which an operation, on average, gains less by a second thread than waiting for that one costs."""
_ELEMENT = 16
"""The work of an element that is only read and written, in floating-point operations of a product."""
_SHARED_ELEMENTS = 32768
"""PyTorch gives operations on fewer elements to one thread anyway."""
_SHARED_WORK = 1e6
"""And products with less to do than this, about."""
_UNCOUNTED = (
    "attention",
    "cdist",
    "cholesky",
    "conv",
    "dot",
    "fft",
    "gru",
    "linalg",
    "linear",
    "lstm",
    "mm",
    "multi_head",
    "mv",
    "qr",
    "rnn",
    "solve",
    "svd",
    "transform",
)
"""Parts of names of operations that do far more than their results show, where PyTorch cannot say how much."""


class OperationWork(TorchDispatchMode):  # type: ignore[no-untyped-call]  # of PyTorch
    """Notes what each operation has to do, while it is entered."""

    def __init__(self) -> None:
        super().__init__()  # type: ignore[no-untyped-call]  # of PyTorch
        self._known = True
        self._products: list[float] = []
        self._elements: list[int] = []

    def mean(self, scale: float) -> float:
        """The mean work of the operations that several threads would share; infinite where nobody can tell.

        Args:
            scale: how often the records that were seen are in a minibatch.
        """
        if not self._known:
            return math.inf
        shared = [work for one in self._products if (work := one * scale) >= _SHARED_WORK]
        shared += [one * scale * _ELEMENT for one in self._elements if one * scale >= _SHARED_ELEMENTS]
        return sum(shared) / len(shared) if shared else 0.0

    def __torch_dispatch__(self, func: Any, types: Any, args: Any = (), kwargs: Any = None) -> Any:
        """Runs an operation."""
        result = func(*args, **(kwargs or {}))
        self._note(func, args, kwargs or {}, result)
        return result

    def _note(self, func: Any, args: Any, kwargs: Any, result: Any) -> None:
        packet = func.overloadpacket
        count = flop_registry.get(packet)
        if count is not None:
            self._products.append(float(count(*args, **kwargs, out_val=result)))
        elif func.namespace != "aten" or any(part in packet.__name__ for part in _UNCOUNTED):
            self._known = False
        elif not func.is_view:
            made = result if isinstance(result, tuple | list) else (result,)
            self._elements += [one.numel() for one in made[:1] if isinstance(one, torch.Tensor)]


def one_thread_is_better(work: float, threads: int) -> bool:
    """Whether a worker beside parameter servers had better compute with one thread.

    Of two cores the server, the event loop and the reading want about one while a step goes on.

    Args:
        work: the mean of the operations of a minibatch.
        threads: those that are the worker's share of the machine.
    """
    return threads == 2 and work <= SMALL

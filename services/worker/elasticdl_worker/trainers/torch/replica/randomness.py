"""Seeds what is random in a model and in ``feed``, so that it follows from numbers alone, whoever computes it.

PyTorch, numpy and Python draw from one generator each in a process. A member reads the next microbatch in one thread
while it computes in another: so each of the two has the generators for itself while it runs, and seeds them first.
"""

from __future__ import annotations

import contextlib
import random
import threading
from collections.abc import Iterator, Sequence
from typing import Any

import numpy as np
import torch

from elasticdl_worker.trainers.torch.device import HOST, seed_of
from elasticdl_worker.trainers.torch.model.trials import OwnGenerator


class SharedRandomness:
    """The generators of this process, for one user at a time.

    Args:
        generators: those that the user's files and model hold themselves.
        device: whose generator is seeded besides.
    """

    def __init__(self, generators: Sequence[OwnGenerator] = (), device: torch.device = HOST) -> None:
        self._generators = list(generators)
        self._seed_device = None if device == HOST else seed_of(device)
        self._lock = threading.Lock()

    @contextlib.contextmanager
    def seeded(self, seed: int) -> Iterator[None]:
        """A context in which all generators begin at a seed, and nobody else draws from them."""
        with self._lock:
            torch.default_generator.manual_seed(seed)
            if self._seed_device is not None:
                self._seed_device(seed)
            np.random.seed(seed & 0xFFFFFFFF)
            random.seed(seed)
            for number, generator in enumerate(self._generators):
                _seed(generator, (seed + 0x9E3779B9 * (number + 1)) & 0x7FFFFFFF)
            yield


def _seed(generator: OwnGenerator, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        kind: Any = type(generator.bit_generator)
        generator.bit_generator.state = kind(seed).state
    else:
        generator.seed(seed)

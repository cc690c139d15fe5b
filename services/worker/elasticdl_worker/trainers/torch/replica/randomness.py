"""Seeds what is random in a model and in ``feed``, so that it follows from numbers alone, whoever computes it.

PyTorch, numpy and Python draw from one generator each in a process. A member reads the next microbatch in one thread
while it computes in another: so each of the two has the generators for itself while it runs, and seeds them first.
"""

from __future__ import annotations

import contextlib
import random
import sys
import threading
from collections.abc import Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any, TypeAlias

import numpy as np
import torch
from torch import nn

from elasticdl_worker.trainers.torch.device import HOST, seed_of

OwnGenerator: TypeAlias = torch.Generator | np.random.Generator | np.random.RandomState | random.Random
_KINDS = (torch.Generator, np.random.Generator, np.random.RandomState, random.Random)


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


def find_generators(net: nn.Module, roots: Sequence[Path]) -> list[OwnGenerator]:
    """The generators that a model and the user's files hold, in an order that is the same in each process.

    Args:
        net: the model.
        roots: directories of the user's files.
    """
    holders: list[Mapping[str, Any]] = [vars(layer) for layer in net.modules()]
    for name in sorted(sys.modules):
        file = getattr(sys.modules[name], "__file__", None)
        if file and any(Path(file).is_relative_to(root) for root in roots):
            holders.append(vars(sys.modules[name]))
    found = {id(value): value for holder in holders for value in list(holder.values()) if isinstance(value, _KINDS)}
    return list(found.values())


def _seed(generator: OwnGenerator, seed: int) -> None:
    if isinstance(generator, torch.Generator):
        generator.manual_seed(seed)
    elif isinstance(generator, np.random.Generator):
        kind: Any = type(generator.bit_generator)
        generator.bit_generator.state = kind(seed).state
    else:
        generator.seed(seed)

"""Loaders whose samples are those that a service says, read in the process that trains.

The original project's services were asked by the processes of a ``DataLoader``, far ahead of training. Here the
master says which records come next when those before are applied: nothing could be read ahead, and processes of a
loader's own would only wait for each other. A script that asks for them runs all the same.
"""

from __future__ import annotations

import copy
import functools
import inspect
import logging
import weakref
from collections.abc import Iterator, Sequence
from typing import Any

from torch.utils.data import DataLoader, Dataset

from elasticdl.own_loop import LoopFeed
from elasticdl_core.errors import UserCodeError

_log = logging.getLogger("elasticdl.torch")
_services: weakref.WeakSet[object] = weakref.WeakSet()
_DEPTH = 4
"""How far a dataset may lie within others, as in ``Subset``."""
_plain_iterator = DataLoader.__iter__
_plain_init = DataLoader.__init__


def read_where_it_trains(service: object) -> None:
    """Has loaders read in this process if their datasets hold the service."""
    _services.add(service)
    DataLoader.__iter__ = _iterator  # type: ignore[method-assign, assignment]


def take_shuffle(kind: type[Dataset[Any]], feed: LoopFeed) -> None:
    """Has ``DataLoader(dataset, shuffle=True)`` leave shuffling to the job; PyTorch refuses it of such datasets.

    The feed hears how many records a batch of the loader has.

    Args:
        kind: of the datasets.
        feed: of the job, which says whether it shuffles.
    """

    @functools.wraps(_plain_init)
    def init(loader: DataLoader[Any], dataset: Dataset[Any], *given: Any, **named: Any) -> None:
        bound = inspect.signature(_plain_init).bind(loader, dataset, *given, **named)
        if isinstance(dataset, kind) and bound.arguments.get("shuffle"):
            if not feed.shuffles:
                raise UserCodeError(
                    "DataLoader has shuffle=True, and the job --no-shuffle", fix="leave one of the two out"
                )
            _log.info("DataLoader's shuffle=True: the records come shuffled by the job already")
            bound.arguments["shuffle"] = None
        _plain_init(*bound.args, **bound.kwargs)
        if isinstance(dataset, kind):
            feed.loaded = loader.batch_size

    DataLoader.__init__ = init  # type: ignore[method-assign, assignment]


def _iterator(loader: DataLoader[Any]) -> Iterator[Any]:
    if not loader.num_workers or not _holds_a_service(loader.dataset, _DEPTH):
        return _plain_iterator(loader)
    _log.warning("records are read in the process that trains: DataLoader's num_workers=%d is 0", loader.num_workers)
    here = copy.copy(loader)
    here.num_workers, here.timeout, here.prefetch_factor = 0, 0, None
    return _plain_iterator(here)


def _holds_a_service(dataset: object, depth: int) -> bool:
    held = list(getattr(dataset, "__dict__", {}).values())
    if any(one is service for one in held for service in _services):
        return True
    return depth > 0 and any(_holds_a_service(one, depth - 1) for one in _datasets(held))


def _datasets(held: Sequence[object]) -> Iterator[object]:
    for one in held:
        if isinstance(one, Dataset):
            yield one
        elif isinstance(one, list | tuple) and one and isinstance(one[0], Dataset):
            yield from one

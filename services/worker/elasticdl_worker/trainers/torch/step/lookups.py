"""Finds the rows that minibatches need: which ids the model asks for, each of them once, and where it goes.

The ids come from the model itself: a copy of it runs without gradients until its last lookup. Where every lookup's
ids are a feature as it stands, nothing needs to run. A model that turns out to look up otherwise with other records
runs to its end.
"""

from __future__ import annotations

import copy

import numpy as np
import torch
from numpy.typing import NDArray

from elasticdl.torch.lookup import finding_rows
from elasticdl_core.errors import DataError
from elasticdl_core.model import NO_ID
from elasticdl_worker.trainers.framework import Lookups
from elasticdl_worker.trainers.minibatch import Tensors
from elasticdl_worker.trainers.torch.model.build import BuiltModel, explaining_tables
from elasticdl_worker.trainers.torch.model.calling import TorchModelCall
from elasticdl_worker.trainers.torch.model.scopes import EnoughCollectedError, Lookup, TorchCollectScope
from elasticdl_worker.trainers.torch.nested import leaves

_SMALL = 16
"""Up to so many possible ids for each that is looked up, a place for each of them is faster than to sort."""
_Asked = list[tuple[str, torch.Tensor, int | None]]


class TorchLookupCollector:
    """Finds the rows that minibatches of a model need; another thread than the one that trains may ask.

    Args:
        model: the model, built.
    """

    def __init__(self, model: BuiltModel) -> None:
        self._tables = model.tables
        self._net = model.host_net or (copy.deepcopy(model.net) if model.tables else model.net)
        self._call = TorchModelCall(self._net)
        self._expected: dict[bool, int] = {}
        self._places: dict[bool, list[int] | None] = {}
        self._named: dict[bool, list[tuple[str, int | None]]] = {}
        self._whole = False

    def run_whole(self) -> None:
        """Runs the whole model from now on: what it looked up with the first records does not hold for others."""
        self._whole = True

    def collect(self, *batches: Tensors, training: bool) -> Lookups:
        """Finds the rows that minibatches need together, from the features of each.

        Raises:
            DataError: an id outside the range of a closed table.
        """
        if not self._tables:
            return Lookups({}, [{} for _ in batches])
        whole = self._whole
        asked = [self._asked(features, training, whole=whole) for features in batches]
        unique: dict[str, torch.Tensor] = {}
        inverse: list[dict[str, list[Lookup]]] = [{} for _ in batches]
        known: dict[tuple[object, ...], tuple[torch.Tensor, list[torch.Tensor], int | None]] = {}
        for table in dict.fromkeys(name for lookups in asked for name, _, _ in lookups):
            mine = [(n, ids, pad) for n, lookups in enumerate(asked) for name, ids, pad in lookups if name == table]
            padding = mine[0][2]
            key = (padding, *(id(ids) for _, ids, _ in mine))
            if key not in known:
                known[key] = _distinct([ids for _, ids, _ in mine], padding, self._tables[table].input_dim)
            distinct, positions, place = known[key]
            self._check_range(table, distinct)
            unique[table] = distinct
            for (number, ids, _), found in zip(mine, positions, strict=True):
                inverse[number].setdefault(table, []).append(Lookup(ids, found, place))
        arrays = {id(ids): ids.numpy() for ids in unique.values()}
        return Lookups({table: arrays[id(ids)] for table, ids in unique.items()}, inverse, whole)

    def _asked(self, features: Tensors, training: bool, *, whole: bool) -> _Asked:
        places = None if whole else self._places.get(training)
        if places is not None:
            flat = leaves(features)
            return [
                (name, flat[at].to(torch.int64), pad)
                for at, (name, pad) in zip(places, self._named[training], strict=True)
            ]
        self._net.train(training)
        scope = TorchCollectScope(0 if whole else self._expected.get(training, 0))
        with finding_rows(scope), torch.no_grad(), explaining_tables():
            try:
                self._call(features)
            except EnoughCollectedError:
                return scope.lookups
        if training not in self._expected and not whole:
            self._expected[training] = len(scope.lookups)
            self._places[training] = _places(features, scope.lookups)
            self._named[training] = [(name, pad) for name, _, pad in scope.lookups]
        return scope.lookups

    def _check_range(self, table: str, ids: torch.Tensor) -> None:
        limit = self._tables[table].input_dim
        if not len(ids):
            return
        low, high = int(ids[0]), int(ids[-1])
        if limit is None:
            if low == NO_ID:
                raise DataError(f"embedding {table}: {low} is no id", fix="map the ids in feed")
        elif low < 0 or high >= limit:
            raise DataError(
                f"embedding {table}: the id {low if low < 0 else high} is outside [0, {limit})",
                fix="raise num_embeddings, or map the ids in feed; elasticdl.torch.Embedding takes any id",
            )


def _places(features: Tensors, lookups: _Asked) -> list[int] | None:
    """The features that are each lookup's ids, as they stand; None if one is none of them."""
    numbers = {id(leaf): number for number, leaf in enumerate(leaves(features)) if leaf.dtype == torch.int64}
    places = [numbers.get(id(ids)) for _, ids, _ in lookups]
    return None if None in places else [place for place in places if place is not None]


def _distinct(
    lookups: list[torch.Tensor], padding_idx: int | None, limit: int | None
) -> tuple[torch.Tensor, list[torch.Tensor], int | None]:
    """The distinct ids of lookups, ascending and without the padding, the position of each id, and of the padding.

    Args:
        lookups: ids of one or more lookups.
        padding_idx: the id that means padding.
        limit: all ids are to be less; None if there is no bound.
    """
    together = lookups[0].reshape(-1) if len(lookups) == 1 else torch.cat([ids.reshape(-1) for ids in lookups])
    count = together.numel()
    if limit is not None and 0 < limit <= _SMALL * count and together.min() >= 0 and together.max() < limit:
        found, places = _distinct_of_few(together.numpy(), limit)
        distinct, positions = torch.from_numpy(found), torch.from_numpy(places)
    else:
        distinct, positions = torch.unique(together, return_inverse=True)
    place = None
    if padding_idx is not None:
        at = int(torch.searchsorted(distinct, padding_idx))
        if at < len(distinct) and int(distinct[at]) == padding_idx:
            distinct = torch.cat([distinct[:at], distinct[at + 1 :]])
            positions = torch.where(
                positions > at, positions - 1, torch.where(positions == at, len(distinct), positions)
            )
        place = len(distinct)
    parts = torch.split(positions, [ids.numel() for ids in lookups])
    return distinct, [part.view(ids.shape) for part, ids in zip(parts, lookups, strict=True)], place


def _distinct_of_few(ids: NDArray[np.int64], limit: int) -> tuple[NDArray[np.int64], NDArray[np.int64]]:
    """The distinct ones among ids less than a limit, ascending, and the position of each id.

    In numpy, which needs no second thread: this is done while another thread computes, on cores that it wants.
    """
    seen = np.zeros(limit, np.bool_)
    seen[ids] = True
    distinct = np.flatnonzero(seen)
    places = np.empty(limit, np.int64)
    places[distinct] = np.arange(len(distinct))
    return distinct, places[ids]

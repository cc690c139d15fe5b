"""Tables of ``elasticdl.torch.Embedding`` in this process: they grow as ids are seen."""

from __future__ import annotations

from collections.abc import Mapping

import numpy as np
import torch
from numpy.typing import NDArray
from torch import nn, optim

from elasticdl.torch.lookup import FoundRows
from elasticdl_core.model import TableSpec
from elasticdl_runtime.initializers import first_rows

_FIRST_ROWS = 1024
_PADDING = 0
"""The row that padding reads: zeros."""


class TorchLocalTable:
    """Rows of one table, as the weight of its layers; the first row is that of the padding.

    Args:
        spec: the table; rows begin as they do on parameter servers.
        weight: the layers' own parameter; its numbers are replaced when the table grows.

    Attributes:
        asked: positions of the rows that were looked up, for who empties it.
    """

    def __init__(self, spec: TableSpec, weight: nn.Parameter) -> None:
        self.spec = spec
        self.weight = weight
        self.asked: list[torch.Tensor] = []
        self._index: dict[int, int] = {}
        weight.data = torch.zeros(_FIRST_ROWS, spec.dim, device=weight.device)

    def place(self, ids: torch.Tensor, optimizer: optim.Optimizer | None) -> torch.Tensor:
        """Finds or makes the rows of ids, of any shape; their positions."""
        # The index is the host's.
        unique, inverse = torch.unique(ids.cpu(), return_inverse=True)
        index, before = self._index, len(self._index)
        wanted = unique.tolist()
        places = torch.tensor([index.setdefault(one, len(index) + 1) for one in wanted], dtype=torch.int64)
        if len(index) > before:
            self._grow(len(index) + 1, optimizer)
            fresh = places > before
            with torch.no_grad():
                self._set(places[fresh], torch.from_numpy(first_rows(self.spec, unique[fresh].numpy())))
        return places[inverse].to(ids.device)

    def fill(self, ids: NDArray[np.int64], rows: NDArray[np.float32]) -> None:
        """Sets rows of unique ids."""
        places = self.place(torch.from_numpy(np.array(ids)), None)
        with torch.no_grad():
            self._set(places, torch.from_numpy(np.array(rows)))

    def _set(self, places: torch.Tensor, rows: torch.Tensor) -> None:
        self.weight[places.to(self.weight.device)] = rows.to(self.weight.device)

    def ids_and_rows(self) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
        """All ids that were seen, and their rows."""
        ids = np.fromiter(self._index, np.int64, len(self._index))
        return ids, np.array(self.weight.detach()[1 : len(ids) + 1].cpu().numpy())

    def _grow(self, needed: int, optimizer: optim.Optimizer | None) -> None:
        old = self.weight.data
        capacity = len(old)
        if needed <= capacity:
            return
        while capacity < needed:
            capacity *= 2
        self.weight.data = _extended(old, capacity, 0.0)
        self.weight.grad = None
        if optimizer is not None:
            self.fit(optimizer)

    def fit(self, optimizer: optim.Optimizer) -> None:
        """Gives what the optimizer keeps of the rows as many rows: Adagrad made its own before there were any."""
        capacity = len(self.weight)
        for name, value in optimizer.state.get(self.weight, {}).items():
            if isinstance(value, torch.Tensor) and value.ndim and len(value) < capacity:
                groups = (
                    group for group in optimizer.param_groups if any(one is self.weight for one in group["params"])
                )
                begins = next(groups).get("initial_accumulator_value", 0.0) if name == "sum" else 0.0
                optimizer.state[self.weight][name] = _extended(value, capacity, begins)


class TorchLocalTables:
    """All open tables of a model; the scope in which it runs.

    Args:
        specs: the tables.
        weights: the parameter of each.

    Attributes:
        optimizer: trains them; None for none.
        notes: whether tables note which rows are looked up.
    """

    def __init__(self, specs: Mapping[str, TableSpec], weights: Mapping[str, nn.Parameter]) -> None:
        self.tables = {name: TorchLocalTable(spec, weights[name]) for name, spec in specs.items()}
        self.optimizer: optim.Optimizer | None = None
        self.notes = False

    def use(self, optimizer: optim.Optimizer | None) -> None:
        """Says what trains the tables."""
        self.optimizer = optimizer
        for table in self.tables.values():
            if optimizer is not None:
                table.fit(optimizer)

    def find(self, table: str, ids: torch.Tensor, dim: int, padding_idx: int | None) -> FoundRows:
        """The rows of ids."""
        one = self.tables[table]
        sparse = isinstance(self.optimizer, optim.SparseAdam)
        if padding_idx is None:
            positions = one.place(ids, self.optimizer)
        else:
            padding = ids == padding_idx
            positions = torch.full_like(ids, _PADDING)
            positions[~padding] = one.place(ids[~padding], self.optimizer)
        if self.notes:
            one.asked.append(positions)
        if padding_idx is None:
            return FoundRows(one.weight, positions, None, sparse)
        return FoundRows(one.weight, positions, _PADDING, sparse)


def _extended(values: torch.Tensor, rows: int, begins: float) -> torch.Tensor:
    more = values.new_full((rows - len(values), values.shape[1]), begins)
    return torch.cat([values, more])

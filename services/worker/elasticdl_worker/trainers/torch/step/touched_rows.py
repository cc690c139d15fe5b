"""Updates of a local run that change no rows of a table but those of the minibatch, as parameter servers do it."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator
from typing import cast

import torch
from torch import nn, optim

from elasticdl_worker.trainers.torch.model.build import BuiltModel
from elasticdl_worker.trainers.torch.step.local_tables import TorchLocalTables


class TorchTouchedRows:
    """The rows of tables that a minibatch looked up: all others stay as they are, and so does what is kept of them.

    PyTorch's optimizers move every row of a weight, by momentum, averages and weight decay of its own. Here they are
    given the rows of the minibatch as if these were the weight.

    Args:
        model: the weights of its closed embeddings in it.
        tables: its open tables.
    """

    def __init__(self, model: BuiltModel, tables: TorchLocalTables) -> None:
        self._tables = tables
        self._layers = {name: model.registry.layers[name] for name in model.closed}
        self._asked: dict[str, list[torch.Tensor]] = {name: [] for name in self._layers}

    def begin(self) -> None:
        """Begins an update: nothing was looked up."""
        for asked in [*self._asked.values(), *(table.asked for table in self._tables.tables.values())]:
            asked.clear()

    @contextlib.contextmanager
    def noting(self) -> Iterator[None]:
        """A context in which the model runs forward and backward on the update's next minibatch."""
        for name, layers in self._layers.items():
            for layer in layers:
                layer.elasticdl_asked = self._asked[name]  # type: ignore[assignment]
        self._tables.notes = True
        try:
            yield
        finally:
            self._tables.notes = False
            for layers in self._layers.values():
                for layer in layers:
                    layer.elasticdl_asked = None  # type: ignore[assignment]

    def step(self, optimizer: optim.Optimizer) -> None:
        """Makes the update, of the rows that were noted."""
        with contextlib.ExitStack() as stack:
            for name, layers in self._layers.items():
                stack.enter_context(narrowed_to(cast(nn.Parameter, layers[0].weight), self._asked[name], optimizer))
            for table in self._tables.tables.values():
                stack.enter_context(narrowed_to(table.weight, table.asked, optimizer))
            optimizer.step()


@contextlib.contextmanager
def narrowed_to(weight: nn.Parameter, asked: list[torch.Tensor], optimizer: optim.Optimizer) -> Iterator[None]:
    """A context in which a weight, its gradient and what the optimizer keeps of it are some rows alone.

    Args:
        weight: of a table.
        asked: ids that were looked up, of any shape.
        optimizer: makes its update within.
    """
    whole, gradient = weight.data, weight.grad
    if gradient is None:
        yield
        return
    rows = _rows_of(gradient, asked)
    kept = {name: value for name, value in optimizer.state.get(weight, {}).items() if _has_rows(value, whole)}
    weight.grad = None
    weight.data = whole[rows]
    weight.grad = gradient.to_dense()[rows]
    for name, value in kept.items():
        optimizer.state[weight][name] = value[rows]
    yield
    state = optimizer.state.get(weight, {})
    for name, value in list(state.items()):
        if _has_rows(value, weight.data):
            state[name] = kept.get(name, torch.zeros_like(whole)).index_copy_(0, rows, value)
    weight.grad = None
    weight.data = whole.index_copy_(0, rows, weight.data)


def _has_rows(value: object, weight: torch.Tensor) -> bool:
    return isinstance(value, torch.Tensor) and value.shape == weight.shape


def _rows_of(gradient: torch.Tensor, asked: list[torch.Tensor]) -> torch.Tensor:
    """The rows that were looked up; where transforms of functions hide them, those with a gradient."""
    if gradient.is_sparse:
        return gradient.coalesce().indices()[0]
    if any(torch._C._functorch.is_functorch_wrapped_tensor(one) for one in asked) or not asked:
        return gradient.ne(0).flatten(1).any(1).nonzero().flatten()
    rows: torch.Tensor = torch.cat([one.reshape(-1) for one in asked]).unique()  # type: ignore[no-untyped-call]
    return rows.to(gradient.device, torch.int64)

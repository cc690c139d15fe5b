"""Minibatches of a local run that make one update together, merged as parameter servers merge those of a round."""

from __future__ import annotations

from collections.abc import Callable, Mapping

import torch

from elasticdl_worker.parameters import StateChange
from elasticdl_worker.trainers.minibatch import Minibatch, Tensors
from elasticdl_worker.trainers.state_merging import Merge
from elasticdl_worker.trainers.torch.model.build import BuiltModel
from elasticdl_worker.trainers.torch.step.denominators import TorchDenominators
from elasticdl_worker.trainers.torch.step.local_tables import TorchLocalTables


class TorchLocalRound:
    """The gradients of the present update: they weigh what the denominators of their losses do.

    Args:
        model: the model, all of it in this process.
        tables: its open tables.
        denominators: of the loss.
    """

    def __init__(self, model: BuiltModel, tables: TorchLocalTables, denominators: TorchDenominators) -> None:
        self._model = model
        self._tables = tables
        self._denominators = denominators
        self._forget()

    @property
    def is_open(self) -> bool:
        """Whether there are gradients that no update was made of."""
        return bool(self._records)

    def keeping(self, batch: Minibatch) -> Callable[[Tensors, Tensors], None] | None:
        """Keeps what the denominator of a minibatch is measured by; what is to be told labels and outputs, if any."""
        return self._denominators.keeping(batch.labels, batch.features)

    def weigh(self, records: int, loss: float) -> float:
        """The weight of the minibatch that was kept; 0 if none of its records counts."""
        return self._denominators.of(records, loss)

    def add(self, records: int, weight: float, before: Mapping[str, torch.Tensor]) -> None:
        """Takes the gradients that parameters have.

        Args:
            records: of the minibatch.
            weight: of its gradients.
            before: the state as it was before the minibatch.
        """
        averages = {
            name: change
            for name, change in self._model.merging.changes(before).items()
            if self._model.merging.rules[name] is Merge.AVERAGE
        }
        for name, change in averages.items():
            self._before.setdefault(name, before[name].double())
            self._averages.setdefault(name, []).append((records, change))
        for parameter in self._parameters():
            if (gradient := parameter.grad) is not None:
                # Where no record counts a gradient may be NaN.
                weighed = gradient * weight if weight else torch.zeros_like(gradient)
                total = self._totals.get(parameter)
                self._totals[parameter] = weighed if total is None else _fitting(total, weighed) + weighed
        self._records += records
        self._weight += weight

    def close(self) -> None:
        """Gives parameters the gradients of the update, and begins anew."""
        whole = 1.0 if self._denominators.adds else self._weight or 1.0
        for parameter in self._parameters():
            total = self._totals.get(parameter)
            parameter.grad = None if total is None else _fitting(total, parameter) / whole
        moved = {}
        for name, changes in self._averages.items():
            records = sum(count for count, _ in changes)
            keep = sum(change.keep * count for count, change in changes) / records
            adds = [torch.from_numpy(change.add).double() * (count / records) for count, change in changes]
            moved[name] = keep * self._before[name] + torch.stack(adds).sum(0).to(self._before[name].device)
        self._model.merging.restore(moved)
        self._forget()

    def _forget(self) -> None:
        self._totals: dict[torch.nn.Parameter, torch.Tensor] = {}
        self._averages: dict[str, list[tuple[int, StateChange]]] = {}
        self._before: dict[str, torch.Tensor] = {}
        self._records, self._weight = 0, 0.0

    def _parameters(self) -> list[torch.nn.Parameter]:
        of_tables = [table.weight for table in self._tables.tables.values()]
        return list(dict.fromkeys([*self._model.net.parameters(), *of_tables]))


def _fitting(total: torch.Tensor, other: torch.Tensor) -> torch.Tensor:
    """Gradients of a table that has grown since, with zeros for its new rows."""
    if total.shape == other.shape:
        return total
    if total.is_sparse:
        return torch.sparse_coo_tensor(total._indices(), total._values(), other.shape)
    return torch.cat([total, total.new_zeros(len(other) - len(total), *total.shape[1:])])

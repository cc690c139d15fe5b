"""The scopes in which a model runs: one notes the ids of its lookups, one answers them from the rows of a step."""

from __future__ import annotations

import contextlib
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass

import torch

from elasticdl.torch.lookup import FoundRows, finding_rows
from elasticdl_worker.trainers.framework import LookupsChangedError


class EnoughCollectedError(BaseException):
    """Not an error: the last lookup of a model is known, so that the rest of it need not run."""


class TorchCollectScope:
    """Notes the ids of each lookup and answers with zeros.

    Args:
        expected: number of lookups of the model, after which it need not go on; 0 lets it run to its end.

    Attributes:
        lookups: table, ids and padding id of each lookup, in order.
    """

    def __init__(self, expected: int = 0) -> None:
        self.lookups: list[tuple[str, torch.Tensor, int | None]] = []
        self._expected = expected

    def find(self, table: str, ids: torch.Tensor, dim: int, padding_idx: int | None) -> FoundRows:
        """Zeros."""
        self.lookups.append((table, ids, padding_idx))
        if len(self.lookups) == self._expected:
            raise EnoughCollectedError
        return FoundRows(torch.zeros(1, dim), torch.zeros_like(ids), None)


@dataclass(frozen=True)
class Lookup:
    """One lookup of a minibatch.

    Attributes:
        ids: that the model asked for.
        positions: of their rows among the table's distinct ids.
        padding: the position that means padding, right behind them; None for none.
    """

    ids: torch.Tensor
    positions: torch.Tensor
    padding: int | None


class TorchRowsScope:
    """Answers each lookup from the rows of the step.

    Args:
        rows: of each table, those of its distinct ids, and a row of zeros behind them where the table has padding.
        lookups: of the minibatch, by table.
    """

    def __init__(self, rows: Mapping[str, torch.Tensor], lookups: Mapping[str, Sequence[Lookup]]) -> None:
        self._rows = rows
        self._lookups = lookups
        self._calls: dict[str, int] = {}
        self._again = False

    @contextlib.contextmanager
    def answering_again(self) -> Iterator[None]:
        """A context for the backward pass, in which checkpointed parts run again: in any order, told by their ids."""
        self._again = True
        with finding_rows(self):
            yield

    def restart(self) -> None:
        """Begins with the first lookups again: the model is run anew."""
        self._calls.clear()

    def find(self, table: str, ids: torch.Tensor, dim: int, padding_idx: int | None) -> FoundRows:
        """The rows, by the lookup's place in the order of the table's lookups.

        Raises:
            LookupsChangedError: the model looks up otherwise than when its ids were collected.
        """
        known = self._lookups.get(table, ())
        if self._again:
            number = next((n for n, one in enumerate(known) if torch.equal(one.ids, ids)), len(known))
        else:
            number = self._calls.get(table, 0)
            self._calls[table] = number + 1
        if number >= len(known):
            raise LookupsChangedError(
                f"table {table}: the model looks up more often than when its ids were collected",
                fix="let the model call its embedding layers equally often each time",
            )
        found = known[number]
        if found.ids is not ids and not torch.equal(found.ids, ids):
            raise LookupsChangedError(
                f"the ids of the embedding {table} are not the same when they are computed again: they are random, "
                "or follow from what is trained",
                fix="compute ids from the features alone; draw random ones in feed, and give them as a feature",
            )
        return FoundRows(self._rows[table], found.positions, found.padding)

"""Messages between the training loop and the parameter servers."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from elasticdl_core.errors import ElasticDLError
from elasticdl_core.model import DenseSpec, OptimizerSpec, TableSpec, UpdateMode

Rates = tuple[float, ...]
"""The learning rate of each of the optimizer's groups; none for its own."""
Rows = tuple[NDArray[np.int64], NDArray[np.float32]]
"""Unique ids, shape ``[n]``, and one vector for each, shape ``[n, dim]``."""


LIMIT = "limit"
"""Why a push is refused after the job's last update: nothing more is to be trained."""


@dataclass(frozen=True, slots=True)
class PulledParameters:
    """Parameters as the PS hold them.

    Attributes:
        version: the model version; with several PS in asynchronous mode the largest of theirs. Give it to ``push``
            with the gradients that were computed on these parameters.
        dense: whole tensors by name, only those that changed since the last pull (all at first and at a pin).
            The arrays may be read-only.
        rows: float32 ``[len(ids), dim]`` for each table asked for, in the order of its ids.
    """

    version: int
    dense: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    rows: Mapping[str, NDArray[np.float32]] = field(default_factory=dict)


PullOutcome = PulledParameters | ElasticDLError | None
"""What became of a pull that went along with a push: parameters, or why there are none; None if none was made."""


@dataclass(frozen=True, slots=True)
class StateChange:
    """The change of a variable ``x`` of the model's state by minibatches: ``x`` becomes ``keep * x + add``.

    Attributes:
        keep: ``momentum ** updates`` for a moving average, 1 for a counter, 0 for what is just replaced; infinite
            where ``x`` becomes the larger, minus infinite where it becomes the smaller of ``x`` and ``add``.
        add: of the variable's shape and dtype.
    """

    keep: float
    add: NDArray[Any]


@dataclass(frozen=True, slots=True)
class Origin:
    """The parameters that gradients were computed on.

    Attributes:
        dense: by parameter name.
        rows: by table, in the order of the gradients' ids.
    """

    dense: Mapping[str, NDArray[Any]]
    rows: Mapping[str, NDArray[np.float32]]


@dataclass(frozen=True, slots=True)
class Gradients:
    """Gradients of one or more minibatches.

    Attributes:
        dense: gradients of trainable parameters by name, of the parameter's shape.
        rows: by table: unique ids and the merged gradient of each.
        state: changes of state by name.
        records: how many records they are of: their weight in a synchronous round.
        origin: the values of ``dense`` and rows of ``rows`` that they were computed on, where delays are compensated.
        task: epoch and index of the training task whose records they are, for the tally; None if of none.
        steps: of how many minibatches, each of which decays weights once.
        weight: in a synchronous round: the denominator of the loss, infinite where it is a sum; None for the records.
    """

    dense: Mapping[str, NDArray[Any]] = field(default_factory=dict)
    rows: Mapping[str, Rows] = field(default_factory=dict)
    state: Mapping[str, StateChange] = field(default_factory=dict)
    records: int = 1
    origin: Origin | None = None
    task: tuple[int, int] | None = None
    steps: int = 1
    weight: float | None = None


@dataclass(frozen=True, slots=True)
class PushResult:
    """The result of a push.

    Attributes:
        accepted: whether the gradients are, or will be with their round, part of the model. If not, pull and
            compute them anew.
        version: the model version after the push.
        reason: why it was refused: ``stale`` (too old for synchronous mode) or ``generation`` (a PS was replaced).
    """

    accepted: bool
    version: int
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ServedModel:
    """A model as parameter servers hold it.

    Attributes:
        version: the model version; with several PS in asynchronous mode the largest of theirs.
        dense: the dense parameters.
        tables: the embedding tables.
        optimizer: the optimizer.
        mode: how updates are made.
    """

    version: int
    dense: tuple[DenseSpec, ...]
    tables: tuple[TableSpec, ...]
    optimizer: OptimizerSpec
    mode: UpdateMode

"""The table of what a model module can bring and what becomes of it: honoured, translated or refused.

The checks of workers and of ``--local``, the look at a module when its job is submitted, and ``docs/honoured.md``
all read it, so that they cannot differ.
"""

from __future__ import annotations

from collections.abc import Mapping

from elasticdl_core.contract.entries import ENTRIES, LAYERS, MODELS
from elasticdl_core.contract.metrics import METRICS
from elasticdl_core.contract.optimizers import CALLBACKS, OPTIMIZERS, OPTIONS
from elasticdl_core.contract.row import Row, Subject, Verdict
from elasticdl_core.contract.torch import TORCH
from elasticdl_core.errors import UserCodeError

__all__ = ["TABLE", "Row", "Subject", "Verdict", "find", "refusal"]

TABLE: tuple[Row, ...] = (*ENTRIES, *MODELS, *LAYERS, *OPTIMIZERS, *OPTIONS, *CALLBACKS, *METRICS, *TORCH)
_BY_NAME: Mapping[tuple[Subject, str], Row] = {(row.subject, name): row for row in TABLE for name in row.names}


def find(subject: Subject, name: str) -> Row | None:
    """The row of a thing; None if the table does not have it."""
    return _BY_NAME.get((subject, name))


def refusal(subject: Subject, name: str, shown: str) -> UserCodeError:
    """The error for a thing that is refused.

    Args:
        subject: what kind of thing it is.
        name: its name in the table.
        shown: how to name it to the user, with its place where that is known.
    """
    row = _BY_NAME[subject, name]
    return UserCodeError(f"{shown} {row.how}", fix=row.fix)

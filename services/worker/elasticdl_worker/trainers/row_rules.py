"""The rule by which a local run moves the rows that a minibatch does not have: that of the job on a cluster."""

from __future__ import annotations

from collections.abc import Sequence

from elasticdl_core.job import JobSpec
from elasticdl_core.job.updates import words_of_rows
from elasticdl_core.model import OptimizerSpec


def rule_of_rows(spec: JobSpec, tables: Sequence[str], optimizer: OptimizerSpec | None) -> str:
    """The words about those rows, for the start of a local run; empty where either rule does the same.

    Args:
        spec: the job; by AllReduce all rows move, else those of a minibatch alone, as on parameter servers.
        tables: those of the model, with those that parameter servers would hold.
        optimizer: in the words of parameter servers; None where nothing is trained.
    """
    if optimizer is None:
        return ""
    return words_of_rows(tables, optimizer.name, optimizer.params_of_groups, by_group=spec.by_group)

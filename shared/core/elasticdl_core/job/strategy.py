"""Chooses the strategy of a job that leaves it to us (``auto``): by its specification, and by a look at its model.

Nothing of it is measured by a clock: the same job on the same model has the same strategy each time.
"""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from elasticdl_core.job.fields import ALL_REDUCE, OF_SERVERS, PARAMETER_SERVERS, JobType, default_of
from elasticdl_core.job.spec import JobSpec

_MOST_MEMBERS = 32
"""Each member is connected with each other one."""


@dataclass(frozen=True, slots=True)
class ModelProfile:
    """The profile of a model that a worker built.

    Attributes:
        dense_bytes: of the parameters that are no embeddings.
        embedding_bytes: of those that are looked up in.
        tables: how many of these parameter servers would hold as tables.
        refusal: why no group can train the model; empty if one can.
        unserved: why parameter servers cannot train it; empty if they can, or nobody looked.
        fault: why nobody can train it, or nothing could be learned of it; empty if it was looked at.
    """

    dense_bytes: int = 0
    embedding_bytes: int = 0
    tables: int = 0
    refusal: str = ""
    unserved: str = ""
    fault: str = ""

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> ModelProfile:
        """Reads JSON data.

        Raises:
            ValueError: a field is not what it should be.
            TypeError: likewise.
        """
        given: dict[str, Any] = {}
        for one in dataclasses.fields(cls):
            value = data.get(one.name, one.default)
            given[one.name] = str(value)[:500] if isinstance(one.default, str) else max(0, int(value))
        return cls(**given)


@dataclass(frozen=True, slots=True)
class StrategyChoice:
    """The strategy of a job: made once, and kept through all masters.

    Attributes:
        chosen: the strategy.
        reason: why it was chosen, for people.
        microbatches: into which an update of a group is cut; 0 where the specification says it, and for parameter
            servers.
    """

    chosen: str
    reason: str
    microbatches: int = 0

    def to_mapping(self) -> dict[str, Any]:
        """As JSON data."""
        microbatches = {"microbatches": self.microbatches} if self.microbatches else {}
        return {"chosen": self.chosen, "reason": self.reason, **microbatches}

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> StrategyChoice:
        """Reads what ``to_mapping`` gave."""
        return cls(str(data["chosen"]), str(data.get("reason", "")), int(data.get("microbatches") or 0))

    def applied_to(self, spec: JobSpec) -> JobSpec:
        """The specification with this strategy in place of ``auto``."""
        if spec.distribution_strategy == self.chosen:
            return spec
        applied = dataclasses.replace(spec, distribution_strategy=self.chosen)
        return dataclasses.replace(applied, microbatches=self.microbatches) if applied.by_group else applied

    @classmethod
    def of_group(cls, spec: JobSpec, reason: str) -> StrategyChoice:
        """AllReduce for a job: into how many parts an update is cut is said once, whatever becomes of the workers."""
        grouped = dataclasses.replace(spec, distribution_strategy=ALL_REDUCE)
        return cls(ALL_REDUCE, reason, grouped.microbatches_per_step)


def settled_strategy(spec: JobSpec) -> StrategyChoice | None:
    """The strategy that a specification alone leads to; None where the model or its checkpoint is to be looked at."""
    if spec.distribution_strategy != "auto":
        return StrategyChoice(spec.distribution_strategy, "it was asked for")
    for name in OF_SERVERS:
        if getattr(spec, name) != default_of(name):
            return StrategyChoice(PARAMETER_SERVERS, f"{name} is of parameter servers")
    if spec.xla == "on":
        return StrategyChoice(PARAMETER_SERVERS, "xla is on, which only workers of parameter servers use")
    if spec.type is JobType.TRAINING and spec.max_workers > _MOST_MEMBERS:
        return StrategyChoice(PARAMETER_SERVERS, f"{spec.max_workers} workers are too many for one group")
    return None


def choose_by_checkpoint(spec: JobSpec, *, has_tables: bool) -> StrategyChoice:
    """The strategy of a job that does not train: servers where there are tables for them to hold.

    Args:
        spec: the job.
        has_tables: whether the checkpoint that it reads has embedding tables.
    """
    if has_tables:
        return StrategyChoice(PARAMETER_SERVERS, "the checkpoint has embedding tables, which parameter servers share")
    reason = f"{spec.type.in_words} changes no parameters, and the checkpoint has no tables: each worker reads it"
    return StrategyChoice(ALL_REDUCE, reason)


def choose_strategy(spec: JobSpec, profile: ModelProfile) -> StrategyChoice:
    """The strategy that suits a model: parameter servers where it is of embeddings, else a group."""
    if profile.fault:
        return StrategyChoice(PARAMETER_SERVERS, f"the model could not be looked at: {profile.fault}")
    if profile.refusal:
        return StrategyChoice(PARAMETER_SERVERS, f"no group can train it: {profile.refusal}")
    if profile.unserved:
        return StrategyChoice.of_group(spec, f"parameter servers cannot train it: {profile.unserved}")
    size = f"{_mb(profile.dense_bytes)} of parameters"
    if profile.tables:
        tables = f"{profile.tables} embedding table{'s' if profile.tables > 1 else ''}"
        rows = f"{_mb(profile.embedding_bytes)} of rows"
        return StrategyChoice(PARAMETER_SERVERS, f"it has {tables} ({size} and {rows})")
    if profile.embedding_bytes > profile.dense_bytes:
        most = f"most of it is embeddings ({_mb(profile.embedding_bytes)}, and {size})"
        return StrategyChoice(PARAMETER_SERVERS, most)
    if profile.embedding_bytes:
        small = f"{_mb(profile.embedding_bytes)} of embeddings, each too small for a table"
        return StrategyChoice.of_group(spec, f"it has no embedding tables ({size} and {small})")
    return StrategyChoice.of_group(spec, f"it has no embedding tables ({size})")


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"

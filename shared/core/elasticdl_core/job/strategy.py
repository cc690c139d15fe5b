"""Which strategy a job has that leaves it to us (``auto``): by its specification, and by a look at its model."""

from __future__ import annotations

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elasticdl_core.job.fields import ALL_REDUCE, OF_SERVERS, PARAMETER_SERVERS, JobType
from elasticdl_core.job.spec import JobSpec, default_of

SMALL_BYTES = 8 << 20
"""A model of fewer bytes is summed in less time than parameter servers take to answer."""
LARGE_TABLE_BYTES = 64 << 20
"""Tables of more bytes are not summed whole for the few rows that a minibatch touches."""
_MOST_MEMBERS = 32
"""Each member is connected with each other one."""
_SERVER_CALL_S = 0.003
_SERVER_BYTES_PER_S = 0.6e9
"""Pull and push of a minibatch beside its computing: measured on one machine, both ways together."""
_SUM_S = 0.0015
_SUM_BYTES_PER_S = 1.0e9
"""A sum among members: measured on one machine."""


@dataclass(frozen=True, slots=True)
class ModelSight:
    """What a worker saw of a model that it built.

    Attributes:
        dense_bytes: of the parameters that are no tables.
        table_bytes: of the embedding tables.
        refusal: why no group can train the model; empty if one can.
        compute_s: seconds of one minibatch forward and backward; 0 where that was not timed.
        apply_s: seconds of one update.
        rows: rows of the minibatch that was timed.
    """

    dense_bytes: int = 0
    table_bytes: int = 0
    refusal: str = ""
    compute_s: float = 0.0
    apply_s: float = 0.0
    rows: int = 0

    @property
    def is_clear(self) -> bool:
        """Whether its size alone says which strategy suits it, so that nothing need be timed."""
        small = self.dense_bytes + self.table_bytes <= SMALL_BYTES
        return bool(self.refusal) or small or self.table_bytes >= LARGE_TABLE_BYTES

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> ModelSight:
        """Reads JSON data.

        Raises:
            ValueError: a field is not what it should be.
            TypeError: likewise.
        """
        return cls(
            max(0, int(data.get("dense_bytes", 0))),
            max(0, int(data.get("table_bytes", 0))),
            str(data.get("refusal", ""))[:500],
            max(0.0, float(data.get("compute_s", 0.0))),
            max(0.0, float(data.get("apply_s", 0.0))),
            max(0, int(data.get("rows", 0))),
        )


@dataclass(frozen=True, slots=True)
class StrategyChoice:
    """The strategy of a job: made once, and kept through all masters.

    Attributes:
        chosen: the strategy.
        reason: why it was chosen, for people.
        predicted: for each strategy that was compared, its updates and samples per second with all workers.
        microbatches: that make one update of a group; 0 where the specification says it, and for parameter servers.
    """

    chosen: str
    reason: str
    predicted: Mapping[str, Mapping[str, float]] = field(default_factory=dict)
    microbatches: int = 0

    def to_mapping(self) -> dict[str, Any]:
        """As JSON data."""
        predicted = {name: dict(rates) for name, rates in self.predicted.items()}
        microbatches = {"microbatches": self.microbatches} if self.microbatches else {}
        return {"chosen": self.chosen, "reason": self.reason, "predicted": predicted, **microbatches}

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> StrategyChoice:
        """Reads what ``to_mapping`` gave; what was written before there were predictions has none."""
        predicted = dict(data.get("predicted") or {})
        return cls(str(data["chosen"]), str(data.get("reason", "")), predicted, int(data.get("microbatches", 0)))

    def applied_to(self, spec: JobSpec) -> JobSpec:
        """The specification with this strategy in place of ``auto``."""
        if spec.distribution_strategy == self.chosen:
            return spec
        return dataclasses.replace(spec, distribution_strategy=self.chosen, microbatches=self.microbatches)

    @classmethod
    def of_group(
        cls, spec: JobSpec, reason: str, predicted: Mapping[str, Mapping[str, float]] | None = None
    ) -> StrategyChoice:
        """AllReduce for a job: how many minibatches make an update is said once, whatever becomes of the workers."""
        return cls(ALL_REDUCE, reason, predicted or {}, spec.microbatches_per_step)


def settled_strategy(spec: JobSpec) -> StrategyChoice | None:
    """The strategy that a specification alone leads to; None where the model has to be looked at."""
    if spec.distribution_strategy != "auto":
        return StrategyChoice(spec.distribution_strategy, "it was asked for")
    if spec.type is not JobType.TRAINING:
        return StrategyChoice(PARAMETER_SERVERS, f"{spec.type.in_words} sums no gradients")
    for name in OF_SERVERS:
        if getattr(spec, name) != default_of(name):
            return StrategyChoice(PARAMETER_SERVERS, f"{name} is of parameter servers")
    if spec.xla == "on":
        return StrategyChoice(PARAMETER_SERVERS, "xla is on, which members of a group do not use")
    if spec.max_workers > _MOST_MEMBERS:
        return StrategyChoice(PARAMETER_SERVERS, f"{spec.max_workers} workers are too many for one group")
    return None


def choose_strategy(spec: JobSpec, sight: ModelSight) -> StrategyChoice:
    """The strategy that suits a model: parameter servers where tables are large, a group where they are not."""
    if sight.refusal:
        return StrategyChoice(PARAMETER_SERVERS, f"no group can train it: {sight.refusal}")
    size = f"{_mb(sight.dense_bytes)} of parameters and {_mb(sight.table_bytes)} of tables"
    if sight.table_bytes >= LARGE_TABLE_BYTES:
        return StrategyChoice(PARAMETER_SERVERS, f"its tables are large: {size}", _predict(spec, sight))
    if sight.dense_bytes + sight.table_bytes <= SMALL_BYTES:
        return StrategyChoice.of_group(spec, f"it is small: {size}", _predict(spec, sight))
    predicted = _predict(spec, sight)
    if not predicted:
        if sight.table_bytes > sight.dense_bytes:
            return StrategyChoice(PARAMETER_SERVERS, f"most of it is tables: {size}")
        return StrategyChoice.of_group(spec, f"most of it is no tables: {size}")
    speeds = {name: values["samples_per_second"] for name, values in predicted.items()}
    told = ", ".join(f"{speed:,.0f} samples/s by {name}" for name, speed in sorted(speeds.items()))
    reason = f"a few steps were timed ({size}): {told}"
    if speeds[ALL_REDUCE] >= speeds[PARAMETER_SERVERS]:
        return StrategyChoice.of_group(spec, reason, predicted)
    return StrategyChoice(PARAMETER_SERVERS, reason, predicted)


def _predict(spec: JobSpec, sight: ModelSight) -> dict[str, dict[str, float]]:
    """What both strategies would do with all workers, by the time that steps took in one."""
    if sight.compute_s <= 0.0 or not sight.rows:
        return {}
    workers, minibatches = spec.max_workers, spec.microbatches_per_step
    everything = max(1, sight.dense_bytes + sight.table_bytes)
    summing = _SUM_S + everything / _SUM_BYTES_PER_S if workers > 1 else 0.0
    update = -(-minibatches // workers) * sight.compute_s + summing + sight.apply_s
    # A group's gradient has every row of its tables; the servers' has those that the minibatch touches.
    alone = max(0.2 * sight.compute_s, sight.compute_s - 2 * sight.table_bytes / _SUM_BYTES_PER_S)
    # The servers receive, apply and send the dense parameters for one minibatch after the other.
    dense = (sight.dense_bytes / _SERVER_BYTES_PER_S + sight.apply_s * sight.dense_bytes / everything) / spec.num_ps
    minibatch = max((alone + _SERVER_CALL_S + dense) / workers, dense)
    return {
        ALL_REDUCE: _rates(1.0 / update, minibatches * sight.rows),
        PARAMETER_SERVERS: _rates(1.0 / minibatch, sight.rows),
    }


def _rates(updates: float, rows: int) -> dict[str, float]:
    return {"steps_per_second": round(updates, 3), "samples_per_second": round(updates * rows, 3)}


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"

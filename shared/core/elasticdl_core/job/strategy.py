"""Which strategy a job has that leaves it to us (``auto``): by its specification, and by a look at its model."""

from __future__ import annotations

import dataclasses
import math
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from elasticdl_core.job.fields import ALL_REDUCE, OF_SERVERS, PARAMETER_SERVERS, JobType, default_of
from elasticdl_core.job.spec import JobSpec

SMALL_BYTES = 8 << 20
"""A model of fewer bytes without tables is summed in less time than parameter servers take to answer."""
LARGE_TABLE_BYTES = 64 << 20
"""Tables of more bytes are not summed whole for the few rows that a minibatch touches."""
_MOST_MEMBERS = 32
"""Each member is connected with each other one."""
_SERVER_CALL_S = 0.003
_SERVER_BYTES_PER_S = 0.6e9
"""A minibatch by parameter servers beside computing and reading: accounted, packed, sent, applied, read, both ways
together. Nearly all of it is work for a processor."""
_UPDATE_S = 0.007
"""An update of a group beside computing, summing and applying: members wait for one another, and tell their part."""
_SUM_BYTES_PER_S = 1.6e9
"""A sum among members. These four as the minibatches and updates of four models took on one machine of two cores."""


@dataclass(frozen=True, slots=True)
class ModelSight:
    """What a worker saw of a model that it built.

    Attributes:
        dense_bytes: of the parameters that are no tables.
        table_bytes: of the embedding tables.
        refusal: why no group can train the model; empty if one can.
        fault: why nobody can train it, or nothing could be learned of it; empty if it was looked at.
        compute_s: seconds of one minibatch forward and backward in a member of a group; 0 where that was not timed.
        apply_s: seconds of one update there.
        rows: rows of the minibatch that was timed.
        read_s: seconds in which a member reads a minibatch, beside its computing.
        served_s: seconds of one minibatch forward and backward in a worker of parameter servers; 0 where that was not
            timed.
        served_read_s: seconds in which such a worker reads a minibatch and finds its ids, beside its computing.
        served_bytes: that such a worker pulls and pushes for a minibatch, together.
        unserved: why parameter servers cannot train it; empty if they can, or nobody looked.
        cores: of the machine, that all workers and servers share; 0 where nobody looked.
    """

    dense_bytes: int = 0
    table_bytes: int = 0
    refusal: str = ""
    compute_s: float = 0.0
    apply_s: float = 0.0
    rows: int = 0
    read_s: float = 0.0
    served_s: float = 0.0
    served_read_s: float = 0.0
    served_bytes: int = 0
    unserved: str = ""
    cores: int = 0
    fault: str = ""

    @property
    def is_clear(self) -> bool:
        """Whether its size alone says which strategy suits it, so that nothing need be timed.

        A small model with tables is not clear: how fast each strategy is follows from how many of their rows a
        minibatch touches.
        """
        return bool(self.refusal or self.fault) or self._is_small or self.table_bytes >= LARGE_TABLE_BYTES

    @property
    def _is_small(self) -> bool:
        return not self.table_bytes and self.dense_bytes <= SMALL_BYTES

    @classmethod
    def from_mapping(cls, data: Mapping[str, Any]) -> ModelSight:
        """Reads JSON data.

        Raises:
            ValueError: a field is not what it should be.
            TypeError: likewise.
        """
        given: dict[str, Any] = {}
        for one in dataclasses.fields(cls):
            value = data.get(one.name, one.default)
            match one.default:
                case str():
                    given[one.name] = str(value)[:500]
                case float():
                    given[one.name] = max(0.0, float(value))
                case _:
                    given[one.name] = max(0, int(value))
        return cls(**given)


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


def choose_strategy(spec: JobSpec, sight: ModelSight) -> StrategyChoice:
    """The strategy that suits a model: parameter servers where tables are large, a group where they are not."""
    if sight.fault:
        return StrategyChoice(PARAMETER_SERVERS, f"the model could not be looked at: {sight.fault}")
    if sight.refusal:
        return StrategyChoice(PARAMETER_SERVERS, f"no group can train it: {sight.refusal}")
    if sight.unserved:
        return StrategyChoice.of_group(spec, f"parameter servers cannot train it: {sight.unserved}")
    size = f"{_mb(sight.dense_bytes)} of parameters and {_mb(sight.table_bytes)} of tables"
    if sight.table_bytes >= LARGE_TABLE_BYTES:
        return StrategyChoice(PARAMETER_SERVERS, f"its tables are large: {size}", _predict(spec, sight))
    if sight.is_clear:
        return StrategyChoice.of_group(spec, f"it is small and has no tables: {size}", _predict(spec, sight))
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
    if sight.compute_s <= 0.0 or sight.served_s <= 0.0 or not sight.rows:
        return {}
    minibatches = spec.microbatches_per_step
    return {
        ALL_REDUCE: _rates(1.0 / _update_s(spec, sight), minibatches * sight.rows),
        PARAMETER_SERVERS: _rates(1.0 / _served_minibatch_s(spec, sight), sight.rows),
    }


def _update_s(spec: JobSpec, sight: ModelSight) -> float:
    """Seconds of an update of a group: its slowest member, or the cores, where they have more to do."""
    workers, minibatches = spec.max_workers, spec.microbatches_per_step
    everything = sight.dense_bytes + sight.table_bytes
    alone = workers == 1
    summing = 0.0 if alone else everything / _SUM_BYTES_PER_S
    waiting = 0.0 if alone else _UPDATE_S
    member = -(-minibatches // workers) * sight.compute_s + waiting + summing + sight.apply_s
    work = minibatches * (sight.compute_s + sight.read_s) + workers * (summing + sight.apply_s)
    return max(member, work / (sight.cores or math.inf))


def _served_minibatch_s(spec: JobSpec, sight: ModelSight) -> float:
    """Seconds from one minibatch of parameter servers to the next one, whoever computes it."""
    exchange = _SERVER_CALL_S + sight.served_bytes / _SERVER_BYTES_PER_S
    work = sight.served_s + sight.served_read_s + exchange
    # The next minibatch is read meanwhile, but its parameters come with the answer to this one's push.
    worker = (sight.served_s + exchange) / spec.max_workers
    # About half of an exchange is the servers'.
    return max(worker, exchange / 2 / spec.num_ps, work / (sight.cores or math.inf))


def _rates(updates: float, rows: int) -> dict[str, float]:
    return {"steps_per_second": round(updates, 3), "samples_per_second": round(updates * rows, 3)}


def _mb(size: int) -> str:
    return f"{size / 1e6:,.1f} MB"

"""The view of a policy: the jobs, the capacity and the quotas at one instant.

A snapshot is plain data. The service builds it from Postgres and the launcher, the simulator from its own
clock, and a decision log can be read back into one: the same policy code runs on all three.
"""

from __future__ import annotations

import dataclasses
import functools
import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from typing import Any

from elasticdl_core.devices import WHOLE, Place
from elasticdl_core.job.life import SCHEDULABLE_STATES, JobState
from elasticdl_core.scheduling.throughput import Curve, fit

DIMENSIONS = ("slots", "cpu", "memory", "gpu")
"""The resources that are counted, in the order in which they are named in reasons."""
GPU = DIMENSIONS.index("gpu")


@dataclass(frozen=True, slots=True)
class Resources:
    """An amount of each resource.

    Attributes:
        slots: worker slots; what capacity is counted in where nothing finer is known.
        cpu: cores.
        memory: MiB.
        gpu: whole or shared GPUs.
    """

    slots: float = 0.0
    cpu: float = 0.0
    memory: float = 0.0
    gpu: float = 0.0

    def vector(self) -> tuple[float, ...]:
        """The amounts in the order of ``DIMENSIONS``."""
        return (self.slots, self.cpu, self.memory, self.gpu)

    def plus(self, other: Resources, times: float = 1.0) -> Resources:
        """This amount and ``times`` the other."""
        return Resources(*(mine + times * theirs for mine, theirs in zip(self.vector(), other.vector(), strict=True)))

    def fits_into(self, room: Resources) -> bool:
        """Whether each amount is at most that of ``room`` (with a tolerance for rounding)."""
        return all(mine <= theirs + 1e-9 for mine, theirs in zip(self.vector(), room.vector(), strict=True))


ONE_SLOT = Resources(slots=1.0)
NOTHING = Resources()


@dataclass(frozen=True)
class JobView:
    """One job as a policy sees it.

    Attributes:
        id: the job.
        team: whose quota it counts against (its namespace).
        priority: higher is more important.
        submitted_at: seconds on the snapshot's clock, later by the time that it was suspended: that is no waiting.
        state: where the job stands.
        wanted: whether its owner wants it to run (False: suspend or cancel is asked for).
        min_workers: fewest workers with which it runs at all.
        max_workers: most workers that its owner wants it to have.
        most_computing: how many workers can have a part in its work, as more could only stand by; 0 for any number.
        step: workers come in steps of this many above the minimum.
        allowed_sizes: if not empty, the only worker counts allowed, ascending, all within min and max.
        current_workers: target that is in force now; 0 while it waits.
        live_workers: workers whose slots are taken now, draining and starting ones included; None if unknown.
        throughput: measured records/s by worker count.
        prior_throughput: records/s by worker count of similar past jobs; only its shape counts once the job has
            measurements of its own.
        remaining_records: records still to process; None if unknown.
        work_error: relative error of these that four of five stay within: 0 where the job's master counted them.
        rescale_cost_s: seconds of work that one change of the worker count costs this job.
        last_rescale_at: when the target last changed; None if never.
        started_at: when it was last admitted; None if it never was.
        worker: what one worker takes.
        places: the devices of each worker that holds some now, in the order of their indices: who is drained goes
            from the end.
        fixed: what master and PS take together.
        attained_service: worker-seconds received so far.
        kind: what makes jobs similar (model and batch size), for priors.
    """

    id: str
    team: str = "default"
    priority: int = 0
    submitted_at: float = 0.0
    state: JobState = JobState.QUEUED
    wanted: bool = True
    min_workers: int = 1
    max_workers: int = 1
    most_computing: int = 0
    step: int = 1
    allowed_sizes: tuple[int, ...] = ()
    current_workers: int = 0
    live_workers: int | None = None
    throughput: Mapping[int, float] = field(default_factory=dict)
    prior_throughput: Mapping[int, float] = field(default_factory=dict)
    remaining_records: float | None = None
    work_error: float = 0.0
    rescale_cost_s: float = 30.0
    last_rescale_at: float | None = None
    started_at: float | None = None
    worker: Resources = ONE_SLOT
    places: tuple[Place, ...] = ()
    fixed: Resources = NOTHING
    attained_service: float = 0.0
    kind: str = ""

    @cached_property
    def sizes(self) -> Sequence[int]:
        """The worker counts that the job may have, ascending, never empty."""
        if self.allowed_sizes:
            return self.allowed_sizes
        most = min(self.max_workers, self.most_computing or self.max_workers)
        return range(min(self.min_workers, most), most + 1, self.step)

    @cached_property
    def curve(self) -> Curve:
        """Its speed at each of its sizes, as far as that is known."""
        return fit(self.sizes, self.throughput, self.prior_throughput)

    def speed(self, workers: int) -> float | None:
        """Records/s at a size: as measured, else by the curve; None if nothing is known."""
        if workers in self.throughput:
            return self.throughput[workers]
        return self.curve.rate(workers) if self.throughput or self.prior_throughput else None

    def advanced(self, **changes: Any) -> JobView:
        """The job a while later, by fields on which its sizes do not depend; what was worked out is kept."""
        later = object.__new__(JobView)
        kept = later.__dict__
        kept.update(self.__dict__, **changes)
        kept.pop("as_json", None)
        if not changes.keys() <= _MOVING.keys():
            kept.pop("_settled", None)
        if kept["throughput"] != self.throughput:
            kept.pop("curve", None)
        return later

    @cached_property
    def as_json(self) -> str:
        """The job as JSON text, fields at their defaults left out; most of it is the same from pass to pass."""
        values = self.__dict__
        moved = {name: values[name] for name, default in _MOVING.items() if values[name] != default}
        return f"{_ENCODE(moved)[:-1]}{',' if moved else ''}{self._settled}}}"

    @cached_property
    def _settled(self) -> str:
        """The part of the text that does not change while the job goes on."""
        rest = {name: value for name, value in _without_defaults(self).items() if name not in _MOVING}
        return _to_json(rest)[1:-1]

    @property
    def smallest(self) -> int:
        """The fewest workers with which the job runs."""
        return self.sizes[0]

    @property
    def largest(self) -> int:
        """The most workers that the job may have."""
        return self.sizes[-1]

    @property
    def why_no_more(self) -> str:
        """Why the job has no more workers than its largest size, for people."""
        words = "the most that it can use"
        if self.largest < self.max_workers and self.largest == self.most_computing:
            parts = f"{self.largest} part{'s' if self.largest > 1 else ''} (microbatches)"
            return f"{words}: an update is cut into {parts}, and more workers could only stand by"
        return words

    @property
    def schedulable(self) -> bool:
        """Whether the job can hold or wait for workers."""
        return self.wanted and self.state in SCHEDULABLE_STATES

    @property
    def device_share(self) -> int:
        """Hundredths of a device that one worker takes; 0 for none."""
        return round(self.worker.gpu * WHOLE)

    @property
    def occupied_workers(self) -> int:
        """Workers whose slots cannot be given to another job yet."""
        return self.current_workers if self.live_workers is None else self.live_workers

    def demand(self, workers: int) -> Resources:
        """The resources that the job takes with that many workers; nothing for none."""
        return self.fixed.plus(self.worker, workers) if workers else NOTHING


_MOVING = {
    name: {} if name == "throughput" else getattr(JobView, name)
    for name in (
        "attained_service",
        "live_workers",
        "remaining_records",
        "rescale_cost_s",
        "throughput",
        "work_error",
    )
}
"""Fields that change while a job does nothing but go on, with their defaults."""
_ENCODE = json.JSONEncoder(sort_keys=True, separators=(",", ":")).encode


@dataclass(frozen=True, slots=True)
class NodeView:
    """One machine.

    Attributes:
        name: the machine.
        free: what our jobs may take of it: allocatable, less what is not ours, less headroom.
    """

    name: str
    free: Resources


@dataclass(frozen=True, slots=True)
class DeviceView:
    """One accelerator.

    Attributes:
        name: the device.
        leaving: hundredths of it that are still held by what is in no snapshot any more.
    """

    name: str
    leaving: int = 0


@dataclass(frozen=True)
class Capacity:
    """The capacity for all jobs together.

    Attributes:
        total: amounts over all machines; of memory and cores 0 is no limit. GPUs count for those who ask for them,
            and where there are none these cannot run.
        nodes: the machines, where known.
        devices: the accelerators whose shares are given out, of one machine, where known: a worker's share is of one
            of them, so that amounts alone do not tell whether it fits.
        leaving: the part of the total still held by what is in no snapshot any more, such as jobs that just ended;
            a plan counts on it, but it is not given out before it is free.
        set_aside: slots beside the total that jobs may not take now, as they are reserved or kept free.
    """

    total: Resources = NOTHING
    nodes: tuple[NodeView, ...] = ()
    leaving: Resources = NOTHING
    devices: tuple[DeviceView, ...] = ()
    set_aside: float = 0.0

    @classmethod
    def of_slots(cls, slots: int) -> Capacity:
        """A capacity that counts worker slots only."""
        return cls(total=Resources(slots=float(slots)))

    @classmethod
    def of_nodes(cls, nodes: Sequence[NodeView]) -> Capacity:
        """The sum over machines."""
        total = NOTHING
        for node in nodes:
            total = total.plus(node.free)
        return cls(total=total, nodes=tuple(nodes))

    @cached_property
    def limited(self) -> tuple[int, ...]:
        """Indices in ``DIMENSIONS`` of the resources that are limited."""
        amounts = self.total.vector()
        return tuple(i for i in range(len(DIMENSIONS)) if i == 0 or amounts[i] > 0)


@dataclass(frozen=True, slots=True)
class Quota:
    """The entitlement of a team.

    Attributes:
        weight: its share of the cluster relative to other teams.
        guaranteed: what it can always get back from teams that borrowed it; None for nothing.
        limit: what it never exceeds, even while the cluster is idle; None for no limit.
    """

    weight: float = 1.0
    guaranteed: Resources | None = None
    limit: Resources | None = None


@dataclass(frozen=True)
class Snapshot:
    """All that a policy decides on.

    Attributes:
        now: seconds on the clock that every time in the snapshot is given in.
        jobs: every job that is not over.
        capacity: what they may take together.
        quotas: by team; a team without one has weight 1, no guarantee and no limit.
    """

    now: float
    jobs: tuple[JobView, ...]
    capacity: Capacity
    quotas: Mapping[str, Quota] = field(default_factory=dict)

    @cached_property
    def limited(self) -> tuple[int, ...]:
        """Indices in ``DIMENSIONS`` of what decides who fits: beside slots those that somebody asks for."""
        asked = {0}
        # A plain loop, as it is run for each plan: nearly all workers of a large cluster are one and the same object.
        for job in self.jobs:
            if job.worker is not ONE_SLOT or job.fixed is not NOTHING:
                amounts = zip(job.worker.vector(), job.fixed.vector(), strict=True)
                asked |= {i for i, (worker, fixed) in enumerate(amounts) if worker > 0 or fixed > 0}
        if self.capacity.total.gpu <= 0 and GPU in asked:  # Who asks for one cannot run.
            return (*(i for i in self.capacity.limited if i in asked), GPU)
        return tuple(i for i in self.capacity.limited if i in asked)

    @cached_property
    def by_id(self) -> Mapping[str, JobView]:
        """The jobs by id."""
        return {job.id: job for job in self.jobs}

    def to_mapping(self) -> dict[str, Any]:
        """The snapshot as JSON data; fields at their defaults are left out."""
        return {
            "now": self.now,
            "jobs": [_without_defaults(job) for job in self.jobs],
            "capacity": _without_defaults(self.capacity),
            "quotas": {team: _without_defaults(quota) for team, quota in sorted(self.quotas.items())},
        }

    @classmethod
    def from_mapping(cls, mapping: Mapping[str, Any]) -> Snapshot:
        """Reads ``to_mapping`` back, for replay and what-if.

        Raises:
            KeyError: if a required field is missing.
        """
        capacity = mapping["capacity"]
        return cls(
            now=float(mapping["now"]),
            jobs=tuple(_job_from(job) for job in mapping["jobs"]),
            capacity=Capacity(
                total=_resources_from(capacity.get("total")) or NOTHING,
                nodes=tuple(
                    NodeView(node["name"], _resources_from(node["free"]) or NOTHING)
                    for node in capacity.get("nodes", ())
                ),
                leaving=_resources_from(capacity.get("leaving")) or NOTHING,
                devices=tuple(DeviceView(**device) for device in capacity.get("devices", ())),
                set_aside=float(capacity.get("set_aside", 0.0)),
            ),
            quotas={
                team: Quota(
                    weight=quota.get("weight", 1.0),
                    guaranteed=_resources_from(quota.get("guaranteed")),
                    limit=_resources_from(quota.get("limit")),
                )
                for team, quota in mapping["quotas"].items()
            },
        )

    def digest(self) -> str:
        """A hash of the input, by which the decision log tells equal inputs."""
        return hashlib.sha256(self.as_json.encode()).hexdigest()

    @cached_property
    def as_json(self) -> str:
        """``to_mapping`` as text, the same for equal snapshots."""
        capacity, now = _to_json(_without_defaults(self.capacity)), _to_json(self.now)
        quotas = _to_json({team: _without_defaults(quota) for team, quota in self.quotas.items()})
        jobs = ",".join([job.as_json for job in self.jobs])
        return f'{{"capacity":{capacity},"jobs":[{jobs}],"now":{now},"quotas":{quotas}}}'


def _to_json(value: Any) -> str:
    return _ENCODE(value)


def _without_defaults(value: Any) -> Any:
    """A dataclass as JSON data without the fields that hold their default."""
    if type(value) in _PLAIN:
        return value
    if not hasattr(value, "__dataclass_fields__"):
        if isinstance(value, Mapping):
            return {str(key): _without_defaults(item) for key, item in value.items()}
        if isinstance(value, tuple):
            return [_without_defaults(item) for item in value]
        return value
    result = {}
    kind: Any = type(value)
    for name, default in _defaults(kind):
        item = getattr(value, name)
        if item is not default and item != default:
            result[name] = _without_defaults(item)
    return result


_PLAIN = frozenset({str, int, float, bool, type(None)})


@functools.cache
def _defaults(kind: Any) -> tuple[tuple[str, Any], ...]:
    """The fields of a dataclass with their defaults."""
    return tuple(
        (f.name, f.default_factory() if f.default_factory is not dataclasses.MISSING else f.default)
        for f in dataclasses.fields(kind)
    )


def _resources_from(mapping: Mapping[str, float] | None) -> Resources | None:
    return None if mapping is None else Resources(**mapping)


def _job_from(mapping: Mapping[str, Any]) -> JobView:
    values = dict(mapping)
    for name in ("throughput", "prior_throughput"):
        if name in values:
            values[name] = {int(count): float(rate) for count, rate in values[name].items()}
    for name in ("worker", "fixed"):
        if name in values:
            values[name] = _resources_from(values[name])
    if "places" in values:
        values["places"] = tuple(tuple(place) for place in values["places"])
    if "state" in values:
        values["state"] = JobState(values["state"])
    if "allowed_sizes" in values:
        values["allowed_sizes"] = tuple(values["allowed_sizes"])
    return JobView(**values)

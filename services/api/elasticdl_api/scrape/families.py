"""Collected metrics as families: their names, their labels, and whose eyes they are for."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, TypeVar

from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, Metric
from prometheus_client.registry import Collector

from elasticdl_api.scrape.collection import Collected
from elasticdl_api.store.scraped_jobs import LostProcesses, ScrapedJob
from elasticdl_core.job import JobState
from elasticdl_core.meters import METERS, MeterKey
from elasticdl_core.ports.launcher import CapacityInfo

WHOSE = ("job", "namespace", "role", "index")
_MIB = 1 << 20
Values = TypeVar("Values", bound=tuple[str, ...])
_JOB = ("job", "namespace")
FAMILIES: Mapping[str, tuple[str, tuple[str, ...]]] = {
    "elasticdl_jobs": ("Jobs by state.", ("state",)),
    "elasticdl_jobs_by_reason": ("Jobs that are not over, by state and reason.", ("state", "reason")),
    "elasticdl_queue_oldest_seconds": ("For how long the job waits that has waited longest.", ()),
    "elasticdl_slots": ("Worker slots.", ("kind",)),
    "elasticdl_agent_up": ("Whether the agent answers: 0 or 1.", ()),
    "elasticdl_scheduler_alive": ("Whether a scheduler leads: 0 or 1.", ()),
    "elasticdl_scheduler_plan_age_seconds": ("Seconds since it looked last.", ()),
    "elasticdl_scheduler_plan_seconds": ("Seconds that its last look took.", ()),
    "elasticdl_scheduler_epoch": ("Its epoch.", ()),
    "elasticdl_scheduler_passes_total": ("The number of its passes.", ()),
    "elasticdl_scheduler_changes_total": ("Targets and states of jobs that it has changed.", ()),
    "elasticdl_scrape_processes": ("Processes of jobs, by how they answered this scrape.", ("outcome",)),
    "elasticdl_scrape_seconds": ("How long it took to ask all processes.", ()),
    "elasticdl_job_state": ("1 for the state of a job that lives or ended within the last hour.", (*_JOB, "state")),
    "elasticdl_job_ended_timestamp_seconds": (
        "When a job ended, in seconds since 1970; shown for an hour.",
        (*_JOB, "state"),
    ),
    "elasticdl_job_audit_passed": (
        "Whether each record is in the model as often as planned, for an hour after the end: 0 or 1.",
        _JOB,
    ),
    "elasticdl_job_processes_lost_total": (
        "Processes of the job that ended and were to be replaced.",
        (*_JOB, "role", "cause"),
    ),
    "elasticdl_process_up": ("Whether a running process answers: 0 or 1.", WHOSE),
    "elasticdl_process_memory_limit_bytes": (
        "Memory that the process may have; none where there is no limit.",
        WHOSE,
    ),
}
"""What is made here: name, help and labels. What processes tell is in the table of meters."""


@dataclass(frozen=True)
class ClusterMetrics:
    """The cluster and its jobs at one moment, as a reader may see them.

    Attributes:
        states: how many jobs are in each state.
        reasons: how many stand in each state for each reason.
        oldest_s: how long the job waits that has waited longest.
        capacity: slots; None where the agent does not answer.
        last_pass: the record of the scheduler's last pass; None where there was none.
        jobs: jobs to show one by one.
        lost: their processes that were lost.
        collected: what processes told.
        components: by role, the numbers of components of the cluster, for those who may see them.
    """

    states: Mapping[JobState, int]
    reasons: Mapping[tuple[str, str], int]
    oldest_s: float
    capacity: CapacityInfo | None
    last_pass: Mapping[str, Any] | None
    jobs: Sequence[ScrapedJob]
    lost: Sequence[LostProcesses]
    collected: Collected
    components: Mapping[str, Mapping[MeterKey, float]] = field(default_factory=dict)


class ScrapeCollector(Collector):
    """The families of one scrape.

    Args:
        now: what to tell.
    """

    def __init__(self, now: ClusterMetrics) -> None:
        self._now = now
        self._jobs = {job.id: job for job in now.jobs}

    def collect(self) -> Iterator[Metric]:
        """All families."""
        yield from self._of_cluster()
        yield from self._of_scheduler()
        yield from self._of_jobs()
        yield from self._of_processes()

    def _of_cluster(self) -> Iterator[Metric]:
        now = self._now
        yield _family("elasticdl_jobs", {(str(state),): now.states.get(state, 0) for state in JobState})
        reasons = {(state, code or "none"): number for (state, code), number in now.reasons.items()}
        yield _family("elasticdl_jobs_by_reason", reasons)
        yield _family("elasticdl_queue_oldest_seconds", {(): now.oldest_s})
        capacity = now.capacity
        yield _family("elasticdl_agent_up", {(): capacity is not None})
        if capacity is not None:
            used = sum(capacity.used.values())
            slots = {
                "total": capacity.slots,
                "used": used,
                "reserved": sum(one.slots for one in capacity.reservations),
                "free": max(capacity.for_jobs - used, 0),
            }
            yield _family("elasticdl_slots", {(kind,): number for kind, number in slots.items()})

    def _of_scheduler(self) -> Iterator[Metric]:
        last = self._now.last_pass
        yield _family("elasticdl_scheduler_alive", {(): last is not None and bool(last["alive"])})
        if last is not None:
            for name, key in (
                ("plan_age_seconds", "age_s"),
                ("plan_seconds", "seconds"),
                ("epoch", "epoch"),
                ("passes_total", "passes"),
                ("changes_total", "changes"),
            ):
                yield _family(f"elasticdl_scheduler_{name}", {(): last[key]})

    def _of_jobs(self) -> Iterator[Metric]:
        jobs = self._now.jobs
        yield _family("elasticdl_job_state", {(job.id, job.namespace, str(job.state)): 1.0 for job in jobs})
        ended = {(job.id, job.namespace, str(job.state)): job.ended_at for job in jobs if job.ended_at is not None}
        yield _family("elasticdl_job_ended_timestamp_seconds", ended)
        audited = {
            (job.id, job.namespace): job.audit != "failed"
            for job in jobs
            if job.audit in ("passed", "failed")  # one that could not be made says nothing
        }
        yield _family("elasticdl_job_audit_passed", audited)
        lost = {
            (one.job_id, self._jobs[one.job_id].namespace, one.role, one.cause): one.count for one in self._now.lost
        }
        yield _family("elasticdl_job_processes_lost_total", lost)

    def _of_processes(self) -> Iterator[Metric]:
        told: dict[str, dict[tuple[str, ...], float]] = {name: {} for name in METERS}
        up: dict[tuple[str, ...], float] = {}
        limits: dict[tuple[str, ...], float] = {}
        for role, numbers in self._now.components.items():
            _tell(told, ("", "", role, ""), numbers)
        for process, answered in self._now.collected.processes.items():
            job = self._jobs.get(process.job_id)
            if job is None:
                continue  # another namespace's
            whose = (job.id, job.namespace, str(process.role), str(process.index))
            up[whose] = answered is not None
            if job.limits.get(process.role):
                limits[whose] = job.limits[process.role] * _MIB
            _tell(told, whose, answered or {})
        yield _family("elasticdl_process_up", up)
        yield _family("elasticdl_process_memory_limit_bytes", limits)
        answering = int(sum(up.values()))
        outcomes = {("answered",): answering, ("silent",): len(up) - answering}
        if self._now.components:
            outcomes["left_out",] = self._now.collected.left_out
        yield _family("elasticdl_scrape_processes", outcomes)
        yield _family("elasticdl_scrape_seconds", {(): self._now.collected.took_s})
        for name, samples in told.items():
            meter = METERS[name]
            labels = (*WHOSE, meter.label) if meter.label else WHOSE
            yield _made(name, meter.help, labels, samples)


def _tell(
    told: dict[str, dict[tuple[str, ...], float]], whose: tuple[str, ...], numbers: Mapping[MeterKey, float]
) -> None:
    for (name, value), number in numbers.items():
        told[name][(*whose, value) if METERS[name].label else whose] = number


def _family(name: str, samples: Mapping[Values, float]) -> Metric:
    return _made(name, *FAMILIES[name], samples)


def _made(name: str, text: str, labels: Sequence[str], samples: Mapping[Values, float]) -> Metric:
    kind = CounterMetricFamily if name.endswith("_total") else GaugeMetricFamily
    family = kind(name, text, labels=labels)
    for values, number in samples.items():
        family.add_metric(values, float(number))
    return family

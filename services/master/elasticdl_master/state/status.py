"""The job's status, as users see it."""

from __future__ import annotations

from typing import Any, TypedDict

from elasticdl_core.job import JobType
from elasticdl_core.job.spec import ALL_REDUCE
from elasticdl_master.state.machine import JobMachine
from elasticdl_master.state.servers import Phase, ServerInstance
from elasticdl_master.state.throughput import Measurements
from elasticdl_master.state.workers import Worker

_REASONS = {
    "auto": "parameter servers suit every model; it is the strategy of this release",
    "ParameterServerStrategy": "it was asked for",
}


class ProgressStatus(TypedDict):
    """How far the job is."""

    records_done: int
    records_total: int
    epoch: int
    num_epochs: int
    tasks_done: int
    tasks_total: int
    listing: bool


class WorkerStatus(TypedDict):
    """One worker."""

    index: int
    incarnation: int
    state: str
    phase: str
    records: int
    samples_per_second: float


class ParameterServerStatus(TypedDict):
    """One parameter server."""

    index: int
    state: str
    rows: int
    bytes: int
    version: int


class StrategyStatus(TypedDict):
    """How the job is distributed, and why so."""

    chosen: str
    reason: str


class MasterStatus(Measurements):
    """The status that a master reports with its heartbeats."""

    progress: ProgressStatus
    samples_per_second: float
    eta_seconds: float | None
    loss: float | None
    last_loss: float | None
    learning_rate: float | None
    training_metrics: dict[str, float]
    model_version: int
    workers: list[WorkerStatus]
    ps: list[ParameterServerStatus]
    metrics: dict[str, float]
    evaluation: str
    strategy: StrategyStatus
    degraded: str | None
    skipped: list[dict[str, Any]]
    duplicates: int
    redone: int
    audit: dict[str, Any] | None


def status_of(machine: JobMachine, trouble: str = "") -> MasterStatus:
    """The status as JSON data.

    Args:
        machine: the job.
        trouble: what the runner has trouble with, if anything.
    """
    plans, epochs, reports, evaluations = machine.plans, machine.epochs, machine.reports, machine.evaluations
    running = [worker for worker in machine.workers.living if worker.phase not in ("waiting", "starting")]
    speed = sum(worker.samples_per_second for worker in running)
    done = min(_records_done(machine), epochs.records_total)
    left = epochs.records_total - done
    return {
        "progress": {
            "records_done": done,
            "records_total": epochs.records_total,
            "epoch": min(epochs.number + 1, plans.main.epochs),
            "num_epochs": plans.main.epochs,
            "tasks_done": _tasks_done(machine),
            "tasks_total": len(plans.main.parts) * plans.main.epochs,
            "listing": not plans.listed,
        },
        "samples_per_second": round(speed, 3),
        "eta_seconds": round(left / speed, 1) if speed > 0 else None,
        "loss": reports.loss,
        "last_loss": reports.last_loss,
        "learning_rate": reports.learning_rate,
        "training_metrics": reports.training_metrics,
        "model_version": machine.version.present,
        "workers": [_worker(worker) for worker in machine.workers.living],
        # A group goes as the job's only server, which is a matter of the machine's alone.
        "ps": [] if machine.spec.by_group else [_server(machine, server) for server in machine.servers.servers],
        "metrics": dict(evaluations.metrics),
        "evaluation": "no records" if evaluations.empty else "",
        "strategy": {
            "chosen": ALL_REDUCE if machine.spec.by_group else "ParameterServerStrategy",
            "reason": _REASONS.get(machine.spec.distribution_strategy, "it was asked for"),
        },
        "degraded": _degraded(machine, trouble),
        "skipped": machine.audit.skipped,
        "duplicates": machine.audit.duplicates,
        "redone": machine.recovery.redone,
        "audit": machine.audit.outcome.to_mapping() if machine.audit.outcome is not None else None,
        **machine.throughput.to_mapping(),
    }


def _worker(worker: Worker) -> WorkerStatus:
    return {
        "index": worker.index,
        "incarnation": worker.incarnation,
        "state": str(worker.state),
        "phase": worker.phase,
        "records": worker.records,
        "samples_per_second": round(worker.samples_per_second, 3),
    }


def _server(machine: JobMachine, server: ServerInstance) -> ParameterServerStatus:
    restoring = machine.servers.phase is Phase.RESTORING and server.answers
    return {
        "index": server.index,
        "state": "restoring" if restoring else server.state,
        "rows": server.rows,
        "bytes": server.bytes,
        "version": server.version,
    }


def _records_done(machine: JobMachine) -> int:
    """Records of done tasks, and those of tasks in hand that are processed already."""
    if machine.spec.type is JobType.EVALUATION and machine.evaluations.published:
        return machine.epochs.records_total
    in_hand = 0
    for worker, token, task in machine.workers.leases():
        if task.type is machine.plans.main_type:
            in_hand += max(0, min(worker.positions.get(token, task.start), task.end) - task.start)
    if not machine.plans.with_epochs:
        return in_hand + max((run.progress.records for run in machine.evaluations.running.values()), default=0)
    return in_hand + machine.epochs.records_done


def _tasks_done(machine: JobMachine) -> int:
    parts = len(machine.plans.main.parts)
    if not machine.plans.with_epochs:
        running = max((run.progress.tasks_done for run in machine.evaluations.running.values()), default=0)
        return parts if machine.evaluations.published else running
    return machine.epochs.number * parts + machine.epochs.ledger.tasks_done


def _degraded(machine: JobMachine, trouble: str) -> str | None:
    if machine.troubles.queue:
        return f"the task queue is away: {machine.troubles.queue}"
    ending = machine.lifecycle.ending
    suspect = machine.failures.suspect
    if suspect is not None and not ending:
        count, task, position = suspect
        where = machine.plans.describe_place(task, position)
        return f"{count} worker{'s' * (count > 1)} made no progress at {where}"
    if machine.checkpoints.trouble:
        return f"no checkpoint can be written: {machine.checkpoints.trouble}"
    if machine.servers.silent and not ending:
        return "a parameter server does not answer"
    if machine.troubles.traces:
        return f"no traces are written: {machine.troubles.traces}"
    if not machine.servers.ready and not ending:
        return "the parameter servers are coming back" if machine.servers.ever_lost else trouble or None
    return trouble or None

"""The job's status, as users see it."""

from __future__ import annotations

from typing import Any

from elasticdl_core.job import JobType
from elasticdl_master.state.machine import JobMachine
from elasticdl_master.state.workers import Worker

_REASONS = {
    "auto": "parameter servers suit every model; it is the strategy of this release",
    "ParameterServerStrategy": "it was asked for",
}


def status_of(machine: JobMachine, trouble: str = "") -> dict[str, Any]:
    """The status as JSON data.

    Args:
        machine: the job.
        trouble: what the runner has trouble with, if anything.
    """
    work = machine.work
    running = [worker for worker in machine.workers.living if worker.phase not in ("waiting", "starting")]
    speed = sum(worker.samples_per_second for worker in running)
    done = min(_records_done(machine), work.records_total)
    left = work.records_total - done
    return {
        "progress": {
            "records_done": done,
            "records_total": work.records_total,
            "epoch": min(work.round.number + 1, work.main.rounds),
            "num_epochs": work.main.rounds,
            "tasks_done": _tasks_done(machine),
            "tasks_total": len(work.main.parts) * work.main.rounds,
            "listing": not work.listed,
        },
        "samples_per_second": round(speed, 3),
        "eta_seconds": round(left / speed, 1) if speed > 0 else None,
        "loss": machine.loss,
        "last_loss": machine.last_loss,
        "learning_rate": machine.learning_rate,
        "training_metrics": machine.training_metrics,
        "model_version": machine.version,
        "workers": [_worker(worker) for worker in machine.workers.living],
        "ps": [
            {
                "index": server.index,
                "state": "restoring" if machine.servers.phase == "restoring" and server.answers else server.state,
                "rows": server.rows,
                "bytes": server.bytes,
                "version": server.version,
            }
            for server in machine.servers.servers
        ],
        "metrics": dict(machine.metrics),
        "evaluation": "no records" if machine.evaluated_nothing else "",
        "strategy": {
            "chosen": "ParameterServerStrategy",
            "reason": _REASONS.get(machine.spec.distribution_strategy, "it was asked for"),
        },
        "degraded": _degraded(machine, trouble),
        "skipped": machine.skipped,
        "duplicates": machine.duplicates,
        "redone": machine.redone,
        "audit": machine.audit.to_mapping() if machine.audit is not None else None,
        **machine.throughput.to_mapping(),
    }


def _worker(worker: Worker) -> dict[str, Any]:
    return {
        "index": worker.index,
        "incarnation": worker.incarnation,
        "state": str(worker.state),
        "phase": worker.phase,
        "records": worker.records,
        "samples_per_second": round(worker.samples_per_second, 3),
    }


def _records_done(machine: JobMachine) -> int:
    """Records of done tasks, and those of tasks in hand that are processed already."""
    if machine.spec.type is JobType.EVALUATION and machine.evaluated:
        return machine.work.records_total
    in_hand = 0
    for worker in machine.workers.living:
        for token, task in worker.leases.items():
            if task.type is machine.work.main_type:
                in_hand += max(0, min(worker.positions.get(token, task.start), task.end) - task.start)
    return machine.work.records_done + in_hand


def _tasks_done(machine: JobMachine) -> int:
    work = machine.work
    if not work.uses_rounds:
        running = max((one.progress.tasks_done for one in work.evaluations.values()), default=0)
        return len(work.main.parts) if machine.evaluated else running
    return work.round.number * len(work.main.parts) + work.round.tasks_done


def _degraded(machine: JobMachine, trouble: str) -> str | None:
    if machine.store_trouble:
        return f"the task queue is away: {machine.store_trouble}"
    suspect = machine.failures.suspect
    if suspect is not None and machine.ending is None:
        count, task, position = suspect
        return f"{count} worker{'s' * (count > 1)} made no progress at {machine.place_of(task, position)}"
    if machine.save_trouble:
        return f"no checkpoint can be written: {machine.save_trouble}"
    if machine.servers.silent and machine.ending is None:
        return "a parameter server does not answer"
    if machine.trace_trouble:
        return f"no traces are written: {machine.trace_trouble}"
    if not machine.servers.ready and machine.ending is None:
        return "the parameter servers are coming back" if machine.servers.ever_lost else trouble or None
    return trouble or None

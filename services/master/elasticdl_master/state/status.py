"""The job's status, as users see it."""

from __future__ import annotations

from typing import Any, TypedDict

from elasticdl_core.job import JobType
from elasticdl_core.job.fields import ALL_REDUCE, PARAMETER_SERVERS
from elasticdl_core.job.strategy import StrategyChoice, settled_strategy
from elasticdl_core.job.updates import records_per_update
from elasticdl_master.state.machine import JobMachine
from elasticdl_master.state.servers import Phase, ServerInstance
from elasticdl_master.state.stragglers import find_stragglers, mean_step
from elasticdl_master.state.throughput import Measurements
from elasticdl_master.state.workers import MEMORY_LOSSES_S, Worker


class ProgressStatus(TypedDict):
    """Progress of the job."""

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
    step: dict[str, float] | None
    straggler: bool


class ParameterServerStatus(TypedDict):
    """One parameter server."""

    index: int
    state: str
    rows: int
    bytes: int
    version: int
    load: float


class LedgerStatus(TypedDict):
    """Progress of the present epoch; all epochs before it are done, of all after it nothing is.

    ``done`` and ``leased`` are records, ``done`` with those that were passed over; ``skipped`` are those by epoch.
    """

    epoch: int
    epochs: int
    planned: int
    done: int
    leased: int
    skipped: dict[str, int]
    tasks: int
    tasks_done: int
    tasks_leased: int


class StrategyStatus(TypedDict):
    """The distribution of the job, and its reasons.

    ``deterministic`` says whether the model is the same to the last bit whoever did the work, ``microbatches`` into
    how many parts a group cuts an update, and ``updates_per_epoch`` is null until all data is listed.
    """

    chosen: str
    deterministic: bool
    reason: str
    microbatches: int | None
    records_per_update: int | None
    updates_per_epoch: int | None


class MasterStatus(Measurements):
    """The status that a master reports with its heartbeats."""

    progress: ProgressStatus
    ledger: LedgerStatus
    samples_per_second: float
    eta_seconds: float | None
    eta_low_seconds: float | None
    eta_high_seconds: float | None
    loss: float | None
    last_loss: float | None
    learning_rate: float | None
    training_metrics: dict[str, float]
    training_metrics_version: int
    model_version: int
    start_version: int
    workers: list[WorkerStatus]
    step: dict[str, float]
    ps: list[ParameterServerStatus]
    metrics: dict[str, float]
    metrics_version: int
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
    plans, reports, evaluations = machine.plans, machine.reports, machine.evaluations
    epochs = machine.recovery.last_known
    slow = find_stragglers(machine.workers.running, alone=machine.spec.use_async and not machine.spec.by_group)
    done = min(_records_done(machine), epochs.records_total)
    rest = machine.throughput.speed.rest(epochs.records_total - done)
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
        "ledger": _ledger(machine),
        "samples_per_second": round(machine.throughput.samples_per_second, 3),
        "eta_seconds": None if rest is None else round(rest.expected, 1),
        "eta_low_seconds": None if rest is None else round(rest.low, 1),
        "eta_high_seconds": None if rest is None else round(rest.high, 1),
        "loss": reports.loss,
        "last_loss": reports.last_loss,
        "learning_rate": reports.learning_rate,
        "training_metrics": reports.training_metrics,
        "training_metrics_version": reports.training_metrics_version,
        "model_version": machine.version.present,
        "start_version": machine.version.start,
        "workers": [_worker(worker, slow=worker.index in slow) for worker in machine.workers.living],
        "step": {name: round(seconds, 6) for name, seconds in mean_step(machine.workers.running).items()},
        # A group goes as the job's only server, which is a matter of the machine's alone.
        "ps": [] if machine.spec.by_group else [_server(machine, server) for server in machine.servers.servers],
        "metrics": dict(evaluations.metrics),
        "metrics_version": evaluations.metrics_version,
        "evaluation": "no records" if evaluations.empty else "",
        "strategy": _strategy(machine),
        "degraded": _degraded(machine, trouble),
        "skipped": machine.audit.skipped,
        "duplicates": machine.audit.duplicates,
        "redone": machine.recovery.redone,
        "audit": machine.audit.outcome.to_mapping() if machine.audit.outcome is not None else None,
        **machine.throughput.to_mapping(),
    }


def _ledger(machine: JobMachine) -> LedgerStatus:
    plan, epochs = machine.plans.main, machine.recovery.last_known
    if machine.plans.with_epochs:
        done, tasks_done, number = epochs.ledger.records, epochs.ledger.tasks_done, epochs.number
    else:
        done, tasks_done, number = _records_done(machine) - _in_hand(machine), _tasks_done(machine), 0
    held = [
        task
        for _, _, task in machine.workers.leases()
        if task.type is machine.plans.main_type and (task.epoch == number or not machine.plans.with_epochs)
    ]
    left, tasks_left = max(plan.records - done, 0), max(len(plan.parts) - tasks_done, 0)
    return {
        "epoch": number,
        "epochs": plan.epochs,
        "planned": plan.records,
        "done": min(done, plan.records),
        "leased": min(sum(task.records for task in held), left),
        "skipped": {str(epoch): count for epoch, count in sorted(machine.epochs.accounts.skipped_by_epoch.items())},
        "tasks": len(plan.parts),
        "tasks_done": tasks_done,
        "tasks_leased": min(len({task.index for task in held}), tasks_left),
    }


def _strategy(machine: JobMachine) -> StrategyStatus:
    choice = machine.setup.strategy or settled_strategy(machine.spec)
    if choice is None:
        choice = StrategyChoice(PARAMETER_SERVERS, "they suit every model")
    spec = machine.spec
    deterministic = choice.chosen == ALL_REDUCE and machine.spec.deterministic
    return {
        "chosen": choice.chosen,
        "deterministic": deterministic,
        "reason": choice.reason,
        "microbatches": spec.microbatches_per_step if spec.by_group else None,
        "records_per_update": records_per_update(spec) if spec.type is JobType.TRAINING else None,
        "updates_per_epoch": machine.plans.updates_per_epoch,
    }


def _worker(worker: Worker, *, slow: bool) -> WorkerStatus:
    return {
        "index": worker.index,
        "incarnation": worker.incarnation,
        "state": str(worker.state),
        "phase": worker.phase,
        "records": worker.records,
        "samples_per_second": round(worker.samples_per_second, 3),
        "step": {name: round(seconds, 6) for name, seconds in worker.step.items()} or None,
        "straggler": slow,
    }


def _server(machine: JobMachine, server: ServerInstance) -> ParameterServerStatus:
    restoring = machine.servers.phase is Phase.RESTORING and server.answers
    return {
        "index": server.index,
        "state": "restoring" if restoring else server.state,
        "rows": server.rows,
        "bytes": server.bytes,
        "version": server.version,
        "load": server.load,
    }


def _records_done(machine: JobMachine) -> int:
    """Records of done tasks, and those of tasks in hand that are processed already."""
    if machine.spec.type is JobType.EVALUATION and machine.evaluations.published:
        return machine.epochs.records_total
    in_hand = _in_hand(machine)
    if not machine.plans.with_epochs:
        return in_hand + max((run.progress.records for run in machine.evaluations.running.values()), default=0)
    return in_hand + machine.recovery.last_known.records_done


def _in_hand(machine: JobMachine) -> int:
    """Records that are processed of tasks that are not done."""
    return sum(
        max(0, min(worker.positions.get(token, task.start), task.end) - task.start)
        for worker, token, task in machine.workers.leases()
        if task.type is machine.plans.main_type
    )


def _tasks_done(machine: JobMachine) -> int:
    parts = len(machine.plans.main.parts)
    if not machine.plans.with_epochs:
        running = max((run.progress.tasks_done for run in machine.evaluations.running.values()), default=0)
        return parts if machine.evaluations.published else running
    epochs = machine.recovery.last_known
    return epochs.number * parts + epochs.ledger.tasks_done


def _degraded(machine: JobMachine, trouble: str) -> str | None:
    if machine.conditions.queue:
        return f"the task queue is away: {machine.conditions.queue}"
    ending = machine.lifecycle.ending
    suspect = machine.failures.suspect
    if suspect is not None and not ending:
        count, task, position = suspect
        where = machine.plans.describe_place(task, position)
        return f"{count} worker{'s' * (count > 1)} made no progress at {where}"
    losses = len(machine.workers.memory_losses)
    if losses > 1 and not ending:
        return f"{losses} workers ran out of memory in the last {MEMORY_LOSSES_S / 60:.0f} minutes"
    if machine.checkpoints.trouble:
        return f"no checkpoint can be written: {machine.checkpoints.trouble}"
    if machine.conditions.absent and not ending:
        return machine.conditions.absent
    if machine.servers.silent and not ending:
        return "a parameter server does not answer"
    if machine.conditions.traces:
        return f"no traces are written: {machine.conditions.traces}"
    if not machine.servers.ready and not ending:
        lost = "the group gets its model back" if machine.spec.by_group else "the parameter servers are coming back"
        return lost if machine.servers.ever_lost else trouble or None
    return trouble or None

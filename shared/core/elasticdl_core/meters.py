"""The numbers that processes tell of themselves: their names, what they mean, and how an answer is read.

Only what stands in this table is told and shown: a process runs a tenant's code, and whatever it writes must not make
series of its own in somebody's monitoring.
"""

from __future__ import annotations

import json
import math
from collections.abc import Mapping
from dataclasses import dataclass

MeterKey = tuple[str, str]
"""Name and value of its label; empty for a number without one."""


@dataclass(frozen=True)
class Meter:
    """One number, or one for each value of a label.

    Attributes:
        name: as Prometheus has it; what only grows ends in ``_total``.
        help: what it is.
        label: name of the label; empty for none.
        values: its values.
    """

    name: str
    help: str
    label: str = ""
    values: tuple[str, ...] = ("",)

    @property
    def grows(self) -> bool:
        """Whether it only grows while the process lives."""
        return self.name.endswith("_total")


_PARTS = ("data", "pull", "compute", "push", "wait")
_OF_ALL = (
    Meter("elasticdl_process_start_time_seconds", "When the process began, in seconds since 1970."),
    Meter("elasticdl_process_cpu_seconds_total", "Processor time of the process, of users and system."),
    Meter("elasticdl_process_threads", "Threads of Python's."),
    Meter("elasticdl_process_resident_memory_bytes", "Memory that the process has resident."),
    Meter("elasticdl_process_open_fds", "Files and sockets that the process has open."),
    Meter("elasticdl_process_items_put_off", "Items of its loops that failed and are tried again later."),
    Meter("elasticdl_data_disk_free_bytes", "What is free on the disk of the data directory."),
    Meter("elasticdl_data_disk_size_bytes", "The size of the disk of the data directory."),
)
_OF_WORKERS = (
    Meter("elasticdl_worker_records_total", "Training records that this worker has processed."),
    Meter("elasticdl_worker_steps_total", "Minibatches that this worker has trained."),
    Meter("elasticdl_worker_samples_per_second", "Its speed over the last ten seconds."),
    Meter("elasticdl_worker_step_seconds", "Where the time of a recent step went, on the mean.", "part", _PARTS),
    Meter("elasticdl_worker_step_p95_seconds", "95th percentile of the duration of a recent step."),
    Meter("elasticdl_worker_model_version", "The latest version of the model that it has seen."),
    Meter("elasticdl_worker_tasks", "Tasks that it holds."),
)
_OF_SERVERS = (
    Meter("elasticdl_ps_rows", "Rows of embedding tables."),
    Meter("elasticdl_ps_bytes", "Size of the parameters, with what optimizers keep."),
    Meter("elasticdl_ps_model_version", "Version of the model."),
    Meter("elasticdl_ps_updates_total", "Updates that were made."),
    Meter("elasticdl_ps_updates_rejected_total", "Gradients that were refused."),
    Meter("elasticdl_ps_records", "Records whose gradients are in the parameters."),
    Meter("elasticdl_ps_initialized", "Whether it has the model: 0 or 1."),
)
_OF_MASTERS = (
    Meter("elasticdl_job_records_done", "Records of the job that are processed."),
    Meter("elasticdl_job_records_planned", "Records of all epochs of the job, as far as they are listed."),
    Meter("elasticdl_job_epoch", "The present epoch, from 1 on."),
    Meter("elasticdl_job_samples_per_second", "Speed of the job."),
    Meter("elasticdl_job_eta_seconds", "Time until the expected end."),
    Meter("elasticdl_job_loss", "The mean loss of late."),
    Meter("elasticdl_job_learning_rate", "The learning rate of late."),
    Meter("elasticdl_job_model_version", "Version of the model."),
    Meter("elasticdl_job_step_seconds", "Where the time of a step goes, on the mean of workers.", "part", _PARTS),
    Meter("elasticdl_job_workers", "Workers that it shall have, and that run.", "state", ("target", "running")),
    Meter("elasticdl_job_records_redone_total", "Records processed once more, for a worker or a PS was lost."),
    Meter("elasticdl_job_records_duplicated", "Records that are in the model too often."),
    Meter("elasticdl_job_records_skipped", "Records that were passed over, with a reason."),
    Meter("elasticdl_job_queue_contradictions_total", "Times that the task queue did not agree with its master."),
    Meter("elasticdl_job_degraded", "Whether the job has trouble now: 0 or 1."),
)
_OF_AGENTS = (
    Meter("elasticdl_agent_processes", "Processes of jobs, by state.", "state", ("pending", "running")),
    Meter("elasticdl_agent_launches_total", "Processes that the agent was asked to launch."),
    Meter("elasticdl_agent_ended_total", "Processes that have ended."),
)
METERS: Mapping[str, Meter] = {
    meter.name: meter for meter in (*_OF_ALL, *_OF_WORKERS, *_OF_SERVERS, *_OF_MASTERS, *_OF_AGENTS)
}
"""By name."""
KEYS: frozenset[MeterKey] = frozenset((meter.name, value) for meter in METERS.values() for value in meter.values)


def require_meter(name: str, value: str) -> None:
    """Refuses to tell what is not in the table.

    Raises:
        LookupError: there is no such meter, or its label has no such value.
    """
    if (name, value) not in KEYS:
        raise LookupError(f"{name}{{{value}}} is not in the table of {__name__}")


def read_meters(answer: bytes) -> dict[MeterKey, float] | None:
    """The numbers of an answer; None if it is none. Whatever a process wrote, this ends, and raises nothing.

    Args:
        answer: what a process answered to ``Inquiry.METRICS``: JSON, bounded in size.
    """
    try:
        parsed = json.loads(answer)
    except (ValueError, RecursionError):
        return None
    told = parsed.get("values") if isinstance(parsed, dict) else None
    return known_meters(told) if isinstance(told, list) else None


def known_meters(told: list[object]) -> dict[MeterKey, float]:
    """The meters among a list of names, labels' values and numbers that are in the table and a number."""
    found: dict[MeterKey, float] = {}
    for one in told:
        if not (isinstance(one, list | tuple) and len(one) == 3):
            continue
        name, label, number = one
        if not (isinstance(name, str) and isinstance(label, str) and (name, label) in KEYS):
            continue
        if isinstance(number, int | float) and not isinstance(number, bool) and abs(number) < 1e300:
            value = float(number)
            if math.isfinite(value):
                found[name, label] = value
    return found

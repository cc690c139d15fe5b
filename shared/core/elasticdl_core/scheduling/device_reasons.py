"""Reasons for a job that lacks a device: how much it waits for, who has it, and what is left in pieces."""

from __future__ import annotations

from elasticdl_core.devices import share_words
from elasticdl_core.scheduling.capacity_tracker import CapacityTracker
from elasticdl_core.scheduling.snapshot import JobView

MOST_NAMED = 5
"""So many holders are named at most."""


def lack_of_devices(job: JobView, workers: int, tracker: CapacityTracker) -> tuple[str, tuple[str, ...]]:
    """Words for the devices that so many more workers wait for, and the jobs that have them, most first."""
    need, total = job.worker.gpu * workers, tracker.total_of("gpu")
    each = f" for each of {workers} workers" if workers > 1 else ""
    holders = [(job_id, amount) for job_id, amount in tracker.device_holders() if job_id != job.id]
    own = next((amount for job_id, amount in tracker.device_holders() if job_id == job.id), 0.0)
    taken = sum(amount for _, amount in holders) + own
    named = tuple(job_id for job_id, _ in holders[:MOST_NAMED])
    by = [*named, *([f"{len(holders) - len(named)} more"] if len(holders) > len(named) else [])]
    users = f" in use by {', '.join([*by, *(['itself'] if own else [])])}" if by or own else " in use"
    text = f"waits for {share_words(job.device_share)}{each}: {taken:g} of {total:g}{users}"
    free = tracker.free_devices() if tracker.pool is not None else []
    if free and need <= total - taken + 1e-9:
        left = ", ".join(f"{amount:g} of {name}" for name, amount in free[:MOST_NAMED])
        text += f"; {left} {'are' if len(free) > 1 else 'is'} left, but a share is of one device"
    return text, named


def too_many_devices(job: JobView, workers: int, tracker: CapacityTracker) -> str:
    """Why no number of ended jobs would let so many workers run, and what would."""
    total = tracker.total_of("gpu")
    each = f"{share_words(job.device_share)} for each of {workers} workers" if workers > 1 else ""
    what = each or share_words(job.device_share)
    if not total:
        return (
            f"it asks for {what}, and this cluster has no GPU; leave worker_resource_request out, or give the "
            "cluster devices (elasticdl up --devices)"
        )
    return (
        f"its minimum asks for {what}, and this cluster has {total:g} GPU{'s' if total != 1 else ''}; lower "
        "worker_resource_request or min_workers"
    )

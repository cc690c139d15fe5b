"""Answers about a view of the cluster: reasons, blockers, expectations, as far as the caller may see."""

from __future__ import annotations

from collections.abc import Mapping, Set
from datetime import UTC, datetime
from typing import Any

from elasticdl_api.scheduling.cluster_view import ClusterView
from elasticdl_api.schemas import scheduling as s
from elasticdl_api.store.records import JobRecord
from elasticdl_core.devices import WHOLE
from elasticdl_core.job.life import JobState
from elasticdl_core.scheduling import Allocation, JobView, ReasonCode
from elasticdl_core.scheduling.explanation import Eta, blockers, find_remedies, hide_names, speeds
from elasticdl_runtime.scheduling import counted_records, number, remaining_records

NOT_DECIDED = "not_decided"
"""Code of a job that the scheduler has not looked at yet."""
DEGRADED = "degraded"
"""Code of a job whose master has trouble: that comes before what the scheduler thinks of it."""
ENDED = "ended"
"""Code of a job that is over."""
NODE = "local"
"""What the one machine is called where the launcher names none."""


def moment(seconds: float | None) -> datetime | None:
    """A time on Postgres' clock; None for what lies beyond the calendar."""
    return None if seconds is None or not 0 <= seconds < 2e11 else datetime.fromtimestamp(seconds, UTC)


def slots(view: ClusterView) -> s.SlotUse:
    """Worker slots of the cluster."""
    total, used = view.capacity.for_jobs, sum(view.capacity.used.values())
    leaving = int(view.snapshot.capacity.leaving.slots)
    return s.SlotUse(total=total, used=used, free=max(total - used, 0), leaving=leaving)


def devices(view: ClusterView, job: JobView) -> s.DeviceNeed | None:
    """The accelerators that a job asks for and has; None where it asks for none."""
    if not job.device_share:
        return None
    uses = view.capacity.device_uses
    names = [device.name for device in view.capacity.devices]
    return s.DeviceNeed(
        share=job.device_share / WHOLE,
        total=len(names),
        used=sum(min(use.share, WHOLE) * len(use.devices) for use in uses) / WHOLE,
        held=[
            s.WorkerDevices(worker=use.index, devices=[names[number] for number in use.devices])
            for use in sorted(uses)
            if use.job_id == job.id
        ],
    )


def workers(view: ClusterView, job: JobView) -> s.Workers:
    """A job's workers."""
    row = view.rows[job.id]
    return s.Workers(
        present=job.live_workers or 0, target=row["target_workers"], min=job.min_workers, max=job.max_workers
    )


def expected(found: Eta, now: float) -> s.Expected:
    """The expected start and end of a job."""

    def until(at: float | None) -> float | None:
        return None if at is None else round(max(at - now, 0.0), 1)

    return s.Expected(
        starts_at=moment(found.starts_at),
        ends_at=moment(found.ends_at),
        seconds=until(found.ends_at),
        seconds_low=until(found.earliest),
        seconds_high=until(found.latest),
        basis=found.basis,
        why_unknown=found.why_unknown,
    )


def reason_of(allocation: Allocation, hidden: Set[str]) -> s.ReasonResponse:
    """A reason of the policy, without the names of jobs that the caller may not see."""
    reason = allocation.reason
    unseen = [one for one in reason.blockers if one in hidden]
    return s.ReasonResponse(code=str(reason.code), text=hide_names(reason.text, unseen), data=dict(reason.data))


def in_force(view: ClusterView, job: JobView, hidden: frozenset[str]) -> tuple[s.ReasonResponse, list[str]]:
    """The reason for what a job has now, and its blockers.

    That is what the scheduler wrote down. Where its next pass comes to the same conclusion, the numbers are fresh.
    """
    row = view.rows[job.id]
    written: Mapping[str, Any] = row["target_detail"] or {}
    now = view.granted.allocations[job.id]
    if not job.schedulable:
        text = f"its owner does not want it to run now (asked to {row['desired']}, state {row['state']})"
        return s.ReasonResponse(code=str(ReasonCode.NOT_WANTED), text=text), []
    if not written:
        reason = reason_of(now, hidden)
        if row["state"] == JobState.QUEUED:
            reason = s.ReasonResponse(code=NOT_DECIDED, text="the scheduler has not looked at it yet")
        return reason, blockers(job, now, view.snapshot)
    if written.get("code") == str(now.reason.code) and row["target_workers"] == now.workers:
        return reason_of(now, hidden), blockers(job, now, view.snapshot)
    named = [one for one in written.get("blockers", ()) if one in view.snapshot.by_id]
    text = hide_names(str(written.get("text", "")), [one for one in written.get("blockers", ()) if one in hidden])
    reason = s.ReasonResponse(code=str(written.get("code", "")), text=text, data=dict(written.get("data") or {}))
    return reason, named


def explain(
    view: ClusterView, record: JobRecord, namespace: str | None, decisions: list[s.JobChange], leads: bool
) -> s.Explanation:
    """Everything about a job. Takes about as long as a few decisions of the policy."""
    job = view.snapshot.by_id.get(record.id)
    if job is None:
        return _over(view, record, decisions)
    hidden = view.hidden(namespace)
    reason, named = in_force(view, job, hidden)
    if reason.code == NOT_DECIDED and not leads:
        reason.text = "no scheduler leads: queued jobs wait until one does"
    seen = [one for one in named if one not in hidden]
    unseen = [view.snapshot.by_id[one] for one in named if one in hidden]
    upcoming = view.granted.allocations[job.id]
    row = view.rows[job.id]
    differs = job.schedulable and (upcoming.workers, str(upcoming.reason.code)) != (
        row["target_workers"],
        reason.code,
    )
    found = view.eta(job.id)
    return s.Explanation(
        job_id=job.id,
        state=row["state"],
        desired=row["desired"],
        priority=job.priority,
        workers=workers(view, job),
        reason=_troubled(row, reason),
        blockers=[_blocker(view, one) for one in seen],
        hidden_blockers=s.Hidden(jobs=len(unseen), workers=sum(one.occupied_workers for one in unseen)),
        next=_next(upcoming, hidden) if differs else None,
        remedies=[
            s.Remedy(text=one.text, workers=one.workers, change=dict(one.change), command=one.command)
            for one in find_remedies(
                view.snapshot, view.policy, view.plan, job.id, most_priority=view.most_priority(job.id)
            )
        ],
        slots=slots(view),
        devices=devices(view, job),
        quota=_quota(view, job),
        remaining_records=job.remaining_records,
        speed=[
            s.Rate(
                workers=one.workers,
                records_per_second=None if one.records_per_second is None else round(one.records_per_second, 3),
                relative=round(one.relative, 4),
                basis=one.basis,
            )
            for one in speeds(job)
        ],
        expected=expected(found, view.snapshot.now),
        decisions=decisions,
    )


def _troubled(row: Mapping[str, Any], reason: s.ReasonResponse) -> s.ReasonResponse:
    """The reason, or, where the job's master has trouble, that."""
    status = row["status"]
    trouble = status.get("degraded") if isinstance(status, Mapping) else None
    if not trouble or not JobState(row["state"]).admitted:
        return reason
    return s.ReasonResponse(code=DEGRADED, text=f"{trouble} (workers: {reason.text})", data=reason.data)


def _next(allocation: Allocation, hidden: frozenset[str]) -> s.ReasonResponse:
    reason = reason_of(allocation, hidden)
    return s.ReasonResponse(code=reason.code, text=reason.text, data={**reason.data, "workers": allocation.workers})


def _over(view: ClusterView, record: JobRecord, decisions: list[s.JobChange]) -> s.Explanation:
    """A job that ended, or that was submitted a moment after the view was made."""
    queued = not record.terminal
    text = "the scheduler has not looked at it yet" if queued else f"it is over ({record.state}): {record.reason}"
    why = "the scheduler has not looked at it yet" if queued else "it is over"
    present = view.capacity.used.get(record.id, 0)
    return s.Explanation(
        job_id=record.id,
        state=record.state,
        desired=record.desired,
        priority=record.priority,
        workers=s.Workers(
            present=present, target=record.target_workers, min=record.min_workers, max=record.max_workers
        ),
        reason=s.ReasonResponse(code=NOT_DECIDED if queued else ENDED, text=text),
        blockers=[],
        hidden_blockers=s.Hidden(jobs=0, workers=0),
        next=None,
        remedies=[],
        slots=slots(view),
        quota=None,
        remaining_records=remaining_records(record.status),
        speed=[],
        expected=s.Expected(
            starts_at=record.started_at,
            ends_at=record.finished_at,
            seconds=None,
            seconds_low=None,
            seconds_high=None,
            basis="assumed",
            why_unknown=why,
        ),
        decisions=decisions,
    )


def _blocker(view: ClusterView, job_id: str) -> s.Blocker:
    job = view.snapshot.by_id[job_id]
    return s.Blocker(
        job_id=job_id,
        priority=job.priority,
        workers=job.occupied_workers,
        min_workers=job.min_workers,
        ends_at=moment(view.forecast.ends.get(job_id)),
    )


def _quota(view: ClusterView, job: JobView) -> s.QuotaUse | None:
    quota = view.snapshot.quotas.get(job.team)
    if quota is None:
        return None
    used = sum(one.demand(one.current_workers).slots for one in view.snapshot.jobs if one.team == job.team)
    return s.QuotaUse(
        team=job.team,
        used=used,
        weight=quota.weight,
        guaranteed=None if quota.guaranteed is None else quota.guaranteed.slots,
        limit=None if quota.limit is None else quota.limit.slots,
    )


def present_plan(view: ClusterView, namespace: str | None) -> s.PresentPlan:
    """The plan in force, with what is expected of each job."""
    hidden = view.hidden(namespace)
    last, decision = view.seen.last, view.seen.decision
    others = [job for job in view.snapshot.jobs if job.id in hidden and job.occupied_workers > 0]
    nodes = [s.NodeSlots(name=n.name, slots=n.free.slots) for n in view.snapshot.capacity.nodes]
    return s.PresentPlan(
        alive=bool(last and last["alive"]),
        policy=last["policy"] if last else view.policy.name,
        epoch=last["epoch"] if last else None,
        sequence=decision["id"] if decision else None,
        input_hash=decision["input_hash"] if decision else None,
        decided_at=last["at"] if last else None,
        age_s=round(last["age_s"], 3) if last else None,
        seconds=last["seconds"] if last else None,
        passes=last["passes"] if last else None,
        slots=slots(view),
        nodes=nodes or [s.NodeSlots(name=NODE, slots=float(view.capacity.for_jobs))],
        others=s.Hidden(jobs=len(others), workers=sum(job.occupied_workers for job in others)),
        jobs=[
            _planned(view, view.snapshot.by_id[job_id], hidden)
            for job_id in view.granted.allocations
            if job_id not in hidden
        ],
    )


def _planned(view: ClusterView, job: JobView, hidden: frozenset[str]) -> s.PlannedJob:
    row = view.rows[job.id]
    status = row["status"]
    status = status if isinstance(status, Mapping) else {}
    done, total = counted_records(status)
    speed = number(status.get("samples_per_second"))
    reason, named = in_force(view, job, hidden)
    return s.PlannedJob(
        job_id=job.id,
        name=row["name"],
        namespace=job.team,
        state=row["state"],
        priority=job.priority,
        workers=workers(view, job),
        reason=reason,
        blockers=[one for one in named if one not in hidden],
        records_per_second=speed if job.live_workers else None,
        progress=round(done / total, 4) if total else None,
        expected=expected(view.eta(job.id), view.snapshot.now),
    )

"""What-if: from a question to a change of the snapshot, and from two forecasts to an answer. Nothing is written."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import replace
from datetime import UTC, datetime

from elasticdl_api.scheduling.cluster_view import ClusterView
from elasticdl_api.scheduling.explanations import NODE, moment, reason_of
from elasticdl_api.schemas import scheduling as s
from elasticdl_core.devices import parse_request
from elasticdl_core.errors import InvalidInputError, NotFoundError, Problem, SpecError
from elasticdl_core.job import JobState
from elasticdl_core.job.fields import default_of
from elasticdl_core.scheduling import JobView, Resources
from elasticdl_core.scheduling.explanation import eta
from elasticdl_core.scheduling.forecast import Change, Forecast, ForecastComparison, what_if
from elasticdl_core.scheduling.throughput import LONE_SLOPE
from elasticdl_runtime.scheduling import DEFAULT_RESCALE_COST_S, KIND_FIELDS, kinds_alike, worker_resources

HYPOTHETICAL = "what-if:"
"""Before the names of jobs that do not exist, so that they are no job's id."""


def change_of(question: s.WhatIf, view: ClusterView, namespace: str | None, home: str) -> Change:
    """The question as the policy takes it.

    Args:
        question: what was asked.
        view: the cluster as it is.
        namespace: the only one that the caller sees; None for all.
        home: the namespace that the caller's new jobs belong to.

    Raises:
        NotFoundError: it names a job that the caller does not see or that is over, or no machine.
        SpecError: bounds do not fit together.
        InvalidInputError: it asks for no change.
    """
    asked = question.model_dump(exclude_defaults=True)
    if not asked:
        raise InvalidInputError(
            "the question asks for no change",
            fix="give add, cancel, priorities, sizes, slots, add_slots, devices or nodes",
        )
    hidden = view.hidden(namespace)
    likes = [one.like for one in question.add if one.like is not None]
    for job_id in (*question.cancel, *question.priorities, *question.sizes, *likes):
        if job_id not in view.snapshot.by_id or job_id in hidden:
            raise NotFoundError(
                f"there is no active job {job_id}", fix="list the jobs: `elasticdl jobs list`, or GET /jobs"
            )
    _check_bounds(question, view)
    return Change(
        add=[_hypothetical(one, number, view, home) for number, one in enumerate(question.add)],
        remove=tuple(question.cancel),
        priorities=dict(question.priorities),
        sizes={job_id: _bounds(view.snapshot.by_id[job_id], one) for job_id, one in question.sizes.items()},
        slots=_slots(question, view),
        devices=question.devices,
    )


def _bounds(job: JobView, asked: s.Bounds) -> tuple[int, int]:
    least = job.min_workers if asked.min_workers is None else asked.min_workers
    most = job.max_workers if asked.max_workers is None else asked.max_workers
    return least, most


def _check_bounds(question: s.WhatIf, view: ClusterView) -> None:
    wanted = [(f"add.{i}", (one.min_workers, one.max_workers)) for i, one in enumerate(question.add)]
    wanted += [(f"sizes.{name}", _bounds(view.snapshot.by_id[name], one)) for name, one in question.sizes.items()]
    wrong = [
        Problem(place, f"min_workers {least} is above max_workers {most}", "give both, the smaller first")
        for place, (least, most) in wanted
        if least > most
    ]
    names = [one.name for one in question.add]
    wrong += [
        Problem(f"add.{i}.name", f"{name!r} is taken", "name each job differently")
        for i, name in enumerate(names)
        if name in names[:i] and name != "new"
    ]
    if wrong:
        raise SpecError(wrong)


def _hypothetical(asked: s.HypotheticalJob, number: int, view: ClusterView, home: str) -> JobView:
    like = view.snapshot.by_id[asked.like] if asked.like is not None else None
    kind = _kind(asked, home, view)
    prior: Mapping[int, float] = view.priors.get(kind, {})
    remaining, error = asked.records, 0.0
    if like is not None:
        prior = {**like.prior_throughput, **like.throughput}
        kind = like.kind
        if asked.records is None:
            remaining, error = like.remaining_records, like.work_error
    if asked.records_per_second is not None:
        counts = {1, asked.min_workers, asked.max_workers}
        prior = {n: asked.records_per_second * n / (1 + LONE_SLOPE * (n - 1)) for n in sorted(counts)}
    return JobView(
        id=f"{HYPOTHETICAL}{asked.name}" if asked.name != "new" or number == 0 else f"{HYPOTHETICAL}new-{number + 1}",
        team=home if like is None else like.team,
        priority=asked.priority,
        submitted_at=view.snapshot.now,
        state=JobState.QUEUED,
        min_workers=asked.min_workers,
        max_workers=asked.max_workers,
        most_computing=0 if like is None else like.most_computing,
        prior_throughput=prior,
        remaining_records=remaining,
        work_error=error,
        rescale_cost_s=DEFAULT_RESCALE_COST_S if like is None else like.rescale_cost_s,
        live_workers=0,
        worker=_worker(asked, number) if like is None or asked.worker_resource_request is not None else like.worker,
        kind=kind,
    )


def _worker(asked: s.HypotheticalJob, number: int) -> Resources:
    try:
        parse_request(asked.worker_resource_request or "")
    except InvalidInputError as error:
        raise SpecError([Problem(f"add.{number}.worker_resource_request", error.message, error.fix)]) from None
    return worker_resources(asked.worker_resource_request)


def _kind(asked: s.HypotheticalJob, home: str, view: ClusterView) -> str:
    """The kind of the model's last job, with what a submission would get where the question leaves something out.

    A job without a model is of no kind: nothing is known of it.
    """
    if asked.model_def is None:
        return ""
    given = {name: getattr(asked, name) for name in KIND_FIELDS}
    known = {name: default_of(name) if value is None else value for name, value in given.items()}
    alike = kinds_alike(home, known)
    return next((kind for kind in view.priors if kind.startswith(alike)), alike)


def _slots(question: s.WhatIf, view: ClusterView) -> int | None:
    present = int(view.snapshot.capacity.total.slots)
    nodes = {node.name: int(node.free.slots) for node in view.snapshot.capacity.nodes} or {NODE: present}
    unknown = [name for name in question.remove_nodes if name not in nodes]
    if unknown:
        raise NotFoundError(f"there is no machine {unknown[0]!r}", fix=f"the machines are {', '.join(nodes)}")
    less = sum(nodes[name] for name in set(question.remove_nodes))
    changed = question.add_slots + sum(node.slots for node in question.add_nodes) - less
    if question.slots is None and not changed:
        return None
    return max((present if question.slots is None else question.slots) + changed, 0)


def answer(view: ClusterView, change: Change, namespace: str | None) -> s.WhatIfAnswer:
    """Compares the cluster without and with the change, as far as the caller may see it."""
    snapshot = view.snapshot
    # Whoever asks for a change of a job does not wait for its cool-down, neither here nor when it is really made.
    asked = {*change.priorities, *change.sizes}
    free = tuple(replace(job, last_rescale_at=None) if job.id in asked else job for job in snapshot.jobs)
    found = what_if(replace(snapshot, jobs=free), view.policy, change)
    hidden = view.hidden(namespace)
    added = {job.id: job for job in change.add}
    jobs = {job.id: job for job in snapshot.jobs} | added
    shown = [job for job in (*change.add, *snapshot.jobs) if job.id not in hidden]
    slots = int(snapshot.capacity.total.slots)
    return s.WhatIfAnswer(
        policy=view.policy.name,
        at=datetime.fromtimestamp(snapshot.now, UTC),
        slots_before=slots,
        slots_after=slots if change.slots is None else change.slots,
        jobs=[_effect(job, found, change, snapshot.now, hidden, hypothetical=job.id in added) for job in shown],
        others=_others(found, [job_id for job_id in jobs if job_id in hidden]),
    )


def _effect(
    job: JobView, found: ForecastComparison, change: Change, now: float, hidden: frozenset[str], *, hypothetical: bool
) -> s.Effect:
    before, after = _course(job, found.before, now, hidden), _course(job, found.after, now, hidden)
    return s.Effect(
        job_id=job.id,
        hypothetical=hypothetical,
        priority=change.priorities.get(job.id, job.priority),
        before=before,
        after=after,
        delay_s=_delay(job.id, found),
    )


def _course(job: JobView, forecast: Forecast, now: float, hidden: frozenset[str]) -> s.Course | None:
    allocation = forecast.plan.allocations.get(job.id)
    if allocation is None:
        return None
    found = eta(job, forecast, now)
    return s.Course(
        workers=allocation.workers,
        starts_at=moment(found.starts_at),
        ends_at=moment(found.ends_at),
        earliest=moment(found.earliest),
        latest=moment(found.latest),
        reason=reason_of(allocation, hidden),
    )


def _delay(job_id: str, found: ForecastComparison) -> float | None:
    before, after = found.before.ends.get(job_id), found.after.ends.get(job_id)
    if before is None or after is None or not math.isfinite(after - before):
        return None
    return round(after - before, 1)


def _others(found: ForecastComparison, job_ids: list[str]) -> s.EffectOnOthers:
    delays = [delay for job_id in job_ids if (delay := _delay(job_id, found)) is not None]
    before, after = found.before.plan.targets(), found.after.plan.targets()
    return s.EffectOnOthers(
        jobs=len(job_ids),
        sooner=sum(delay < -1.0 for delay in delays),
        later=sum(delay > 1.0 for delay in delays),
        workers_before=sum(before.get(job_id, 0) for job_id in job_ids),
        workers_after=sum(after.get(job_id, 0) for job_id in job_ids),
    )

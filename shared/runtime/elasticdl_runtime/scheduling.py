"""From rows of Postgres to the snapshot that a policy decides on.

The scheduler decides on it, the api explains it and answers what-if; both must see the same cluster, so what the rows
mean is here. The queries are in ``elasticdl_runtime.database.snapshots``.
"""

from __future__ import annotations

import base64
import functools
import hashlib
import json
import math
import zlib
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict
from types import MappingProxyType
from typing import Any

from elasticdl_core.devices import WHOLE, Place
from elasticdl_core.errors import InvalidInputError
from elasticdl_core.job.fields import ALL_REDUCE, default_of
from elasticdl_core.job.life import Desired, JobState
from elasticdl_core.pods import parse_resources
from elasticdl_core.ports.launcher import CapacityInfo, DeviceInfo, DeviceUse
from elasticdl_core.scheduling import Capacity, JobView, Quota, Resources, Snapshot
from elasticdl_core.scheduling.expected_work import LATEST, ExpectedWork, expected_work
from elasticdl_core.scheduling.snapshot import NOTHING, ONE_SLOT, DeviceView
from elasticdl_core.scheduling.throughput import mean_curve

DEFAULT_RESCALE_COST_S = 15.0
"""Assumed until a job has measured its own."""

KIND_FIELDS = ("model_def", "minibatch_size", "num_ps", "use_async")
"""Fields of a specification that a kind shows; all others that can matter to its speed are in a digest."""

NOT_OF_KIND = frozenset(
    {
        *("name", "labels", "priority", "min_workers", "max_workers", "num_epochs", "max_steps", "seed"),
        *("optimizer_params", "progress_timeout_s", "log_loss_steps", "on_nan"),
        *("checkpoint_dir", "checkpoint_dir_for_init", "keep_checkpoint_max"),
        *("output", "output_format", "export_formats"),
    }
)
"""Fields that say how much, how often, how important or where to, and nothing of how fast."""

Speeds = Mapping[str, Mapping[int, float]]
"""Records/s by worker count, by kind of job."""

Works = Mapping[str, ExpectedWork]
"""Records of one pass over data, by their key."""

BOUND_ERROR = 1.0
"""Relative error of work of which nothing but an upper bound is known."""

QUOTA_LIMITS = ("weight", "guaranteed_slots", "max_slots")
"""Limits of a namespace that make its quota: it has one as soon as it has any of them."""

Views = dict[str, tuple[tuple[Any, ...], JobView]]
"""Jobs of a snapshot by id, each with all that it was made of."""

MOST = 1e18
"""More than any job has or does: a status is its owner's to choose, and what is summed up must stay a number."""

_DATA = {"training": "training_data", "evaluation": "validation_data", "prediction": "prediction_data"}


def kind_of(namespace: str, spec: Mapping[str, Any]) -> str:
    """The kind of a job: jobs of one kind are taken to have speed-up curves of the same shape.

    They have the same code, parameters, data, strategy and resources. A field at its default is as none, so that
    kinds outlive releases that add fields.
    """
    rest = {name: value for name, value in spec.items() if name not in NOT_OF_KIND and value != _default_of(name)}
    digest = hashlib.sha256(json.dumps(rest, sort_keys=True, default=str).encode()).hexdigest()[:16]
    return kinds_alike(namespace, spec) + digest


def kinds_alike(namespace: str, spec: Mapping[str, Any]) -> str:
    """The beginning that the kinds of a model have in common, where no more than these fields is known of a job."""
    fields = (spec.get(name) for name in KIND_FIELDS)
    shown = ("true" if f is True else "false" if f is False else "" if f is None else str(f) for f in fields)
    return "/".join((namespace, *shown, ""))


def data_key(namespace: str, spec: Mapping[str, Any]) -> str:
    """The key of what a job reads: jobs of one key have as many records in each epoch; empty if nothing can be told.

    The records of a reader of one's own are a matter of its code, too.
    """
    data = spec.get(_DATA.get(str(spec.get("type", "training")), ""), "")
    if not data:
        return ""
    reader = spec.get("custom_data_reader") or ""
    code = [spec.get("model_zoo"), spec.get("model_bundle"), spec.get("model_def")] if reader else []
    told = json.dumps([namespace, data, spec.get("data_reader_params") or {}, reader, code], sort_keys=True)
    return hashlib.sha256(told.encode()).hexdigest()[:16]


def _default_of(name: str) -> Any:
    return None if name == "model_def" else default_of(name)


def rates(value: Any) -> dict[int, float]:
    """Measured speeds to three digits, so that what follows from them seldom has to be worked out anew.

    Entries that make no sense are left out, as a status is what a job's master says.
    """
    found: dict[int, float] = {}
    for count, rate in (value if isinstance(value, Mapping) else {}).items():
        good = isinstance(rate, int | float) and not isinstance(rate, bool) and 1 / MOST < rate < MOST
        if str(count).isdecimal() and len(str(count)) <= 6 and int(count) > 0 and good:
            found[int(count)] = float(f"{rate:.3g}")
    return found


def number(value: Any) -> float:
    """A measured amount; 0 for what makes no sense."""
    good = isinstance(value, int | float) and not isinstance(value, bool) and 0 <= value < MOST
    return float(value) if good else 0.0


def counted_records(status: Any) -> tuple[float, float]:
    """Records done and records in all, by what a job's master said; 0 in all while that is not known."""
    progress = status.get("progress") if isinstance(status, Mapping) else None
    progress = progress if isinstance(progress, Mapping) else {}
    total = number(progress.get("records_total"))
    return min(number(progress.get("records_done")), total), total


def remaining_records(status: Any) -> float | None:
    """Records that a job has still to process; None while that is not known."""
    done, total = counted_records(status)
    return total - done if total else None


def mean_work(rows: Iterable[Mapping[str, Any]]) -> dict[str, ExpectedWork]:
    """Records of one epoch by key of the data, as masters counted them, from rows of jobs, the last one first."""
    counts: dict[str, list[float]] = {}
    for row in rows:
        key, status = row.get("data_key"), row["status"]
        if not key or len(counts.get(key, ())) >= LATEST:
            continue
        _, total = counted_records(status)
        if total and status["progress"].get("listing") is not True:
            counts.setdefault(key, []).append(total / max(_whole(row.get("num_epochs")), 1))
    return {key: found for key, past in counts.items() if (found := expected_work(past)) is not None}


def _work_of(row: Mapping[str, Any], status: Mapping[str, Any], works: Works) -> tuple[float | None, float]:
    """Records still to process and their relative error: as its master says, else as others counted the same data.

    Whoever stops after so many updates has no more to do than these, and less where the data end before.
    """
    done, total = counted_records(status)
    left, error = (total - done if total else None), 0.0
    known = works.get(row.get("data_key") or "")
    if left is None and known is not None:
        left, error = known.records * max(_whole(row.get("num_epochs")), 1), known.spread
    if most := _whole(row.get("max_steps")) * _records_of_update(row):
        rest = max(most - done, 0.0)
        if left is None:
            return rest, BOUND_ERROR
        if rest < left:  # Sure where the least that the data may have is more, too.
            return rest, error if rest > left / (1.0 + error) else 0.0
    return left, error


def _records_of_update(row: Mapping[str, Any]) -> int:
    together = "get_model_steps" if row.get("use_async") == "true" else "grads_to_wait"
    times = 1 if row.get("distribution_strategy") == ALL_REDUCE else max(_whole(row.get(together)), 1)
    return times * _whole(row.get("minibatch_size"))


def _whole(text: Any) -> int:
    """A number of a specification; 0 for what is none."""
    return int(text) if isinstance(text, str) and text.isdecimal() and len(text) < 16 else 0


def most_computing(microbatches: str | None, status: Mapping[str, Any]) -> int:
    """The number of workers of a job that can compute: parts of a group update; 0 for any number.

    Args:
        microbatches: of its specification, which has them where the job names ``AllReduceStrategy``.
        status: what its master said, with the number where the master chose the strategy.
    """
    strategy = status.get("strategy")
    told = strategy.get("microbatches") if isinstance(strategy, Mapping) else None
    return int(number(told)) or int(microbatches or 0)


@functools.lru_cache(maxsize=1024)
def worker_resources(request: str | None, memory_mib: int = 0) -> Resources:
    """The resources of one worker: a slot, and what its job asks for beside.

    Args:
        request: ``worker_resource_request``.
        memory_mib: ``worker_memory_mib``: what it may take is there for it.
    """
    try:
        share = parse_resources(request or "").device_share
    except InvalidInputError:
        share = 0  # of a release that took other words
    return Resources(slots=1.0, gpu=share / WHOLE, memory=float(memory_mib)) if share or memory_mib else ONE_SLOT


def _servers(row: Mapping[str, Any]) -> Resources:
    """The resources of a job's parameter servers, with the memory that they may take."""
    each = _whole(row.get("ps_memory_mib"))
    number = 0 if row.get("distribution_strategy") == ALL_REDUCE else _whole(row.get("num_ps"))
    return Resources(memory=float(each * number)) if each * number else NOTHING


def job_view(
    row: Mapping[str, Any],
    used: Mapping[str, int],
    priors: Speeds,
    works: Works = MappingProxyType({}),
    places: Mapping[str, tuple[Place, ...]] = MappingProxyType({}),
) -> JobView:
    """One job of a snapshot.

    Args:
        row: of ``read_jobs``.
        used: worker slots in use by job id, as the launcher sees it.
        priors: mean speeds of past jobs.
        works: records of one pass over data.
        places: by job id, the devices of its living workers.
    """
    status = _status_of(row)
    state, desired = JobState(row["state"]), Desired(row["desired"])
    held = state.admitted and desired is not Desired.EVICT
    return JobView(
        id=row["id"],
        team=row["namespace"],
        priority=row["priority"],
        submitted_at=row["submitted_at"],
        state=state,
        wanted=desired in (Desired.RUN, Desired.EVICT),
        min_workers=max(row["min_workers"], 1),
        max_workers=max(row["max_workers"], row["min_workers"], 1),
        most_computing=most_computing(row.get("microbatches"), status),
        current_workers=row["target_workers"] if held else 0,
        prior_throughput=priors.get(row["kind"], {}),
        last_rescale_at=row["last_rescale_at"],
        started_at=row["started_at"],
        worker=worker_resources(row["worker_resource_request"], _whole(row.get("worker_memory_mib"))),
        fixed=_servers(row),
        places=places.get(row["id"], ()),
        kind=row["kind"],
        **_progress_of(row, used, works),
    )


def _status_of(row: Mapping[str, Any]) -> Mapping[str, Any]:
    status = row["status"]
    return status if isinstance(status, Mapping) else {}


def _progress_of(row: Mapping[str, Any], used: Mapping[str, int], works: Works) -> dict[str, Any]:
    """The fields of a job's view that change while it does nothing but go on."""
    status = _status_of(row)
    left, error = _work_of(row, status, works)
    return {
        "live_workers": used.get(row["id"], 0),
        "throughput": rates(status.get("throughput")),
        "remaining_records": left,
        "work_error": error,
        "rescale_cost_s": number(status.get("rescale_cost_s")) or DEFAULT_RESCALE_COST_S,
        "attained_service": number(status.get("worker_seconds")),
    }


def _moved_on(
    seen: tuple[tuple[Any, ...], JobView], basis: tuple[Any, ...], used: Mapping[str, int], works: Works
) -> JobView | None:
    """The view of a job of which nothing but its progress changed; None if anything else did."""
    (before, _, prior, _, places), view = seen
    row = basis[0]
    if (prior, places) != (basis[2], basis[4]) or before | {"status": row["status"]} != row:
        return None
    if most_computing(row.get("microbatches"), _status_of(row)) != view.most_computing:
        return None
    return view.advanced(**_progress_of(row, used, works))


def mean_speeds(rows: Iterable[Mapping[str, Any]]) -> dict[str, dict[int, float]]:
    """Mean speeds by kind, from rows of ``read_past_speeds``."""
    by_kind: dict[str, list[dict[int, float]]] = {}
    for row in rows:
        measured = rates(row["throughput"])
        if measured:
            by_kind.setdefault(row["kind"], []).append(measured)
    return {kind: mean_curve(curves) for kind, curves in by_kind.items()}


def snapshot_of(
    now: float,
    rows: Sequence[Mapping[str, Any]],
    priors: Speeds,
    capacity: CapacityInfo,
    quotas: Mapping[str, Quota],
    refused: Callable[[str, Exception], None] | None = None,
    works: Works = MappingProxyType({}),
    views: Views | None = None,
) -> Snapshot:
    """The snapshot of one instant.

    A job whose row cannot be read, such as one of another release, is not in it; the slots that it has are nobody's.

    Args:
        now: seconds since the epoch, by Postgres' clock.
        rows: of ``read_jobs``.
        priors: mean speeds of past jobs.
        capacity: what the launcher says.
        quotas: of teams.
        refused: gets the jobs that cannot be read, by id, and why.
        works: records of one pass over data that past jobs counted; what those of ``rows`` counted goes before.
        views: jobs of the snapshot before, which stand where nothing changed; it gets those of this one.
    """
    places: dict[str, tuple[Place, ...]] = {}
    for use in sorted(capacity.device_uses):
        places[use.job_id] = (*places.get(use.job_id, ()), use.devices)
    jobs, held = {}, dict(capacity.used)
    known = {**works, **mean_work(reversed(rows))}
    before = {} if views is None else dict(views)
    for row in rows:
        job_id = row["id"]
        try:
            work, prior = known.get(row.get("data_key") or ""), priors.get(row["kind"])
            basis = (row, capacity.used.get(job_id), prior, work, places.get(job_id))
            seen = before.get(job_id)
            if seen is None or seen[0] != basis:
                view = None if seen is None else _moved_on(seen, basis, capacity.used, known)
                view = view or job_view(row, capacity.used, priors, known, places)
                seen = before[job_id] = (basis, view)
            jobs[job_id] = seen[1]
        except Exception as error:
            held[row["id"]] = max(held.get(row["id"], 0), row["target_workers"])
            if refused is not None:
                refused(row["id"], error)
    if views is not None:
        views.clear()
        views.update((job_id, before[job_id]) for job_id in jobs)
    # Slots of jobs that are over, or that are not in the database, cannot be given out until they are free.
    foreign = sum(slots for job_id, slots in held.items() if job_id not in jobs)
    leaving = [0] * len(capacity.devices)
    for use in capacity.device_uses:
        for number in use.devices if use.job_id not in jobs else ():
            leaving[number] += min(use.share, WHOLE)
    return Snapshot(
        now=now,
        jobs=tuple(jobs.values()),
        capacity=Capacity(
            Resources(float(capacity.for_jobs), memory=float(capacity.memory_mib), gpu=float(len(capacity.devices))),
            leaving=Resources(slots=float(foreign), gpu=sum(leaving) / WHOLE),
            devices=tuple(
                DeviceView(device.name, held) for device, held in zip(capacity.devices, leaving, strict=True)
            ),
            set_aside=float(max(capacity.slots - capacity.for_jobs, 0)),
        ),
        quotas=quotas,
    )


def packed(text: str) -> dict[str, str]:
    """JSON text for the decision log, where no query looks into it: Postgres takes long over megabytes."""
    return {"zlib": base64.b64encode(zlib.compress(text.encode(), 1)).decode()}


def unpacked(value: Mapping[str, Any]) -> dict[str, Any]:
    """Reads ``packed`` back, and what earlier releases wrote, which is as it was."""
    if value.keys() != {"zlib"}:
        return dict(value)
    found: dict[str, Any] = json.loads(zlib.decompress(base64.b64decode(value["zlib"])))
    return found


def devices_to_json(capacity: CapacityInfo) -> dict[str, Any]:
    """The devices of a capacity and who holds what of them, as the scheduler writes them down for others."""
    return {
        "devices": [asdict(device) for device in capacity.devices],
        "device_uses": [asdict(use) for use in capacity.device_uses],
    }


def devices_from_json(told: Mapping[str, Any]) -> tuple[tuple[DeviceInfo, ...], tuple[DeviceUse, ...]]:
    """Reads ``devices_to_json`` back; nothing where an earlier release wrote nothing."""
    return (
        tuple(DeviceInfo(**device) for device in told.get("devices", ())),
        tuple(DeviceUse(**{**use, "devices": tuple(use["devices"])}) for use in told.get("device_uses", ())),
    )


def quotas_to_json(quotas: Mapping[str, Quota]) -> dict[str, dict[str, float]]:
    """Quotas in the form in which settings give them, amounts in slots."""
    return {
        team: {"weight": quota.weight}
        | {
            name: amount.slots
            for name, amount in (("guaranteed", quota.guaranteed), ("limit", quota.limit))
            if amount is not None
        }
        for team, quota in sorted(quotas.items())
    }


def with_limits(quotas: Mapping[str, Quota], namespaces: Iterable[Mapping[str, Any]]) -> dict[str, Quota]:
    """Quotas with those that namespaces have as limits, which go before settings.

    Args:
        quotas: by team, of the settings.
        namespaces: of ``read_namespaces``.
    """
    found = dict(quotas)
    for row in namespaces:
        given = {name: float(row["limits"][name]) for name in QUOTA_LIMITS if row["limits"].get(name)}
        if given:
            most = given.get("max_slots")
            least = min(given["guaranteed_slots"], most or math.inf) if "guaranteed_slots" in given else None
            found[row["name"]] = Quota(
                given.get("weight", 1.0),
                None if least is None else Resources(slots=least),
                None if most is None else Resources(slots=most),
            )
    return found


def quotas_from_json(teams: Any, source: str) -> dict[str, Quota]:
    """Reads quotas.

    Args:
        teams: by team, e.g. ``{"ads": {"weight": 2, "guaranteed": 4, "limit": 8}}``, amounts in slots.
        source: where they come from, for the error.

    Raises:
        InvalidInputError: it is not of that form, or has unknown keys.
    """
    fix = f'set {source} to e.g. {{"ads": {{"weight": 2, "guaranteed": 4, "limit": 8}}}}, amounts in slots'
    if not isinstance(teams, Mapping):
        raise InvalidInputError(f"{source} is no JSON object", fix=fix)
    return {str(team): _quota(str(team), entry, source, fix) for team, entry in teams.items()}


def _quota(team: str, entry: object, source: str, fix: str) -> Quota:
    if not isinstance(entry, Mapping) or set(entry) - {"weight", "guaranteed", "limit"}:
        raise InvalidInputError(f"{source}: the entry of team {team!r} is not a quota", fix=fix)
    for key, value in entry.items():
        if isinstance(value, bool) or not isinstance(value, int | float) or value <= 0:
            raise InvalidInputError(f"{source}: {key} of team {team!r} is not a positive number", fix=fix)
    amounts = {key: Resources(slots=float(entry[key])) for key in ("guaranteed", "limit") if key in entry}
    if "guaranteed" in entry and entry["guaranteed"] > entry.get("limit", math.inf):
        problem = (
            f"{source}: team {team!r} is guaranteed {entry['guaranteed']:g} slots and limited to {entry['limit']:g}"
        )
        raise InvalidInputError(problem, fix="guarantee no more than the limit, or leave one of them out")
    return Quota(float(entry.get("weight", 1.0)), amounts.get("guaranteed"), amounts.get("limit"))

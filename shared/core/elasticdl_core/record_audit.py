"""The audit of a job's records from outside: plan and done-marks, compared with what the workers wrote that they did.

The master audits at a job's end by the tally of its parameter servers. This one believes neither: it counts anew what
the durable marks say, looks for each marked record in the workers' traces, and says whether both agree.
"""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from elasticdl_core.epoch_records import EpochRecords, LedgerSums, epoch_records, sums_of
from elasticdl_core.errors import InvalidInputError
from elasticdl_core.skips import Skips
from elasticdl_core.task import TaskId, TaskType

MOST_EPOCHS = 1000
MOST_NAMED = 5
MOST_WORKERS = 1000
Ranges = list[tuple[int, int]]
_Place = tuple[int, int]
_MAIN = {
    "training": TaskType.TRAINING,
    "evaluation": TaskType.EVALUATION,
    "prediction": TaskType.PREDICTION,
}


@dataclass
class WorkerShare:
    """The records that one incarnation of a worker wrote that it processed.

    Attributes:
        owner: its name, e.g. ``worker-3.1``.
        records: records, repetitions included.
        tasks: leases that it worked on.
        first_version: the least model version after which it noted something; None if it did not say.
        last_version: the greatest.
    """

    owner: str
    records: int = 0
    first_version: int | None = None
    last_version: int | None = None
    tokens: set[str] = field(default_factory=set)

    def to_mapping(self) -> dict[str, Any]:
        """For the answer."""
        return {
            "owner": self.owner,
            "records": self.records,
            "tasks": len(self.tokens),
            "first_version": self.first_version,
            "last_version": self.last_version,
        }


@dataclass(frozen=True)
class AuditedJob:
    """The durable records of a job's progress.

    Attributes:
        type: training, evaluation or prediction.
        state: of the job.
        terminal: whether it is over.
        plan: the plan that its master made durable; None if it has none yet.
        done: done-marks, with the account of each if it has one.
        status: what the master reported last.
    """

    type: str
    state: str
    terminal: bool
    plan: Mapping[str, Any] | None
    done: Mapping[str, Mapping[str, Any] | None]
    status: Mapping[str, Any]


class RecordTraces:
    """Takes the lines of the workers' traces, of the main work alone.

    Attributes:
        trouble: why they may lack something; empty if they should have all.
        workers: what each did, by its name.
    """

    def __init__(self, type_: str) -> None:
        self.trouble = ""
        self.workers: dict[str, WorkerShare] = {}
        self._type = _MAIN[type_]
        self._ranges: dict[_Place, Ranges] = {}
        self._records: dict[int, int] = {}

    def add(self, owner: str, line: object) -> None:
        """Takes one line; one that is none counts as trouble."""
        try:
            assert isinstance(line, dict)
            task = TaskId.parse(str(line["task"]))
            start, end, token, version = line["start"], line["end"], str(line["token"])[:100], line.get("version")
            if not (isinstance(start, int) and isinstance(end, int) and task.start <= start <= end <= task.end):
                raise ValueError("a range that is not of its task")
        except (AssertionError, LookupError, ValueError, InvalidInputError):
            self.trouble = self.trouble or f"{owner} wrote what is no line of a trace"
            return
        if task.type is not self._type:
            return
        share = self.workers.setdefault(owner, WorkerShare(owner))
        share.records += end - start
        share.tokens.add(token)
        if isinstance(version, int) and not isinstance(version, bool):
            share.first_version = version if share.first_version is None else min(version, share.first_version)
            share.last_version = version if share.last_version is None else max(version, share.last_version)
        self._ranges.setdefault((task.epoch, task.index), []).append((start, end))
        self._records[task.epoch] = self._records.get(task.epoch, 0) + end - start

    def at(self, place: _Place) -> Ranges:
        """The records of a task that were processed."""
        return merged(self._ranges.get(place, []))

    def repeated(self) -> int:
        """Records that were processed more than once: each time after the first."""
        return sum(self._records.values()) - sum(covered(merged(ranges)) for ranges in self._ranges.values())


def audit_records(job: AuditedJob, traces: RecordTraces) -> dict[str, Any]:
    """The audit, as JSON data: see ``GET /jobs/{id}/audit``."""
    plan, type_ = job.plan, _MAIN[job.type]
    shards = list(plan["shards"]) if plan else []
    planned = sum(end - start for _, start, end in shards)
    epochs = int(plan["rounds"]) if plan and type_ is not TaskType.EVALUATION else 1 if plan else 0
    done, skipped = _done(job, type_)
    by_epoch: dict[int, int] = {}
    for (epoch, _), ranges in done.items():
        by_epoch[epoch] = by_epoch.get(epoch, 0) + covered(ranges)
    if type_ is TaskType.EVALUATION and by_epoch:
        by_epoch = {0: max(by_epoch.values())}
        skipped = {0: sum(skipped.values())}
    ledger = job.status.get("ledger")
    told = ledger if isinstance(ledger, Mapping) and not job.terminal else {}
    rows = [
        epoch_records(
            number,
            planned,
            done=by_epoch.get(number, 0),
            leased=_leased(number, told),
            skipped=skipped.get(number, 0),
        )
        for number in range(epochs)
    ]
    findings = _broken(job, rows, done, traces)
    total = sums_of(rows)
    master = job.status.get("audit")
    verdict = "broken" if findings else "held" if job.terminal else "running"
    return {
        "verdict": verdict,
        "findings": findings + _notes(job, total, traces),
        "epochs": rows[:MOST_EPOCHS],
        "total": total,
        "workers": [one.to_mapping() for _, one in sorted(traces.workers.items())][:MOST_WORKERS],
        "duplicates": int(master.get("duplicates") or 0) if isinstance(master, Mapping) else 0,
        "redone": traces.repeated(),
        "skipped": list(job.status.get("skipped") or []),
    }


def _leased(number: int, told: Mapping[str, Any]) -> int:
    return int(told.get("leased") or 0) if told.get("epoch") == number else 0


def _done(job: AuditedJob, type_: TaskType) -> tuple[dict[_Place, Ranges], dict[int, int]]:
    """The tasks marked as done, by epoch and task, and what of them was passed over, by epoch."""
    ranges: dict[_Place, Ranges] = {}
    skipped: dict[int, int] = {}
    # The longest first: what is marked as done as a whole, and in part before, counts with the whole's account.
    tasks = sorted((TaskId.parse(name) for name in job.done), key=lambda task: -task.records)
    for task in (one for one in tasks if one.type is type_):
        known = ranges.setdefault((task.epoch, task.index), [])
        within = any(start <= task.start and task.end <= end for start, end in known)
        known.append((task.start, task.end))
        account = job.done[str(task)]
        if account and not within:
            fed = account.get("fed")
            skips = Skips.from_json(account.get("skipped") or ()).in_records(task.records, fed)
            skipped[task.epoch] = skipped.get(task.epoch, 0) + skips.records
    return {place: merged(found) for place, found in ranges.items()}, skipped


def _broken(
    job: AuditedJob, rows: list[EpochRecords], done: Mapping[_Place, Ranges], traces: RecordTraces
) -> list[str]:
    findings = [
        f"epoch {row['epoch']}: more records are marked as done than the {row['planned']:,} of its plan"
        for row in rows
        if row["todo"] < 0
    ]
    missing = []
    for (epoch, index), ranges in sorted(done.items()):
        lacking = covered(ranges) - covered(merged([*_common(ranges, traces.at((epoch, index)))]))
        if lacking:
            missing.append(f"{lacking:,} records of task {index} of epoch {epoch + 1}")
    if missing and not traces.trouble:
        more = f"; and of {len(missing) - MOST_NAMED} more tasks" if len(missing) > MOST_NAMED else ""
        shown = "; ".join(missing[:MOST_NAMED]) + more
        findings.append(f"marked as done, and in no worker's trace: {shown}")
    audit = job.status.get("audit")
    if isinstance(audit, Mapping) and audit.get("state") == "failed":
        findings.append(f"the parameter servers lack records: {audit.get('reason')}")
    left = sum(row["todo"] for row in rows)
    if job.state == "SUCCEEDED" and left > 0 and not _ended_by_its_rules(audit, rows):
        findings.append(f"the job succeeded, and {left:,} records of its plan are not marked as done")
    return findings[: 4 * MOST_NAMED]


def _ended_by_its_rules(audit: object, rows: list[EpochRecords]) -> bool:
    """Whether training ended early, and all that was begun is in the model."""
    marked = sum(row["committed"] + row["skipped"] for row in rows)
    return isinstance(audit, Mapping) and audit.get("state") == "passed" and int(audit.get("planned") or 0) <= marked


def _notes(job: AuditedJob, total: LedgerSums, traces: RecordTraces) -> list[str]:
    """Notes that are worth knowing and break no promise."""
    notes = []
    if job.plan is None:
        notes.append("the job has no plan yet: its data is not listed")
    if traces.trouble:
        notes.append(f"what workers did cannot be seen in full: {traces.trouble}")
    if job.terminal and total["todo"] > 0:
        notes.append(f"{total['todo']:,} records of the plan were not done: the job ended as {job.state}")
    audit = job.status.get("audit")
    if isinstance(audit, Mapping) and audit.get("state") == "incomplete":
        notes.append(f"the parameter servers could not tell: {audit.get('reason')}")
    return notes


def merged(ranges: Iterable[tuple[int, int]]) -> Ranges:
    """Ranges in order, without overlaps."""
    found: Ranges = []
    for start, end in sorted(ranges):
        if found and start <= found[-1][1]:
            found[-1] = (found[-1][0], max(end, found[-1][1]))
        elif start < end:
            found.append((start, end))
    return found


def covered(ranges: Ranges) -> int:
    """Records of ranges that do not overlap."""
    return sum(end - start for start, end in ranges)


def _common(some: Ranges, others: Ranges) -> Iterable[tuple[int, int]]:
    at = 0
    for start, end in some:
        while at < len(others) and others[at][1] <= start:
            at += 1
        position = at
        while position < len(others) and others[position][0] < end:
            yield max(start, others[position][0]), min(end, others[position][1])
            position += 1

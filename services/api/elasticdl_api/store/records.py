"""A job as the store gives it."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, fields
from datetime import datetime
from typing import Any

from elasticdl_api.web.json_bodies import prune
from elasticdl_core.job.life import Desired, JobState


def shown_error(error: Any) -> dict[str, str] | None:
    """Why a job failed, as it is shown, out of what its row says; None for no reason."""
    if not isinstance(error, dict):
        return None
    texts = {name: error.get(name, "") for name in ("message", "fix", "traceback")}
    return {name: text if isinstance(text, str) else "" for name, text in texts.items()}


BRIEF = (
    *("progress", "samples_per_second", "eta_seconds", "eta_low_seconds", "eta_high_seconds"),
    *("loss", "model_version", "degraded"),
)
"""What a brief view shows of a status as it is."""


def brief_status(status: Any, present: int | None = None) -> dict[str, Any]:
    """The numbers of a status that lists show, and instead of its workers how many there are.

    Args:
        status: all of it, or those numbers.
        present: how many workers there are, where the database says it: the column ``workers_present``.
    """
    if not isinstance(status, dict):
        return {}
    if present is None:
        present = _present(status.get("workers"))
    return {**{name: status[name] for name in BRIEF if name in status}, "workers_present": present}


def _present(told: Any) -> int:
    """Workers that have not ended, as the column counts them, whatever a master reports."""
    workers = told if isinstance(told, list) else [told]
    states = [one["state"] for one in workers if isinstance(one, dict) and "state" in one]
    return sum(state is None or (isinstance(state, str) and state != "ended") for state in states)


@dataclass(frozen=True)
class JobRecord:
    """One row of ``jobs``; the columns are described in the migrations.

    Attributes:
        id: the job.
        namespace: whose it is.
        name: the name that the user gave.
        type: training, evaluation or prediction.
        spec: the specification as JSON data.
        state: where it stands.
        reason: why it stands there.
        priority: higher goes first.
        min_workers: fewest workers with which it runs.
        max_workers: most workers that it can use.
        target_workers: how many the scheduler grants.
        target_reason: why that many.
        desired: what is asked of its master: run, suspend, cancel or evict.
        master_epoch: grows with each lease of a master; an older one is fenced.
        master_incarnation: the newest launch of a master.
        master_failures: masters lost in a row, without the job getting further than ever before meanwhile.
        status: what the master reported last.
        error: why it failed: message, fix, traceback.
        created_at: when it was submitted.
        updated_at: when state or settings changed last.
        started_at: when it was first admitted.
        finished_at: when it ended.
        revision: grows when state or settings change.
        owner: the name of the user who submitted it; empty for jobs of earlier versions.
    """

    id: str
    namespace: str
    name: str
    type: str
    spec: dict[str, Any]
    state: JobState
    reason: str
    priority: int
    min_workers: int
    max_workers: int
    target_workers: int
    target_reason: str
    desired: Desired
    master_epoch: int
    master_incarnation: int
    master_failures: int
    status: dict[str, Any]
    error: dict[str, str] | None
    created_at: datetime
    updated_at: datetime
    started_at: datetime | None
    finished_at: datetime | None
    revision: int
    owner: str

    @classmethod
    def of(cls, row: Mapping[Any, Any]) -> JobRecord:
        """Reads a row of ``jobs``."""
        values = {field.name: row[field.name] for field in fields(cls)}
        for name in ("spec", "status", "error"):
            values[name] = prune(values[name])
        values["error"] = shown_error(values["error"])
        return cls(**values | {"state": JobState(row["state"]), "desired": Desired(row["desired"])})

    @property
    def terminal(self) -> bool:
        """Whether the job has ended for good."""
        return self.state.terminal

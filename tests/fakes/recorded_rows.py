"""Rows of the database as the scheduler, masters and the api write them, to be written at once."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import asyncpg

from elasticdl_core.job import JobSpec
from elasticdl_core.job.life import JobState
from elasticdl_core.ports.launcher import CapacityInfo, DeviceInfo, DeviceUse
from elasticdl_runtime.scheduling import devices_to_json
from tests.fakes.recorded_agent import DEVICES, USED

JOB_COLUMNS = (
    *("id", "namespace", "name", "type", "spec", "state", "reason", "priority", "min_workers", "max_workers"),
    *("target_workers", "target_reason", "target_detail", "desired", "master_epoch", "master_holder"),
    *("master_lease_expires_at", "master_lease_incarnation", "master_incarnation", "master_progress", "status"),
    *("error", "created_at", "updated_at", "started_at", "finished_at", "revision", "owner"),
)
_ACTIVE = ("STARTING", "RUNNING", "CANCELLING")
OWNERS = ("ada", "grace", "linus", "barbara", "edsger", "margaret")


@dataclass
class Clock:
    """Moments before the present."""

    now: datetime

    @classmethod
    def start(cls) -> Clock:
        return cls(datetime.now(UTC).replace(microsecond=0))

    def ago(self, seconds: float) -> datetime:
        return self.now - timedelta(seconds=seconds)


async def insert_rows(connection: asyncpg.Connection, table: str, rows: Sequence[Mapping[str, Any]]) -> None:
    """Writes rows as they are: triggers, which would refuse a job that is not at its beginning, are off."""
    if not rows:
        return
    columns = ", ".join(f'"{name}"' for name in rows[0])
    query = (
        f"INSERT INTO {table} ({columns}) SELECT {columns} FROM jsonb_populate_recordset(null::{table}, $1::jsonb)"
    )
    async with connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        for start in range(0, len(rows), 2000):
            await connection.execute(query, json.dumps(rows[start : start + 2000], default=_moment))


def _moment(value: Any) -> str:
    if isinstance(value, datetime):
        return value.isoformat()
    raise TypeError(value)


def job_row(clock: Clock, job_id: str, **changes: Any) -> dict[str, Any]:
    """A row of ``jobs``; ``spec`` in changes holds other fields of its specification."""
    name = changes.pop("name", job_id.rpartition("-")[0] or job_id)
    state = str(changes.get("state", "QUEUED"))
    sizes = {key: changes[key] for key in ("min_workers", "max_workers", "priority") if key in changes}
    spec = {
        "model_def": "model.custom_model",
        "model_bundle": "sha256:" + "0f" * 32,
        "training_data": "/data/clicks/train",
        "name": name,
        **sizes,
        **changes.pop("spec", {}),
    }
    lease = clock.now + timedelta(days=2) if state in _ACTIVE else None
    row = {
        "id": job_id,
        "namespace": "default",
        "name": name,
        "type": "training",
        "state": state,
        "reason": "",
        "priority": 0,
        "min_workers": 1,
        "max_workers": 1,
        "target_workers": 0,
        "target_reason": "",
        "target_detail": {},
        "desired": "run",
        "master_epoch": 1,
        "master_progress": 0,
        "master_holder": "master-0.1" if lease else "",
        "master_lease_expires_at": lease,
        "master_lease_incarnation": 1,
        "master_incarnation": 1,
        "status": {},
        "error": None,
        "created_at": clock.ago(3600),
        "updated_at": clock.ago(60),
        "started_at": None,
        "finished_at": None,
        "revision": 3,
        "owner": "ada",
        "spec": JobSpec.from_mapping(spec).to_mapping(),
    }
    unknown = changes.keys() - row.keys()
    assert not unknown, unknown
    return {name: {**row, **changes}[name] for name in JOB_COLUMNS}


def status(
    *,
    done: int,
    total: int,
    epoch: int,
    epochs: int,
    workers: Sequence[Mapping[str, Any]],
    servers: int = 2,
    version: int = 0,
    loss: float | None = None,
    **more: Any,
) -> dict[str, Any]:
    """What a master reports with its heartbeats."""
    speed = round(sum(one["samples_per_second"] for one in workers), 3)
    left = (total - done) / speed if speed else None
    return {
        "progress": {
            "records_done": done,
            "records_total": total,
            "epoch": epoch,
            "num_epochs": epochs,
            "tasks_done": done // 512,
            "tasks_total": -(-total // 512),
            "listing": False,
        },
        "ledger": _ledger(done, total, epochs, len(workers)),
        "samples_per_second": speed,
        "eta_seconds": None if left is None else round(left, 1),
        "eta_low_seconds": None if left is None else round(left * 0.9, 1),
        "eta_high_seconds": None if left is None else round(left * 1.25, 1),
        "loss": loss,
        "last_loss": loss,
        "learning_rate": 0.01,
        "training_metrics": {"accuracy": 0.871},
        "training_metrics_version": version,
        "model_version": version,
        "workers": list(workers),
        "ps": [
            {
                "index": index,
                "state": "serving",
                "rows": 812_345 + 1000 * index,
                "version": version,
                "bytes": 52_428_800 + 1_048_576 * index,
                "load": round(0.31 + 0.07 * (index % 5), 3),
            }
            for index in range(servers)
        ],
        "metrics": {"accuracy": 0.8829, "auc": 0.9312},
        "metrics_version": max(0, version - 17),
        "evaluation": "",
        "strategy": {"chosen": "ParameterServerStrategy", "reason": "it was asked for"},
        "degraded": None,
        "skipped": [],
        "duplicates": 0,
        "redone": 0,
        "audit": None,
        "throughput": {"1": 810.0, "2": 1580.0, "4": 2990.0, "6": 4210.0},
        "rescale_cost_s": 1.3,
        "worker_seconds": 21_000.0,
        **more,
    }


def _ledger(done: int, total: int, epochs: int, leases: int) -> dict[str, Any]:
    """Records of the epoch that is under way, a task of 512 in work for each worker; nothing is passed over."""
    planned = total // epochs
    number = min(done // planned, epochs - 1)
    here = done - number * planned
    leased = min(512 * leases, planned - here)
    return {
        "epoch": number,
        "epochs": epochs,
        "planned": planned,
        "done": here,
        "leased": leased,
        "skipped": {},
        "tasks": -(-planned // 512),
        "tasks_done": here // 512,
        "tasks_leased": -(-leased // 512),
    }


def worker(index: int, *, incarnation: int = 1, speed: float = 700.0, **changes: Any) -> dict[str, Any]:
    """One worker in a status."""
    step = {"data": 0.011, "pull": 0.014, "compute": 0.052, "push": 0.009, "wait": 0.004}
    return {
        "index": index,
        "incarnation": incarnation,
        "state": "running",
        "phase": "training",
        "records": 40_000 + 811 * index,
        "samples_per_second": speed,
        "step": step,
        "straggler": False,
        **changes,
    }


async def use_slots(data: Path, used: Mapping[str, int]) -> None:
    """Says for an agent how many slots jobs use."""
    path = data / USED
    known = json.loads(path.read_text()) if path.is_file() else {}
    _replace(path, {**known, **used})


async def use_devices(data: Path, devices: Sequence[DeviceInfo], uses: Sequence[DeviceUse]) -> None:
    """Says for an agent which devices there are, and who holds what of them."""
    _replace(data / DEVICES, devices_to_json(CapacityInfo(0, devices=devices, device_uses=uses)))


def _replace(path: Path, content: object) -> None:
    part = path.with_suffix(".part")
    part.write_text(json.dumps(content))
    part.replace(path)


assert set(_ACTIVE) == {str(state) for state in JobState if state.active}

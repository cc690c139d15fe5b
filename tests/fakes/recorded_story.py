"""One job's story of six hours: its records, events, lives of processes, losses and files fit together."""

from __future__ import annotations

import math
from pathlib import Path
from typing import Any

import asyncpg

from elasticdl_core.task import TaskId, TaskType
from tests.fakes import recorded_series
from tests.fakes.recorded_rows import Clock, insert_rows, job_row, status, use_slots, worker

STORY = "clicks-story1"


async def story(connection: asyncpg.Connection, data: Path) -> None:
    """One job of six hours: scaled 1, 4, 2 and 6, a worker and its master killed, suspended and resumed."""
    clock = Clock.start()
    total, parts = 614_400 * 3, 1200 * 3
    done = 1_228_800
    workers = [worker(index, incarnation=(2, 2, 3, 2, 1, 1)[index], speed=702.5 - 11 * index) for index in range(6)]
    workers[4] |= {
        "samples_per_second": 212.0,
        "straggler": True,
        "step": {"data": 0.21, "pull": 0.015, "compute": 0.055, "push": 0.009, "wait": 0.002},
    }
    row = job_row(
        clock,
        STORY,
        state="RUNNING",
        reason="workers registered",
        priority=5,
        min_workers=1,
        max_workers=6,
        target_workers=6,
        target_reason="it has as many as it can use: 6 of 6 workers",
        target_detail={"code": "at_max", "text": "it has as many as it can use: 6 of 6 workers", "blockers": []},
        created_at=clock.ago(21_900),
        started_at=clock.ago(21_600),
        master_progress=done,
        master_incarnation=3,
        master_lease_incarnation=3,
        master_epoch=3,
        spec={"num_epochs": 3, "num_ps": 2, "validation_data": "/data/clicks/test", "labels": {"team": "ads"}},
        status=status(
            done=done,
            total=total,
            epoch=3,
            epochs=3,
            workers=workers,
            version=19_200,
            loss=_loss(19_200),
            redone=1024,
        ),
    )
    await insert_rows(connection, "jobs", [row])
    await insert_rows(connection, "events", list(_story_events(clock)))
    plan = {"shards": [["part-00000", 0, 614_400]], "records_per_task": 512, "seed": 0, "shuffle": True}
    plan = [{"job_id": STORY, "plan": {**plan, "block": 0, "rounds": 3}}]
    await insert_rows(connection, "job_plans", plan)
    marks = [str(TaskId(TaskType.TRAINING, e, i, i * 512, i * 512 + 512)) for e in range(2) for i in range(1200)]
    assert len(marks) * 512 == done and parts == 3600
    await insert_rows(connection, "done_marks", [{"job_id": STORY, "task": mark} for mark in marks])
    losses = [
        {"job_id": STORY, "model_version": version, "loss": _loss(version), "at": clock.ago(21_500 - version * 1.1)}
        for version in range(10, 19_200, 10)
    ]
    await insert_rows(connection, "losses", losses)
    evaluations = [
        {
            "job_id": STORY,
            "number": n,
            "model_version": 1920 * (n + 1),
            "training_epoch": n // 5,
            "metrics": {"accuracy": round(0.9 - 0.3 * math.exp(-n / 3), 4), "auc": round(0.94 - 0.2 * 0.7**n, 4)},
            "at": clock.ago(21_000 - 2100 * n),
        }
        for n in range(10)
    ]
    await insert_rows(connection, "evaluations", evaluations)
    files = [{"path": f"ps-{i}.bin", "size": 52_428_800, "sha256": "ab" * 32} for i in range(2)]
    checkpoints = [
        {
            "job_id": STORY,
            "version": version,
            "manifest": {"files": files, "version": version, "directory": f"/data/checkpoints/version-{version}"},
            "committed_at": clock.ago(19_300 - version),
        }
        for version in (17_000, 18_000, 19_000)
    ]
    await insert_rows(connection, "checkpoints", checkpoints)
    directory = data / "jobs" / STORY / "artifacts"
    directory.mkdir(parents=True, exist_ok=True)
    (directory / "report.txt").write_text("what the story made\n")
    artifact = {"job_id": STORY, "name": "report.txt", "path": str(directory / "report.txt"), "size": 20}
    await insert_rows(connection, "artifacts", [{**artifact, "sha256": "cd" * 32, "at": clock.ago(120)}])
    await insert_rows(connection, "processes", list(_story_lives(clock)))
    series = recorded_series.story_rows(clock.now.timestamp(), STORY, _loss)
    await insert_rows(connection, "job_series", series)
    await use_slots(data, {STORY: 6})


def _story_lives(clock: Clock) -> Any:
    """Incarnations of the story's processes, and how each ended: drained, killed, stopped with the job."""

    def life(
        role: str,
        index: int,
        number: int,
        began: float,
        ended: float | None,
        cause: str | None,
        *,
        drained: bool = False,
    ) -> dict[str, Any]:
        over = ended is not None
        return {
            "job_id": STORY,
            "role": role,
            "index": index,
            "incarnation": number,
            "launched_at": clock.ago(began),
            "ready_at": clock.ago(began - 4),
            "drained_at": clock.ago(ended + 3) if drained and ended is not None else None,
            "ended_at": clock.ago(ended) if ended is not None else None,
            "exit_code": {"killed": -9}.get(cause or "", 0) if over else None,
            "cause": cause,
            "message": "killed (signal 9)" if cause == "killed" else "",
        }

    yield life("master", 0, 1, 21_599, 9003, "killed")
    yield life("master", 0, 2, 8998, 5988, "stopped")
    yield life("master", 0, 3, 5394, None, None)
    for index in range(2):
        yield life("ps", index, 1, 21_596, 5985, "stopped")
        yield life("ps", index, 2, 5393, None, None)
    yield life("worker", 0, 1, 21_595, 5986, "stopped", drained=True)
    for index in (1, 3):
        yield life("worker", index, 1, 19_998, 14_990 if index == 3 else 5986, "drained", drained=True)
    yield life("worker", 2, 1, 19_998, 12_000, "killed")
    yield life("worker", 2, 2, 11_997, 5986, "stopped", drained=True)
    for index, number in ((0, 2), (1, 2)):
        yield life("worker", index, number, 5392, None, None)
    for index, number in ((2, 3), (3, 2), (4, 1), (5, 1)):
        yield life("worker", index, number, 4988, None, None)


def _loss(version: int) -> float:
    wave = 0.02 * math.sin(version / 130) + 0.015 * math.sin(version / 17)
    return round(0.25 + 0.45 * math.exp(-version / 2500) + wave * math.exp(-version / 9000), 5)


def _story_events(clock: Clock) -> Any:
    def event(ago: float, kind: str, message: str, **detail: Any) -> dict[str, Any]:
        return {"job_id": STORY, "at": clock.ago(ago), "kind": kind, "message": message, "detail": detail}

    def scaled(ago: float, before: int, after: int, code: str, text: str) -> dict[str, Any]:
        words = f"workers {before} -> {after}: {text}"
        return event(ago, "scaled", words, code=code, text=text, blockers=[], **{"from": before, "to": after})

    yield event(21_900, "state", "submitted; waiting for the scheduler", **{"from": None, "to": "QUEUED"})
    yield event(21_600, "state", "1 of 1 workers fit", **{"from": "QUEUED", "to": "STARTING"})
    yield event(21_597, "master", "master 1 took the job", epoch=1, incarnation=1)
    yield event(21_590, "state", "workers registered", **{"from": "STARTING", "to": "RUNNING"})
    yield scaled(20_000, 1, 4, "measuring", "its speed at more workers is not known yet; it grows step by step")
    yield scaled(
        15_000, 4, 2, "cluster_full", "it runs with fewer than it could use; the rest is worth more elsewhere"
    )
    yield event(12_000, "worker_lost", "worker 2 was killed (signal 9)", exit_code=-9, reason="")
    yield event(9000, "master", "master 1 was lost; the next one is launched", incarnation=1)
    yield event(8995, "master", "master 2 took the job", epoch=2, incarnation=2)
    yield event(6000, "request", "suspend was asked for", what="suspend")
    yield event(5990, "state", "suspended as asked", **{"from": "RUNNING", "to": "SUSPENDED"})
    yield event(5400, "state", "resume was asked for", **{"from": "SUSPENDED", "to": "QUEUED"})
    yield event(5395, "state", "2 of 2 workers fit", **{"from": "QUEUED", "to": "STARTING"})
    yield event(5390, "state", "workers registered", **{"from": "STARTING", "to": "RUNNING"})
    yield event(5000, "settings", "max_workers is 6 now", max_workers=6)
    yield scaled(4990, 2, 6, "at_max", "it has as many as it can use: 6 of 6 workers")
    for version in (17_000, 18_000, 19_000):
        yield event(19_300 - version, "checkpoint", f"checkpoint of version {version}", version=version)

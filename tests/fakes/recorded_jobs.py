"""Jobs of a busy cluster: one with many workers, many of all states, and a failure of each class."""

from __future__ import annotations

import random
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import asyncpg

from tests.fakes.recorded_rows import JOB_COLUMNS, OWNERS, Clock, insert_rows, job_row, status, use_slots, worker
from tests.fakes.recorded_story import STORY

MANY_WORKERS = "wide-manyw1"
FAILURES: Mapping[str, tuple[str, str, str]] = {
    "user-code": (
        "worker 1, task t:0:17:8704:9216: ValueError: Shapes (64, 10) and (64, 1) are incompatible",
        "labels are integers: use a sparse loss, or make them one-hot in feed",
        'Traceback (most recent call last):\n  File "/zoo/model.py", line 41, in loss\n    return keras.losses.'
        "categorical_crossentropy(labels, predictions)\nValueError: Shapes (64, 10) and (64, 1) are incompatible\n",
    ),
    "out-of-memory": (
        "task t:0:3:1536:2048 ended 3 workers; the last one, worker 2, was killed for memory (2048 MiB)",
        "raise worker_memory_mib, or make minibatches smaller",
        "",
    ),
    "no-progress": (
        "3 workers made no progress at record 5,120 of part-00003",
        "look at these records, and at the code that reads them; raise progress_timeout_s if they only take long",
        "",
    ),
    "not-a-number": (
        "the loss is NaN at version 812 in records 51,968 to 52,032 of part-00001",
        "lower the learning rate, clean these records, or pass over them with on_nan=skip",
        "",
    ),
    "data": ("cannot read part-00007: its index ends early", "write the file anew, or leave it out", ""),
    "lost-masters": (
        "the master was lost 5 times without progress",
        "look at the master's log: elasticdl jobs logs ID --role master",
        "",
    ),
    "audit": ("task t:0:9:4608:5120 is in the model once more than it should be", "report this with the log", ""),
}
"""Classes of failures: message, fix, traceback."""

_MADE = 400
"""Jobs of many that are made one by one."""
NAMES = ("digits", "clicks", "ranking", "ctr-deepfm", "bert-small", "churn", "fraud", "vision")


async def many_workers(connection: asyncpg.Connection, data: Path, count: int = 1000) -> None:
    """One job with that many workers and 20 parameter servers."""
    clock, chance = Clock.start(), random.Random(7)
    workers = [worker(index, speed=round(chance.gauss(640, 25), 1)) for index in range(count)]
    for index in (17, 404, 803):
        if index < count:
            workers[index] |= {"samples_per_second": 88.0, "straggler": True}
    row = job_row(
        clock,
        MANY_WORKERS,
        state="RUNNING",
        reason="workers registered",
        min_workers=min(100, count),
        max_workers=count,
        target_workers=count,
        target_reason=f"it has as many as it can use: {count:,} of {count:,} workers",
        target_detail={"code": "at_max", "text": "it has as many as it can use", "blockers": []},
        created_at=clock.ago(7300),
        started_at=clock.ago(7200),
        owner="grace",
        spec={"num_epochs": 10, "num_ps": 20},
        priority=3,
        status=status(
            done=4_608_000_000,
            total=10_000_000_000,
            epoch=5,
            epochs=10,
            workers=workers,
            servers=20,
            version=72_000,
            loss=0.1423,
        ),
    )
    await insert_rows(connection, "jobs", [row])
    await use_slots(data, {MANY_WORKERS: count})


async def many_jobs(connection: asyncpg.Connection, data: Path, count: int = 10_000) -> None:
    """That many jobs of several weeks in all states, most of them over: the later ones are like earlier ones."""
    clock, chance = Clock.start(), random.Random(11)
    made = min(count, _MADE)
    rows = [_one_of_many(clock, chance, number, count) for number in range(made)]
    await insert_rows(connection, "jobs", rows)
    others = [name for name in JOB_COLUMNS if name not in ("id", "created_at", "started_at", "finished_at")]
    moved = [f"{name} - (lap.n * interval '9 hours')" for name in ("created_at", "started_at", "finished_at")]
    over = [row["id"] for row in rows if row["finished_at"] is not None]
    laps = -(-(count - made) // max(len(over), 1))
    async with connection.transaction():
        await connection.execute("SET LOCAL session_replication_role = replica")
        await connection.execute(
            f"INSERT INTO jobs (id, created_at, started_at, finished_at, {', '.join(others)}) "
            f"SELECT id || 'x' || lap.n, {', '.join(moved)}, {', '.join(others)} "
            "FROM jobs CROSS JOIN generate_series(1, $1::int) AS lap (n) WHERE id = ANY ($2::text[]) LIMIT $3::int",
            *(laps, over, count - made),
        )
    await use_slots(data, {row["id"]: row["target_workers"] for row in rows if row["target_workers"]})


def _one_of_many(clock: Clock, chance: random.Random, number: int, count: int) -> dict[str, Any]:
    name, owner = chance.choice(NAMES), chance.choice(OWNERS)
    job_id = f"{name}-{number:06d}"
    age = 600 + number * 180.0
    if number < min(60, count // 4):
        state = "RUNNING"
    elif number < min(160, count // 2):
        state = "QUEUED"
    elif number < min(190, count // 2):
        state = "SUSPENDED"
    else:
        state = chance.choices(("SUCCEEDED", "FAILED", "CANCELLED", "SUCCEEDED_WITH_SKIPS"), (80, 9, 8, 3))[0]
    total = chance.randrange(50, 900) * 10_000
    width = chance.choice((1, 2, 4, 8))
    changes: dict[str, Any] = {
        "state": state,
        "owner": owner,
        "priority": chance.choice((0, 0, 0, 1, 5, -1)),
        "max_workers": width,
        "created_at": clock.ago(age),
        "updated_at": clock.ago(max(age - 900, 1)),
        "spec": {"num_epochs": 2, "labels": {"team": "ads" if number % 3 else "search"}},
    }
    if state == "QUEUED":
        text = f"its minimum of 1 worker does not fit: 0 of {width} slots are free"
        return job_row(
            clock,
            job_id,
            reason="submitted; waiting for the scheduler",
            target_reason=text,
            target_detail={"code": "waiting_for_capacity", "text": text, "blockers": [STORY]},
            **changes,
        )
    workers = [worker(index, speed=round(chance.uniform(200, 900), 1)) for index in range(width)]
    running = state == "RUNNING"
    done = total if state.startswith("SUCCEEDED") else int(total * chance.uniform(0.1, 0.9))
    changes |= {"started_at": clock.ago(age - 60), "reason": "workers registered"}
    changes["status"] = status(
        done=done,
        total=total,
        epoch=1 if done < total // 2 else 2,
        epochs=2,
        servers=1,
        workers=workers if running else [],
        version=done // 64,
        loss=round(chance.uniform(0.1, 0.7), 4),
    )
    if running:
        changes |= {"target_workers": width, "target_reason": "it has as many as it can use"}
        changes["target_detail"] = {"code": "at_max", "text": "it has as many as it can use", "blockers": []}
    elif state != "SUSPENDED":
        changes |= {"finished_at": clock.ago(max(age - 900, 1)), "reason": f"it {state.lower().replace('_', ' ')}"}
    if state == "FAILED":
        message, fix, traceback = chance.choice(list(FAILURES.values()))
        changes |= {"error": {"message": message, "fix": fix, "traceback": traceback}, "reason": message}
    return job_row(clock, job_id, **changes)


async def failures(connection: asyncpg.Connection, _: Path) -> None:
    """A job of each class of failures, and what is no success without being one: cancelled, skipped records."""
    clock = Clock.start()
    rows = []
    for number, (kind, (message, fix, traceback)) in enumerate(FAILURES.items()):
        rows.append(
            job_row(
                clock,
                failed_id(kind),
                state="FAILED",
                reason=message,
                owner="linus",
                max_workers=4,
                error={"message": message, "fix": fix, "traceback": traceback},
                started_at=clock.ago(3000),
                finished_at=clock.ago(600 + number),
                status=status(done=51_200, total=614_400, epoch=1, epochs=1, workers=[], version=800, loss=0.7),
            )
        )
    skipped = [{"where": "part-00001", "start": 51_968, "end": 52_032, "reason": "the loss is NaN", "records": 64}]
    audit = {
        "state": "passed",
        "reason": "",
        "planned": 614_400,
        "committed": 614_336,
        "skipped": 64,
        "duplicates": 0,
    }
    skips = status(
        done=614_400,
        total=614_400,
        epoch=1,
        epochs=1,
        workers=[],
        version=9600,
        skipped=skipped,
        loss=0.21,
        audit=audit,
    )
    skips["ledger"]["skipped"] = {"0": 64}
    rows.append(
        job_row(
            clock,
            "failed-skips1",
            state="SUCCEEDED_WITH_SKIPS",
            reason="done; 64 records were passed over",
            owner="linus",
            started_at=clock.ago(3000),
            finished_at=clock.ago(500),
            spec={"on_nan": "skip"},
            status=skips,
        )
    )
    await insert_rows(connection, "jobs", rows)


def failed_id(kind: str) -> str:
    """The id of the job that failed so."""
    return f"failed-{kind.replace('-', '')[:8]}"

"""The scheduler's pass through Postgres: 10,000 jobs that all moved on, and 5,000 changes at once.

./dev bench scheduler_pass [--quick] [--jobs 10000] [--passes 20]
"""

from __future__ import annotations

import asyncio
import contextlib
import json
import random
import tempfile
import time
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import asyncpg

from benchmarks.doors import started_postgres
from benchmarks.harness import Report, parse
from elasticdl_api.store.migrate import migrate
from elasticdl_core.ports.launcher import CapacityInfo
from elasticdl_core.scheduling.policies import GoodputPolicy
from elasticdl_core.scheduling.simulator.report import percentile
from elasticdl_runtime.database.engine import Database
from elasticdl_scheduler.leadership import Leadership
from elasticdl_scheduler.loop import Scheduler
from elasticdl_scheduler.store import SchedulerStore

ABOUT = """\
{jobs:,} jobs of twenty namespaces and fifty kinds in an embedded Postgres that syncs its commits, on the same
machine, and the scheduler's own code from the question for the snapshot to the plan in force. The first pass finds
all of them queued and admits as many as there are slots for, {slots:,} at one worker each. Before each later pass the
progress and the speed of every running job move; then one job ends and its slot is given on. Wall time, and processor
time of the scheduler alone, without Postgres."""
GOAL_MS = 250.0
GOAL_CHANGES_S = 2.0


class Slots:
    """A launcher of which only the capacity is asked: each job has the workers that it was given."""

    def __init__(self, slots: int) -> None:
        self.slots = slots
        self.used: dict[str, int] = {}

    async def capacity(self) -> CapacityInfo:
        return CapacityInfo(self.slots, dict(self.used))


@contextlib.asynccontextmanager
async def postgres() -> AsyncIterator[str]:
    """An embedded Postgres with the schema."""
    with tempfile.TemporaryDirectory(prefix="edl-bench-", dir="/tmp") as name, contextlib.ExitStack() as stack:
        folder = Path(name)
        folder.chmod(0o755)
        server = await started_postgres(folder, stack)
        database = Database(server.url)
        try:
            await migrate(database)
        finally:
            await database.close()
        yield server.url


async def submit(sql: Any, jobs: int) -> None:
    rng = random.Random(1)
    rows = []
    for number in range(jobs):
        kind = rng.randrange(50)
        spec = {"model_def": f"m{kind}.forward", "minibatch_size": 64, "num_epochs": 1}
        rows.append((f"job-{number:05d}", f"team-{number % 20}", json.dumps(spec), f"kind-{kind}", f"data-{kind}"))
    await sql.executemany(
        "INSERT INTO jobs (id, namespace, name, type, spec, kind, data_key, max_workers) "
        "VALUES ($1, $2, 'job', 'training', $3, $4, $5, 4)",
        rows,
    )


def status(rng: random.Random, done: int) -> Mapping[str, Any]:
    """A status as the master of a job with one worker tells it."""
    worker = {"id": 0, "state": "running", "host": "127.0.0.1", "samples_per_second": 100.0, "tasks": done // 1000}
    return {
        "progress": {"records_done": done, "records_total": 1_000_000, "epoch": 0, "epochs": 1},
        "throughput": {"1": round(rng.uniform(90, 110), 3)},
        "samples_per_second": 100.0,
        "rescale_cost_s": 12.5,
        "worker_seconds": done / 100.0,
        "workers": [worker],
        "loss": rng.random(),
        "metrics": {"accuracy": rng.random(), "auc": rng.random()},
    }


async def measure(jobs: int, passes: int) -> tuple[float, list[tuple[float, float]], float]:
    """Seconds of the pass that admits half of the jobs; wall and processor seconds of later ones; MB of the log."""
    rng = random.Random(2)
    async with postgres() as url:
        database, sql = Database(url), await asyncpg.connect(url)
        try:
            await submit(sql, jobs)
            slots = Slots(jobs // 2)
            leadership = Leadership(database, 3600.0)
            store = SchedulerStore(database, leadership, {})
            launcher: Any = slots
            scheduler = Scheduler(database, leadership, store, launcher, GoodputPolicy().incremental(), 5.0)
            await leadership.attempt()
            began = time.perf_counter()
            await scheduler.decide_once()
            first = time.perf_counter() - began
            running_jobs = [row["id"] for row in await sql.fetch("SELECT id FROM jobs WHERE state = 'STARTING'")]
            await sql.execute("UPDATE jobs SET state = 'RUNNING' WHERE state = 'STARTING'")
            slots.used = dict.fromkeys(running_jobs, 1)
            times = []
            for number in range(passes):
                rows = [(job_id, json.dumps(status(rng, 1000 * (number + 1)))) for job_id in slots.used]
                await sql.executemany("UPDATE jobs SET status = $2 WHERE id = $1", rows)
                ended = rng.choice(sorted(slots.used))
                await sql.execute("UPDATE jobs SET state = 'SUCCEEDED' WHERE id = $1", ended)
                del slots.used[ended]
                began, busy = time.perf_counter(), time.process_time()
                await scheduler.decide_once()
                times.append((time.perf_counter() - began, time.process_time() - busy))
                for row in await sql.fetch("SELECT id, target_workers FROM jobs WHERE state = 'STARTING'"):
                    slots.used[row["id"]] = row["target_workers"]
                await sql.execute("UPDATE jobs SET state = 'RUNNING' WHERE state = 'STARTING'")
            size = await sql.fetchval("SELECT sum(pg_column_size(plans.*)) FROM plans")
            return first, times, float(size) / 1e6 / await sql.fetchval("SELECT count(*) FROM plans")
        finally:
            await sql.close()
            await database.close()


def main() -> None:
    options = parse(__doc__, jobs=10_000, passes=20)
    jobs, passes = (1_000, 3) if options.quick else (options.jobs, options.passes)
    about = ABOUT.format(jobs=jobs, slots=jobs // 2)
    report = Report("scheduler-pass", "The scheduler's pass through Postgres", about, "./dev bench scheduler_pass")
    first, times, size = asyncio.run(measure(jobs, passes))
    wall, busy = ([1000 * row[i] for row in times] for i in (0, 1))
    rows = [
        (name, percentile(values, 0.5), percentile(values, 0.99))
        for name, values in (("wall", wall), ("processor", busy))
    ]
    report.table(["time", "p50, ms", "p99, ms"], rows)
    report.table(["MB of a decision in the log"], [(size,)])
    report.target("pass_10k_p99_ms", rows[0][2], GOAL_MS, at_least=False)
    report.target("changes_5k_s", first, GOAL_CHANGES_S, at_least=False)
    report.write()


if __name__ == "__main__":
    main()

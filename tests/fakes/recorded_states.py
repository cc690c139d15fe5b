"""States of a cluster as they lie in the database after hours of work: one job's story, many workers, many jobs.

Each function writes what the scheduler, masters and the api would have written. Numbers fit together: what the
story's ledger, status, events and lives of processes tell is one story; it ends now, so that ages look right.
"""

from __future__ import annotations

from pathlib import Path
from typing import Any

import asyncpg

from tests.fakes import recorded_series
from tests.fakes.recorded_administration import administration, scheduler_pass
from tests.fakes.recorded_jobs import failures, many_jobs, many_workers
from tests.fakes.recorded_rows import Clock, insert_rows, job_row
from tests.fakes.recorded_story import STORY, story


async def everything(connection: asyncpg.Connection, data: Path) -> None:
    """All of it: the story, 1,000 workers, 10,000 jobs, failures, a scheduler's last pass, namespaces and tokens."""
    await story(connection, data)
    await many_workers(connection, data)
    await failures(connection, data)
    await many_jobs(connection, data)
    await scheduler_pass(connection)
    await administration(connection)
    history = recorded_series.cluster_rows(Clock.start().now.timestamp(), 1300, STORY)
    await insert_rows(connection, "cluster_series", history)


async def nothing(_: asyncpg.Connection, __: Path) -> None:
    """A cluster that is new."""


async def add_job(connection: asyncpg.Connection, job_id: str, **changes: Any) -> None:
    """One more job in any state; see ``job_row``."""
    await insert_rows(connection, "jobs", [job_row(Clock.start(), job_id, **changes)])
    await connection.execute("SELECT pg_notify('elasticdl_jobs', $1)", job_id)

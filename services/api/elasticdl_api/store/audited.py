"""Durable records of a job's progress: its plan and its done-marks."""

from __future__ import annotations

from typing import Any

from sqlalchemy import select

from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database


async def read_plan(database: Database, job_id: str) -> dict[str, Any] | None:
    """The plan that a job's master made durable; None if it has none yet."""
    async with database.reading() as connection:
        query = select(t.job_plans.c.plan).where(t.job_plans.c.job_id == job_id)
        plan: dict[str, Any] | None = (await connection.execute(query)).scalar_one_or_none()
        return plan


async def read_done_marks(database: Database, job_id: str) -> dict[str, dict[str, Any] | None]:
    """The tasks of a job that are marked as done, each with its account if it has one."""
    async with database.reading() as connection:
        query = select(t.done_marks.c.task, t.done_marks.c.account).where(t.done_marks.c.job_id == job_id)
        return {row.task: row.account for row in await connection.execute(query)}

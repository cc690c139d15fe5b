"""Jobs as monitoring sees them: those that live, those that ended of late, and which of their processes were lost."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from sqlalchemy import Integer, Select, Text, any_, bindparam, cast, func, literal, select, text
from sqlalchemy.dialects.postgresql import ARRAY

from elasticdl_api.store.job_views import seen_by
from elasticdl_core.job import JobState
from elasticdl_core.job.life import LIVE_STATES, TERMINAL_STATES
from elasticdl_core.process_life import EndCause
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.database.queries import Query

MOST_LIVING, MOST_ENDED = 1000, 200
ENDED = "interval '1 hour'"
"""For how long after its end a job is shown."""
LOSSES = (EndCause.CRASHED, EndCause.KILLED, EndCause.OUT_OF_MEMORY, EndCause.LOST)
"""Why a process ended whose work had to be done again by another."""

_LIVE, _OVER = ([str(state) for state in sorted(states)] for states in (LIVE_STATES, TERMINAL_STATES))


@dataclass(frozen=True)
class ScrapedJob:
    """A job.

    Attributes:
        id: its id.
        namespace: its namespace.
        state: its state.
        ended_at: when it ended, in seconds since 1970; None while it lives.
        limits: by role, how much memory a process may have, in MiB; 0 for no limit.
        audit: how the audit at its end went; empty where there was none.
    """

    id: str
    namespace: str
    state: JobState
    ended_at: float | None
    limits: dict[str, int]
    audit: str


@dataclass(frozen=True)
class LostProcesses:
    """The number of a job's processes that were lost, of one role for one cause."""

    job_id: str
    role: str
    cause: str
    count: int


def _jobs(most: int) -> Select[Any]:
    jobs = t.jobs.c
    return (
        select(
            jobs.id,
            jobs.namespace,
            jobs.state,
            func.extract("epoch", jobs.finished_at).label("ended_at"),
            func.coalesce(cast(jobs.spec["ps_memory_mib"].astext, Integer), 0).label("ps"),
            func.coalesce(cast(jobs.spec["worker_memory_mib"].astext, Integer), 0).label("worker"),
            func.coalesce(jobs.status["audit"]["state"].astext, "").label("audit"),
        )
        .where(seen_by("namespace"), t.jobs.c.state == any_(bindparam("states", type_=ARRAY(Text))))
        .limit(most)
    )


_LIVING = Query(
    # Those that wait come last: there may be very many of them.
    _jobs(MOST_LIVING).order_by(t.jobs.c.state == literal(str(JobState.QUEUED)), t.jobs.c.created_at)
)
_ENDED = Query(
    _jobs(MOST_ENDED).where(t.jobs.c.finished_at > func.now() - text(ENDED)).order_by(t.jobs.c.finished_at.desc())
)
_LOST = Query(
    select(t.processes.c.job_id, t.processes.c.role, t.processes.c.cause, func.count().label("number"))
    .where(
        t.processes.c.job_id == any_(bindparam("jobs", type_=ARRAY(Text))),
        t.processes.c.cause == any_(bindparam("causes", type_=ARRAY(Text))),
    )
    .group_by(t.processes.c.job_id, t.processes.c.role, t.processes.c.cause)
)
_OLDEST = Query(
    select(func.extract("epoch", func.now() - func.min(t.jobs.c.created_at)).label("age_s")).where(
        seen_by("namespace"), t.jobs.c.state == str(JobState.QUEUED)
    )
)


class ScrapedJobs:
    """Reads them. Every method may raise UnavailableError; ``namespace`` None sees all namespaces."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def read(self, namespace: str | None) -> list[ScrapedJob]:
        """Jobs that live, those that do something first, and those that ended within the last hour."""
        living = await self._database.fetch(_LIVING, namespace=namespace, states=_LIVE)
        ended = await self._database.fetch(_ENDED, namespace=namespace, states=_OVER)
        return [
            ScrapedJob(
                row["id"],
                row["namespace"],
                JobState(row["state"]),
                None if row["ended_at"] is None else float(row["ended_at"]),
                {"ps": row["ps"], "worker": row["worker"]},
                row["audit"],
            )
            for row in (*living, *ended)
        ]

    async def count_lost(self, job_ids: Sequence[str]) -> list[LostProcesses]:
        """The numbers of these jobs' processes that were lost."""
        rows = await self._database.fetch(_LOST, jobs=list(job_ids), causes=[str(one) for one in LOSSES])
        return [LostProcesses(row["job_id"], row["role"], row["cause"], row["number"]) for row in rows]

    async def oldest_queued_s(self, namespace: str | None) -> float:
        """For how long the job waits that has waited longest; 0 where none waits."""
        (row,) = await self._database.fetch(_OLDEST, namespace=namespace)
        return 0.0 if row["age_s"] is None else max(float(row["age_s"]), 0.0)

"""Launch intents: what shall be launched, written in the transaction that decided it, delivered at least once."""

from __future__ import annotations

from collections.abc import AsyncIterator, Collection, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

from sqlalchemy import case, func, select, text, type_coerce, update
from sqlalchemy.dialects.postgresql import JSONB
from sqlalchemy.ext.asyncio import AsyncConnection

from elasticdl_api.store.processes import MasterEnding, end_master, launch_master
from elasticdl_api.store.records import JobRecord
from elasticdl_core.job.life import ACTIVE_STATES, JobState
from elasticdl_core.ports.launcher import ProcessId, Role
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.database.transitions import add_event, add_launch_intent, in_seconds, transition

_FORGIVEN = text("now() - interval '10 minutes'")
"""A master that lived that long is forgiven its predecessors, even if the job got no further meanwhile."""


@dataclass(frozen=True, slots=True)
class WatchedJob:
    """An active job with what is known of its master.

    Attributes:
        job: the job.
        lease_alive: whether a master's lease lives.
        lease_incarnation: incarnation of the last master that leased.
        delivered: whether the newest launch intent was delivered.
        outcome: how the delivery went; empty if it went well.
        recent_failures: masters lost in a row, none longer than ten minutes before the next, without the job getting
            further than ever before meanwhile.
    """

    job: JobRecord
    lease_alive: bool
    lease_incarnation: int
    delivered: bool
    outcome: str
    recent_failures: int


class Delivery:
    """An intent in the hands of a relay, locked against all others until the block ends."""

    def __init__(
        self,
        connection: AsyncConnection,
        process: ProcessId,
        wanted: bool,
        namespace: str,
        spec: Mapping[str, Any],
    ) -> None:
        self.process = process
        self.wanted = wanted
        self.namespace = namespace
        self.spec = spec
        self._connection = connection

    async def settle(self, outcome: str) -> None:
        """Marks the intent as delivered, or as never to be delivered."""
        query = update(t.launch_intents).where(t.launch_intents.c.id == str(self.process))
        await self._connection.execute(query.values(delivered_at=func.now(), outcome=outcome))
        if not outcome:
            await launch_master(self._connection, self.process.job_id, self.process.incarnation)

    async def postpone(self, seconds: float) -> None:
        """Leaves the intent for later."""
        query = update(t.launch_intents).where(t.launch_intents.c.id == str(self.process))
        await self._connection.execute(query.values(deliver_after=in_seconds(seconds)))


class IntentStore:
    """Launch intents and what the background tasks need to know of masters. Methods may raise UnavailableError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    @asynccontextmanager
    async def take_next(self, besides: Collection[str] = ()) -> AsyncIterator[Delivery | None]:
        """The oldest intent that is due and that no other replica is delivering; None if there is none.

        Args:
            besides: ids of intents that are left alone.
        """
        intents = t.launch_intents
        query = (
            select(intents, t.jobs.c.state, t.jobs.c.master_incarnation, t.jobs.c.namespace, t.jobs.c.spec)
            .join(t.jobs, t.jobs.c.id == intents.c.job_id)
            .where(
                intents.c.delivered_at.is_(None),
                intents.c.deliver_after <= func.now(),
                intents.c.id.not_in(sorted(besides)),
            )
            .order_by(intents.c.deliver_after)
            .limit(1)
            .with_for_update(skip_locked=True, of=intents)
        )
        async with self._database.transaction() as connection:
            row = (await connection.execute(query)).mappings().one_or_none()
            if row is None:
                yield None
                return
            process = ProcessId(row["job_id"], Role(row["role"]), row["index"], row["incarnation"])
            wanted = JobState(row["state"]).admitted and row["incarnation"] == row["master_incarnation"]
            yield Delivery(connection, process, wanted, row["namespace"], row["spec"])

    async def list_watched(self) -> list[WatchedJob]:
        """All active jobs."""
        intents = t.launch_intents
        query = (
            select(
                t.jobs,
                func.coalesce(t.jobs.c.master_lease_expires_at > func.now(), False).label("alive"),
                case((t.jobs.c.master_failed_at > _FORGIVEN, t.jobs.c.master_failures), else_=0).label("recent"),
                intents.c.delivered_at,
                intents.c.outcome,
            )
            .outerjoin(
                intents,
                (intents.c.job_id == t.jobs.c.id) & (intents.c.incarnation == t.jobs.c.master_incarnation),
            )
            .where(t.in_states(ACTIVE_STATES))
            .order_by(t.jobs.c.id)
        )
        async with self._database.transaction() as connection:
            return [
                WatchedJob(
                    job=JobRecord.of(row),
                    lease_alive=row["alive"],
                    lease_incarnation=row["master_lease_incarnation"],
                    delivered=row["delivered_at"] is not None,
                    outcome=row["outcome"] or "",
                    recent_failures=row["recent"],
                )
                for row in (await connection.execute(query)).mappings()
            ]

    async def replace_master(
        self,
        seen: JobRecord,
        *,
        reason: str,
        delay_s: float,
        failures: int,
        ending: MasterEnding,
    ) -> bool:
        """Writes the intent for a new incarnation, unless the job has moved on since it was seen.

        Args:
            seen: the job as it was seen.
            reason: why the master is replaced.
            ending: how it ended.
            delay_s: seconds until the launch is due.
            failures: the new number of failures in a row.
        """
        incarnation = seen.master_incarnation + 1
        async with self._database.transaction() as connection:
            changed = await connection.execute(
                update(t.jobs)
                .where(*_unchanged(seen))
                .values(master_incarnation=incarnation, master_failures=failures, master_failed_at=func.now())
            )
            if not changed.rowcount:
                return False
            await end_master(connection, seen.id, seen.master_incarnation, ending)
            await add_launch_intent(connection, seen.id, incarnation, delay_s=delay_s)
            detail = {"incarnation": incarnation, "delay_s": delay_s, "failures": failures}
            await add_event(connection, seen.id, "master", reason, detail)
            return True

    async def tell_trouble(self, seen: JobRecord, trouble: str) -> None:
        """Says in the status of a job that has no master what is in the way, unless it has moved on since."""
        told = type_coerce({"degraded": trouble}, JSONB)
        async with self._database.transaction() as connection:
            await connection.execute(
                update(t.jobs).where(*_unchanged(seen)).values(status=t.jobs.c.status.concat(told))
            )

    async def conclude(
        self,
        seen: JobRecord,
        to: JobState,
        reason: str,
        detail: dict[str, Any] | None = None,
        ending: MasterEnding | None = None,
    ) -> bool:
        """Changes the state of a job, unless it has moved on since it was seen. Fences its master off.

        Args:
            seen: the job as it was seen.
            to: the new state.
            reason: why.
            detail: goes into the event.
            ending: how its master ended.
        """
        async with self._database.transaction() as connection:
            changed = await connection.execute(
                update(t.jobs).where(*_unchanged(seen)).values(master_epoch=t.jobs.c.master_epoch + 1)
            )
            if not changed.rowcount:
                return False
            if ending is not None:
                await end_master(connection, seen.id, seen.master_incarnation, ending)
            return await transition(connection, seen.id, seen.state, to, reason, detail)

    async def read_states(self, job_ids: list[str]) -> dict[str, tuple[JobState, float]]:
        """State and seconds since the last change of the row, of those jobs that exist."""
        query = select(
            t.jobs.c.id,
            t.jobs.c.state,
            func.extract("epoch", func.now() - func.coalesce(t.jobs.c.finished_at, t.jobs.c.updated_at)),
        ).where(t.jobs.c.id == t.any_of(job_ids))
        async with self._database.transaction() as connection:
            return {job_id: (JobState(state), float(age)) for job_id, state, age in await connection.execute(query)}


def _unchanged(seen: JobRecord) -> tuple[Any, ...]:
    return (
        t.jobs.c.id == seen.id,
        t.jobs.c.state == seen.state,
        t.jobs.c.master_incarnation == seen.master_incarnation,
        t.jobs.c.master_epoch == seen.master_epoch,
    )

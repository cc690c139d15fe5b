"""Jobs as their users see them: submit, find, change, ask to stop, delete."""

from __future__ import annotations

import json
import re
import secrets
from collections.abc import Mapping, Sequence
from pathlib import PurePath
from typing import Any

from sqlalchemy import Select, Text, and_, cast, delete, func, insert, select, update
from sqlalchemy.dialects.postgresql import insert as upsert
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from elasticdl_api.store import audit
from elasticdl_api.store.checkpoint_users import users_of_job
from elasticdl_api.store.job_views import missing_job, seen_by
from elasticdl_api.store.records import JobRecord
from elasticdl_api.store.scheduling import is_led
from elasticdl_api.store.statements import keep_statement
from elasticdl_api.store.visibility import visible_jobs
from elasticdl_api.web.auth import Identity
from elasticdl_api.web.problems import IdempotencyError, PreconditionFailedError
from elasticdl_core.errors import ConflictError
from elasticdl_core.job import JobRequest, JobSpec, JobState
from elasticdl_core.job.life import Desired, outcome_of
from elasticdl_core.job.updates import words_of_spare
from elasticdl_core.path_policy import DATA_FIELDS
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.database.queries import Query
from elasticdl_runtime.database.transitions import add_event, event_row, transition
from elasticdl_runtime.scheduling import data_key, kind_of, most_computing

_TAG = re.compile(r'"([0-9]{1,19})(?:-[-a-z0-9]*)?"')
"""The entity tag of a job: its revision, and what else tells one answer from another."""
_ALPHABET = "abcdefghijklmnopqrstuvwxyz234567"


_COUNT_BY_STATE = Query(
    select(t.jobs.c.state, func.count().label("number")).where(seen_by("namespace")).group_by(t.jobs.c.state)
)


def _at_a_glance() -> Select[Any]:
    states = select(t.jobs.c.state, func.count().label("number")).where(seen_by("namespace")).group_by(t.jobs.c.state)
    each = states.subquery("states")
    counts = select(cast(func.json_object_agg(each.c.state, each.c.number), Text)).scalar_subquery()
    return select(counts.label("counts"), is_led().label("led"))


_AT_A_GLANCE = Query(_at_a_glance())


class JobStore:
    """Jobs in Postgres, for the public routes.

    Every method may raise UnavailableError. ``namespace`` None sees all namespaces; an object of another
    namespace does not exist, and reasons and events name no job of another namespace.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def find_submitted(self, namespace: str, key: str, body_hash: str) -> JobRecord | None:
        """The job that was submitted under an idempotency key, if any.

        Raises:
            IdempotencyError: the key was used with another body, or for a job that was deleted.
        """
        async with self._database.transaction() as connection:
            return await _submitted(connection, namespace, key, body_hash)

    async def create(
        self,
        user: Identity,
        spec: JobSpec,
        *,
        key: str | None,
        body_hash: str,
        told: Sequence[str] = (),
        job_id: str = "",
        statement: Mapping[str, Any] | None = None,
    ) -> tuple[JobRecord, bool]:
        """Submits a job of that user: its row, its events and its idempotency key in one transaction.

        Args:
            user: whose job it is.
            spec: the job.
            key: that names the request.
            body_hash: of the request.
            told: what its owner is to know of its updates.
            job_id: as ``draw_id`` gave it; drawn here if empty.
            statement: what it came from, kept with it.

        Returns:
            The job, and whether this call made it.

        Raises:
            IdempotencyError: the key was used with another body.
        """
        for _ in range(8):
            try:
                async with self._database.transaction() as connection:
                    if key is not None:
                        known = await _submitted(connection, user.home, key, body_hash)
                        if known is not None:
                            return known, False
                    job = await _insert_job(connection, user, spec, job_id or draw_id(spec.name), statement)
                    for words in told:
                        await add_event(connection, job.id, "updates", words, {})
                    if key is not None:
                        await connection.execute(
                            insert(t.idempotency_keys).values(
                                namespace=user.home, key=key, body_hash=body_hash, job_id=job.id
                            )
                        )
                    return job, True
            except IntegrityError:
                continue  # somebody took the id or the key in this moment: look again
        raise ConflictError("another request with the same Idempotency-Key is being handled", fix="try again")

    async def get(self, job_id: str, *, namespace: str | None) -> JobRecord:
        """One job.

        Raises:
            NotFoundError: there is none.
        """
        async with self._database.reading() as connection:
            return await _get(connection, job_id, namespace)

    async def list_some(self, job_ids: Sequence[str], *, namespace: str) -> list[JobRecord]:
        """The jobs among some ids that a namespace has."""
        query = select(t.jobs).where(t.jobs.c.id == t.any_of(job_ids), t.jobs.c.namespace == namespace)
        async with self._database.reading() as connection:
            return await visible_jobs(connection, (await connection.execute(query)).mappings().all(), namespace)

    async def change_settings(
        self, job_id: str, *, user: Identity, changes: Mapping[str, Any], if_match: str | None
    ) -> None:
        """Changes priority, the bounds of the number of workers, or labels.

        Args:
            job_id: the job.
            user: who changes it.
            changes: new values of ``priority``, ``min_workers``, ``max_workers``; ``labels`` are merged into those
                that there are, and null removes one.
            if_match: entity tag that the job must still have; None for any.

        Raises:
            NotFoundError: there is no such job.
            PreconditionFailedError: it changed since.
            ConflictError: it is over; labels can be changed even then.
            SpecError: the values do not fit together.
        """
        async with self._database.transaction() as connection:
            job = await _get(connection, job_id, user.namespace, lock=True)
            _require_match(job, if_match)
            wanted = dict(changes)
            if "labels" in wanted:
                wanted["labels"] = _merged(job.spec.get("labels", {}), wanted["labels"])
            spec = JobSpec.from_mapping({**job.spec, **wanted})
            changed = {name: value for name, value in wanted.items() if job.spec.get(name) != value}
            if not changed:
                return
            if job.terminal and changed.keys() != {"labels"}:
                raise ConflictError(f"job {job_id} is over ({job.state})", fix="submit a new job")
            columns = {name: value for name, value in changed.items() if name in t.jobs.c}
            change = update(t.jobs).where(t.jobs.c.id == job_id).values(spec=spec.to_mapping(), **columns)
            message = ", ".join(f"{name} is {value} now" for name, value in changed.items())
            parts = most_computing(str(spec.microbatches), job.status) if "max_workers" in changed else 0
            message = "; ".join(filter(None, (message, words_of_spare(spec.max_workers, parts))))
            event = event_row(job_id, "settings", message, changed)
            entry = audit.entry(user, "job.change", job_id, changed, namespace=job.namespace)
            # One statement: each is a way to Postgres and back, with the job locked.
            await connection.execute(
                entry.add_cte(
                    change.returning(t.jobs.c.id).cte("change"), event.returning(t.events.c.id).cte("event")
                )
            )

    async def request(self, job_id: str, what: JobRequest, *, user: Identity, if_match: str | None = None) -> None:
        """Asks a job to cancel, suspend or resume; asking twice is asking once.

        Raises:
            NotFoundError: there is no such job.
            PreconditionFailedError: it changed since.
            ConflictError: its state does not allow that.
        """
        async with self._database.transaction() as connection:
            job = await _get(connection, job_id, user.namespace, lock=True)
            _require_match(job, if_match)
            outcome = outcome_of(what, job.state)
            if outcome is None:
                raise ConflictError(
                    f"job {job_id} is {job.state}: it cannot be asked to {what}",
                    fix="look at its state: `elasticdl jobs get ID`, or GET /jobs/{id}"
                    if not job.terminal
                    else "submit a new job",
                )
            if outcome.to is not None:
                await transition(connection, job_id, job.state, outcome.to, f"{what} was asked for")
            elif outcome.desired is not None and outcome.desired is not job.desired:
                await _ask_master(connection, job, what, outcome.desired)
            else:
                return
            await audit.record(connection, user, f"job.{what}", job_id, namespace=job.namespace)

    async def delete(self, job_id: str, *, user: Identity, if_match: str | None = None) -> None:
        """Removes a job that is over, with all its rows.

        Raises:
            NotFoundError: there is no such job.
            PreconditionFailedError: it changed since.
            ConflictError: it is not over, or another job that is not over begins with what it saved.
        """
        async with self._database.transaction() as connection:
            job = await _get(connection, job_id, user.namespace, lock=True)
            _require_match(job, if_match)
            if not job.terminal:
                raise ConflictError(f"job {job_id} is {job.state}", fix="cancel it first, and wait until it is over")
            user_of_it = (await connection.execute(users_of_job(job_id).limit(1))).first()
            if user_of_it is not None:
                other = (
                    f"job {user_of_it.id}" if user_of_it.namespace == job.namespace else "a job of another namespace"
                )
                raise ConflictError(
                    f"{other} begins with a checkpoint of job {job_id}",
                    fix="delete it when that job is over, or cancel that one first",
                )
            await connection.execute(delete(t.jobs).where(t.jobs.c.id == job_id))
            detail = {"state": job.state, "owner": job.owner}
            await audit.record(connection, user, "job.delete", job_id, detail, namespace=job.namespace)
            await connection.execute(select(func.pg_notify(t.CHANNEL, job_id)))

    async def count_by_state(self, namespace: str | None) -> dict[JobState, int]:
        """The number of jobs in each state."""
        rows = await self._database.fetch(_COUNT_BY_STATE, namespace=namespace)
        return {JobState(row["state"]): row["number"] for row in rows}

    async def look_at_all(self, namespace: str | None) -> tuple[dict[JobState, int], bool]:
        """The number of jobs in each state, and whether any scheduler leads."""
        ((counts, led),) = await self._database.fetch(_AT_A_GLANCE, namespace=namespace)
        return {JobState(state): number for state, number in json.loads(counts or "{}").items()}, led

    async def add_bundle(self, user: Identity, digest: str, size: int) -> None:
        """Records that the user's namespace has a bundle."""
        row = upsert(t.bundles).values(namespace=user.home, digest=digest, size=size)
        new = row.on_conflict_do_nothing(index_elements=["namespace", "digest"]).returning(t.bundles.c.digest)
        async with self._database.transaction() as connection:
            if (await connection.execute(new)).first() is not None:
                await audit.record(connection, user, "bundle.upload", digest, {"size": size}, namespace=user.home)


async def _submitted(connection: AsyncConnection, namespace: str, key: str, body_hash: str) -> JobRecord | None:
    keys = t.idempotency_keys
    query = (
        select(keys.c.body_hash, keys.c.job_id, t.jobs)
        .outerjoin(t.jobs, t.jobs.c.id == keys.c.job_id)
        .where(and_(keys.c.namespace == namespace, keys.c.key == key))
    )
    row = (await connection.execute(query)).mappings().one_or_none()
    if row is None:
        return None
    if row["body_hash"] != body_hash:
        raise IdempotencyError(
            f"the Idempotency-Key {key!r} was used with another body (job {row['job_id']})",
            fix="use a new key for a new job, or send the same body again",
        )
    if row["id"] is None:
        raise IdempotencyError(
            f"job {row['job_id']}, submitted with the Idempotency-Key {key!r}, was deleted", fix="use a new key"
        )
    return (await visible_jobs(connection, [row], namespace))[0]


def draw_id(name: str) -> str:
    """An id for a job of that name."""
    return f"{name}-{''.join(secrets.choice(_ALPHABET) for _ in range(6))}"


async def _insert_job(
    connection: AsyncConnection, user: Identity, spec: JobSpec, job_id: str, statement: Mapping[str, Any] | None
) -> JobRecord:
    given = spec.to_mapping()
    alike = dict(given)
    if statement is not None:  # equal rows have one name, in whichever job's folder they lie
        alike |= {name: PurePath(given[name]).name for name in DATA_FIELDS}
    query = (
        insert(t.jobs)
        .values(
            id=job_id,
            namespace=user.home,
            owner=user.user,
            restricted=user.restricted,
            name=spec.name,
            type=str(spec.type),
            spec=given,
            kind=kind_of(user.home, alike),
            data_key=data_key(user.home, alike),
            reason="submitted; waiting for the scheduler",
            priority=spec.priority,
            min_workers=spec.min_workers,
            max_workers=spec.max_workers,
        )
        .returning(t.jobs)
    )
    job = JobRecord.of((await connection.execute(query)).mappings().one())
    await add_event(connection, job_id, "state", job.reason, {"from": None, "to": job.state})
    told = {"type": job.type}
    if statement is not None:
        await keep_statement(connection, job_id, user.home, statement)
        told |= {name: statement[name] for name in ("verb", "model", "source")}
    await audit.record(connection, user, "job.submit", job_id, told, namespace=user.home)
    return job


async def _get(connection: AsyncConnection, job_id: str, namespace: str | None, *, lock: bool = False) -> JobRecord:
    query = select(t.jobs).where(t.jobs.c.id == job_id)
    if namespace is not None:
        query = query.where(t.jobs.c.namespace == namespace)
    if lock:
        query = query.with_for_update(key_share=True)
    row = (await connection.execute(query)).mappings().one_or_none()
    if row is None:
        raise missing_job(job_id)
    return (await visible_jobs(connection, [row], namespace))[0]


def _merged(present: Mapping[str, str], changes: Any) -> Any:
    """Labels after a merge (RFC 7396); what is no object is left for the specification to refuse."""
    if not isinstance(changes, dict):
        return changes
    return {key: value for key, value in {**present, **changes}.items() if value is not None}


def _require_match(job: JobRecord, if_match: str | None) -> None:
    if if_match is None or if_match.strip() == "*":
        return
    revisions = [found[1] for tag in if_match.split(",") if (found := _TAG.fullmatch(tag.strip()))]
    if str(job.revision) not in revisions:
        raise PreconditionFailedError(
            f"job {job.id} has changed: its revision is {job.revision} now", fix="read it again, and decide anew"
        )


async def _ask_master(connection: AsyncConnection, job: JobRecord, what: JobRequest, desired: Desired) -> None:
    """Writes a request for the job's master, which reads it with its next heartbeat."""
    await connection.execute(update(t.jobs).where(t.jobs.c.id == job.id).values(desired=desired))
    await add_event(connection, job.id, "request", f"{what} was asked for", {"what": what})

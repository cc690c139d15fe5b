"""Statements: what jobs came from, and the models that they trained."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from sqlalchemy import select
from sqlalchemy.ext.asyncio import AsyncConnection

from elasticdl_core.checkpoint_manifest import newness
from elasticdl_core.errors import ConflictError, NotFoundError
from elasticdl_core.job import JobState
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database

_GONE = (JobState.FAILED, JobState.CANCELLED)


@dataclass(frozen=True)
class StoredStatement:
    """A statement that became a job.

    Attributes:
        job_id: the job.
        verb: what it does.
        model: the model that it trains or uses.
        source: the name of the source.
        text: as it was sent.
        plan: the fields of the answer that tell its plan.
        state: of the job.
    """

    job_id: str
    verb: str
    model: str
    source: str
    text: str
    plan: Mapping[str, Any]
    state: JobState


class StatementStore:
    """Reads statements. Every method may raise UnavailableError."""

    def __init__(self, database: Database) -> None:
        self._database = database

    async def get(self, job_id: str, *, namespace: str | None) -> StoredStatement:
        """The statement of a job.

        Raises:
            NotFoundError: there is no such job, or it came from none.
        """
        query = _kept().where(t.statements.c.job_id == job_id)
        if namespace is not None:
            query = query.where(t.jobs.c.namespace == namespace)
        async with self._database.reading() as connection:
            row = (await connection.execute(query)).mappings().one_or_none()
        if row is None:
            raise NotFoundError(
                f"there is no job {job_id} that a statement made", fix="send the statement: POST /sql"
            )
        return _statement(row)

    async def find_model(self, namespace: str, name: str) -> tuple[StoredStatement, str]:
        """The training of a model that statements may use, and the folder of its last checkpoint.

        Raises:
            NotFoundError: no job of the namespace has trained it, or is about to.
            ConflictError: its training is not over, or left no checkpoint.
        """
        query = (
            _kept()
            .where(t.statements.c.namespace == namespace, t.statements.c.verb == "TRAIN")
            .where(t.jobs.c.state.not_in([str(state) for state in _GONE]))
            .order_by(t.statements.c.at.desc(), t.statements.c.job_id)
        )
        async with self._database.reading() as connection:
            row = (
                (await connection.execute(query.where(t.statements.c.model == name).limit(1)))
                .mappings()
                .one_or_none()
            )
            if row is None:
                known = (await connection.execute(query.limit(1000))).mappings()
                names = sorted({str(one["model"]) for one in known})
                raise NotFoundError(
                    f"there is no model {name}",
                    fix=f"there are {', '.join(names[:20])}"
                    if names
                    else f"train it: SELECT ... TO TRAIN ... INTO {name}",
                )
            found = _statement(row)
            if not found.state.terminal:
                raise ConflictError(
                    f"the model {name} is being trained by job {found.job_id} ({found.state})",
                    fix="wait until that is over, or cancel it",
                )
            checkpoint = await _last_checkpoint(connection, found.job_id)
        if checkpoint is None:
            raise ConflictError(
                f"job {found.job_id}, which trained {name}, has no checkpoint", fix=f"train {name} again"
            )
        return found, checkpoint

    async def find_checkpoint(self, job_id: str) -> str | None:
        """The folder of the last checkpoint of a job."""
        async with self._database.reading() as connection:
            return await _last_checkpoint(connection, job_id)


async def _last_checkpoint(connection: AsyncConnection, job_id: str) -> str | None:
    checkpoints = select(t.checkpoints.c.version, t.checkpoints.c.manifest).where(t.checkpoints.c.job_id == job_id)
    manifests = [{**one.manifest, "version": one.version} for one in await connection.execute(checkpoints)]
    return str(max(manifests, key=newness)["directory"]) if manifests else None


async def keep_statement(connection: AsyncConnection, job_id: str, namespace: str, kept: Mapping[str, Any]) -> None:
    """Keeps the statement of a new job, in the transaction that makes it.

    Args:
        connection: in that transaction.
        job_id: the job.
        namespace: whose it is.
        kept: ``verb``, ``model``, ``source``, ``text`` and ``plan``.
    """
    await connection.execute(t.statements.insert().values(job_id=job_id, namespace=namespace, **kept))


def _kept() -> Any:
    return select(t.statements, t.jobs.c.state).join(t.jobs, t.jobs.c.id == t.statements.c.job_id)


def _statement(row: Mapping[Any, Any]) -> StoredStatement:
    names = ("job_id", "verb", "model", "source", "text", "plan")
    return StoredStatement(**{name: row[name] for name in names}, state=JobState(row["state"]))

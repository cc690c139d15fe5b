"""Searches for a model: what is tried, how far that is, and how it ended."""

from __future__ import annotations

import contextlib
import dataclasses
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass, field
from typing import Any

from sqlalchemy import ColumnElement, Select, insert, select, update
from sqlalchemy.exc import IntegrityError
from sqlalchemy.ext.asyncio import AsyncConnection

from elasticdl.sql.search import SearchPlan
from elasticdl_api.store import audit
from elasticdl_api.web.auth import Identity
from elasticdl_api.web.problems import IdempotencyError
from elasticdl_core.access import TokenScope
from elasticdl_core.errors import ConflictError, NotFoundError
from elasticdl_core.job.searches import SearchState
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database


@dataclass
class StoredSearch:
    """A search.

    Attributes:
        job_id: the job that will train the best model.
        namespace: whose it is.
        owner: the user who sent the statement.
        restricted: whether its jobs may touch the namespace's places only.
        model: the name of the model.
        source: the name of the source.
        text: the statement.
        state: where it stands.
        plan: what is tried; the trials have their scores.
        bundle: the digest of the models' code.
        jobs: of each model the ids of its jobs, a round each.
        number: the round.
        submitted: whether all jobs of the round were made.
        chosen: the number of the best model, and for how many rounds it is trained; None before.
        error: message and fix of what it failed for.
    """

    job_id: str
    namespace: str
    owner: str
    restricted: bool
    model: str
    source: str
    text: str
    state: SearchState
    plan: SearchPlan
    bundle: str
    jobs: list[list[str]] = field(default_factory=list)
    number: int = 0
    submitted: bool = False
    chosen: list[int] | None = None
    error: Mapping[str, str] | None = None

    @property
    def user(self) -> Identity:
        """The user as whom its jobs are submitted."""
        scope = TokenScope.SUBMIT if self.restricted else TokenScope.ADMIN
        return Identity(self.namespace if self.restricted else None, self.owner, scope)

    @property
    def all_jobs(self) -> list[str]:
        """The ids of its trials."""
        return [one for jobs in self.jobs for one in jobs]


_PROGRESS = ("bundle", "jobs", "number", "submitted", "chosen")
_COLUMNS = ("job_id", "namespace", "owner", "restricted", "model", "source", "text", "error")


class SearchStore:
    """Keeps searches. Every method may raise UnavailableError.

    Args:
        database: the pool.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def begin(self, user: Identity, search: StoredSearch, *, key: str | None, body_hash: str) -> None:
        """Keeps a new search.

        Raises:
            ConflictError: the key is being used by another request.
        """
        try:
            async with self._database.transaction() as connection:
                given = {name: getattr(search, name) for name in _COLUMNS}
                await connection.execute(insert(t.searches).values(**given | _changing(search)))
                told = {"verb": "TRAIN", "model": search.model, "source": search.source}
                await audit.record(connection, user, "search.begin", search.job_id, told, namespace=search.namespace)
                if key is not None:
                    values = {"namespace": search.namespace, "key": key, "body_hash": body_hash}
                    await connection.execute(insert(t.idempotency_keys).values(**values, job_id=search.job_id))
        except IntegrityError:
            raise ConflictError(
                "another request with the same Idempotency-Key is being handled", fix="try again"
            ) from None

    async def find_submitted(self, namespace: str, key: str, body_hash: str) -> StoredSearch | None:
        """The search that was begun under an idempotency key, if any.

        Raises:
            IdempotencyError: the key was used with another body.
        """
        keys = t.idempotency_keys.c
        query = select(t.searches, keys.body_hash).join(keys.job_id.table, keys.job_id == t.searches.c.job_id)
        async with self._database.reading() as connection:
            found = await connection.execute(query.where(keys.namespace == namespace, keys.key == key))
            row = found.mappings().one_or_none()
        if row is None:
            return None
        if row["body_hash"] != body_hash:
            raise IdempotencyError(
                f"the Idempotency-Key {key!r} was used with another body (search {row['job_id']})",
                fix="use a new key, or send the same body again",
            )
        return _search(row)

    async def find(self, job_id: str, *, namespace: str | None) -> StoredSearch | None:
        """The search that a job came from, or will come from."""
        query = _of(t.searches.c.job_id == job_id)
        if namespace is not None:
            query = query.where(t.searches.c.namespace == namespace)
        return await self._first(query)

    async def find_comparing(self, namespace: str, model: str) -> StoredSearch | None:
        """The search for a model of that name that is not over."""
        names = t.searches.c
        return await self._first(_of(names.namespace == namespace, names.model == model, is_open_search()).limit(1))

    async def list_open(self) -> list[str]:
        """The searches that something is left to do for, oldest first."""
        query = select(t.searches.c.job_id).where(is_open_search()).order_by(t.searches.c.at)
        async with self._database.reading() as connection:
            return list((await connection.execute(query)).scalars())

    async def cancel(self, job_id: str, *, user: Identity) -> StoredSearch:
        """Has a search stop; asking twice is asking once.

        Raises:
            NotFoundError: there is none.
            ConflictError: it is over.
        """
        async with self._database.transaction() as connection:
            query = _of(t.searches.c.job_id == job_id).with_for_update()
            if user.namespace is not None:
                query = query.where(t.searches.c.namespace == user.namespace)
            row = (await connection.execute(query)).mappings().one_or_none()
            if row is None:
                raise NotFoundError(f"there is no search {job_id}", fix="look at the jobs: `elasticdl jobs list`")
            search = _search(row)
            if search.state in (SearchState.COMPARING, SearchState.CHOSEN):
                search.state = SearchState.STOPPING
                await _save(connection, search)
                await audit.record(connection, user, "search.cancel", job_id, namespace=search.namespace)
            elif not search.state.open:
                fix = f"cancel its job: `elasticdl jobs cancel {job_id}`" if search.state is SearchState.DONE else ""
                raise ConflictError(
                    f"the search {job_id} is over ({search.state})", fix=fix or "send the statement again"
                )
        return search

    @contextlib.asynccontextmanager
    async def hold(self, job_id: str) -> AsyncIterator[StoredSearch | None]:
        """A search that nobody else changes in the block, and that is kept as the block leaves it.

        It is None where it is over, or where another replica has it.
        """
        async with self._database.transaction() as connection:
            query = _of(t.searches.c.job_id == job_id, is_open_search()).with_for_update(skip_locked=True)
            row = (await connection.execute(query)).mappings().one_or_none()
            if row is None:
                yield None
                return
            search = _search(row)
            yield search
            await _save(connection, search)

    async def _first(self, query: Select[Any]) -> StoredSearch | None:
        async with self._database.reading() as connection:
            row = (await connection.execute(query)).mappings().first()
        return None if row is None else _search(row)


def is_open_search() -> ColumnElement[bool]:
    """The condition that something is left to do for a search."""
    return t.searches.c.state.in_([str(state) for state in SearchState if state.open])


def _of(*conditions: ColumnElement[bool]) -> Select[Any]:
    return select(t.searches).where(*conditions)


def _changing(search: StoredSearch) -> dict[str, Any]:
    return {
        "state": str(search.state),
        "plan": dataclasses.asdict(search.plan),
        "progress": {name: getattr(search, name) for name in _PROGRESS},
        "error": search.error,
    }


async def _save(connection: AsyncConnection, search: StoredSearch) -> None:
    query = update(t.searches).where(t.searches.c.job_id == search.job_id)
    await connection.execute(query.values(**_changing(search)))


def _search(row: Mapping[Any, Any]) -> StoredSearch:
    return StoredSearch(
        **{name: row[name] for name in _COLUMNS},
        **row["progress"],
        state=SearchState(row["state"]),
        plan=SearchPlan.of(row["plan"]),
    )

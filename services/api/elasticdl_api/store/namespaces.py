"""Namespaces: made, changed, removed."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from sqlalchemy import Select, delete, func, insert, select, update

from elasticdl_api.store import audit
from elasticdl_api.store.tokens import is_valid
from elasticdl_api.web.auth import Identity
from elasticdl_core.access import DEFAULT_NAMESPACE
from elasticdl_core.errors import ConflictError, InvalidInputError, NotFoundError
from elasticdl_runtime.database import tables as t
from elasticdl_runtime.database.engine import Database


class NamespaceStore:
    """Namespaces in Postgres. A user of one namespace sees that one only.

    Every method may raise UnavailableError.
    """

    def __init__(self, database: Database) -> None:
        self._database = database

    async def list_all(self, user: Identity) -> list[Mapping[Any, Any]]:
        """The namespaces that the user sees, by name."""
        async with self._database.transaction() as connection:
            return [_shown(row) for row in (await connection.execute(_seen_by(user))).mappings()]

    async def get(self, user: Identity, name: str) -> Mapping[Any, Any]:
        """One of them.

        Raises:
            NotFoundError: the user sees none of that name.
        """
        async with self._database.transaction() as connection:
            found = (await connection.execute(_seen_by(user).where(t.namespaces.c.name == name))).mappings().all()
        if not found:
            raise _missing(name)
        return _shown(found[0])

    async def get_limits(self, name: str) -> Mapping[str, Any]:
        """The limits of a namespace, as far as they were set; nothing for one that was never made."""
        query = select(t.namespaces.c.limits).where(t.namespaces.c.name == name)
        async with self._database.reading() as connection:
            return (await connection.execute(query)).scalar_one_or_none() or {}

    async def put(self, user: Identity, name: str, values: Mapping[str, Any]) -> bool:
        """Makes a namespace, or changes it.

        Args:
            user: who does.
            name: of the namespace.
            values: ``data_roots`` and ``limits``; what is not given stays as it is. ``sources``, closed by their
                names, are added to those that there are, and None removes one.

        Returns:
            Whether it is new.
        """
        names = t.namespaces.c
        async with self._database.transaction() as connection:
            query = select(names.data_roots, names.limits, names.sources).where(names.name == name).with_for_update()
            known = (await connection.execute(query)).mappings().one_or_none()
            wanted, told = dict(values), dict(values)
            if given := values.get("sources"):
                merged = {**(known["sources"] if known else {}), **given}
                wanted["sources"] = {key: value for key, value in merged.items() if value is not None}
                told["sources"] = {key: "removed" if value is None else "set" for key, value in given.items()}
            if known is None:
                await connection.execute(insert(t.namespaces).values(name=name, **wanted))
                await audit.record(connection, user, "namespace.create", name, told, namespace=name)
                return True
            changed = {key: value for key, value in wanted.items() if known[key] != value}
            if changed:
                await connection.execute(update(t.namespaces).where(names.name == name).values(**changed))
                told = {key: told[key] for key in changed}
                await audit.record(connection, user, "namespace.change", name, told, namespace=name)
            return False

    async def find_source(self, namespace: str, name: str) -> str:
        """The closed address of a source of a namespace.

        Raises:
            InvalidInputError: the namespace has no such source.
        """
        query = select(t.namespaces.c.sources).where(t.namespaces.c.name == namespace)
        async with self._database.reading() as connection:
            known = (await connection.execute(query)).scalar_one_or_none() or {}
        if name not in known:
            raise InvalidInputError(
                f"there is no source {name!r} in the namespace {namespace!r}",
                fix=f"name one of {', '.join(sorted(known))}"
                if known
                else "have an administrator add one: `elasticdl namespaces set NAMESPACE --source NAME=URL`",
            )
        return str(known[name])

    async def remove(self, user: Identity, name: str) -> None:
        """Removes a namespace, with its tokens.

        Raises:
            NotFoundError: there is none.
            ConflictError: there are jobs in it, or it is the default one.
        """
        if name == DEFAULT_NAMESPACE:
            raise ConflictError(
                f"the namespace {name!r} stays: what administrators submit belongs to it",
                fix="remove its jobs and tokens instead",
            )
        async with self._database.transaction() as connection:
            query = select(t.namespaces.c.name).where(t.namespaces.c.name == name).with_for_update()
            if (await connection.execute(query)).first() is None:
                raise _missing(name)
            many = select(func.count()).select_from(t.jobs).where(t.jobs.c.namespace == name)
            jobs = (await connection.execute(many)).scalar_one()
            if jobs:
                raise ConflictError(
                    f"there are {jobs} jobs in the namespace {name!r}", fix="cancel and delete them first"
                )
            await connection.execute(delete(t.bundles).where(t.bundles.c.namespace == name))
            await connection.execute(delete(t.namespaces).where(t.namespaces.c.name == name))
            await audit.record(connection, user, "namespace.delete", name, namespace=name)


def _seen_by(user: Identity) -> Select[Any]:
    names = t.namespaces.c
    jobs = select(func.count()).select_from(t.jobs).where(t.jobs.c.namespace == names.name)
    tokens = select(func.count()).select_from(t.tokens).where(t.tokens.c.namespace == names.name, is_valid())
    query = select(
        t.namespaces, jobs.scalar_subquery().label("jobs"), tokens.scalar_subquery().label("tokens")
    ).order_by(names.name)
    return query if user.namespace is None else query.where(names.name == user.namespace)


def _shown(row: Mapping[Any, Any]) -> dict[str, Any]:
    """A namespace with the names of its sources only."""
    return {**row, "sources": sorted(row["sources"])}


def _missing(name: str) -> NotFoundError:
    return NotFoundError(f"there is no namespace {name!r}", fix="list them: `elasticdl namespaces list`")

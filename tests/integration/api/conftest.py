"""Databases with the api's schema."""

from __future__ import annotations

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

import pytest

from elasticdl_api.store.database import Database
from elasticdl_api.store.migrate import migrate


@pytest.fixture(scope="session")
def migrated_template(postgres_server) -> str:
    name = "template_api"
    postgres_server.sql(f"CREATE DATABASE {name}")

    async def fill() -> None:
        database = Database(postgres_server.url(name))
        try:
            await migrate(database)
        finally:
            await database.close()

    asyncio.run(fill())
    return name


@pytest.fixture
def database_url(migrated_template: str, clone_database: Callable[[str], str], postgres_server) -> str:
    url = clone_database(migrated_template)
    yield url
    name = url.split("@/")[1].split("?")[0]
    with contextlib.suppress(Exception):
        postgres_server.sql(f"DROP DATABASE {name} WITH (FORCE)")


@pytest.fixture
async def database(database_url: str) -> AsyncIterator[Database]:
    database = Database(database_url)
    yield database
    await database.close()

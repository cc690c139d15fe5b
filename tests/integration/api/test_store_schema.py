"""The schema: the same from migrations and from models, and the state machine that the database keeps."""

from __future__ import annotations

import asyncio
import itertools

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from elasticdl_api.store.database import Database
from elasticdl_api.store.migrate import migrate
from elasticdl_api.store.tables import metadata
from elasticdl_core.errors import UnavailableError
from elasticdl_core.job import LEGAL_TRANSITIONS, JobState

pytestmark = pytest.mark.integration

_PATHS = {
    JobState.QUEUED: [],
    JobState.STARTING: ["STARTING"],
    JobState.RUNNING: ["STARTING", "RUNNING"],
    JobState.SUSPENDED: ["SUSPENDED"],
    JobState.CANCELLING: ["CANCELLING"],
    JobState.SUCCEEDED: ["STARTING", "RUNNING", "SUCCEEDED"],
    JobState.SUCCEEDED_WITH_SKIPS: ["STARTING", "RUNNING", "SUCCEEDED_WITH_SKIPS"],
    JobState.FAILED: ["FAILED"],
    JobState.CANCELLED: ["CANCELLED"],
}


async def _insert(connection, job_id: str) -> None:
    await connection.execute(
        text("INSERT INTO jobs (id, name, type, spec) VALUES (:id, 'job', 'training', '{}')"), {"id": job_id}
    )


async def _set_state(connection, job_id: str, state: str) -> None:
    await connection.execute(text("UPDATE jobs SET state = :s WHERE id = :id"), {"s": state, "id": job_id})


async def test_models_equal_migrations(database: Database) -> None:
    def differences(connection):
        options = {"compare_type": True, "compare_server_default": True}
        return compare_metadata(MigrationContext.configure(connection, opts=options), metadata)

    async with database.transaction() as connection:
        found = await connection.run_sync(differences)
    assert found == []


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(JobState, 2)))
async def test_trigger_allows_exactly_the_legal_transitions(
    database: Database, before: JobState, after: JobState
) -> None:
    async with database.transaction() as connection:
        await _insert(connection, "j")
        for state in _PATHS[before]:
            await _set_state(connection, "j", state)
    if after in LEGAL_TRANSITIONS[before]:
        async with database.transaction() as connection:
            await _set_state(connection, "j", after)
    else:
        with pytest.raises(DBAPIError, match=f"cannot go from {before} to {after}"):
            async with database.transaction() as connection:
                await _set_state(connection, "j", after)
    async with database.transaction() as connection:
        row = (await connection.execute(text("SELECT * FROM jobs"))).mappings().one()
        events = (await connection.execute(text("SELECT * FROM events ORDER BY id"))).mappings().all()
    states = [str(s) for s in _PATHS[before]] + ([str(after)] if after in LEGAL_TRANSITIONS[before] else [])
    assert row["state"] == (states[-1] if states else "QUEUED")
    assert [event["detail"]["to"] for event in events] == ["QUEUED", *states]
    assert (row["finished_at"] is not None) == JobState(row["state"]).terminal


async def test_a_job_begins_queued(database: Database) -> None:
    with pytest.raises(DBAPIError, match="begins as QUEUED"):
        async with database.transaction() as connection:
            await connection.execute(
                text("INSERT INTO jobs (id, name, type, spec, state) VALUES ('j', 'j', 't', '{}', 'RUNNING')")
            )


async def test_starting_makes_one_launch_intent_with_a_name_that_follows(database: Database) -> None:
    async with database.transaction() as connection:
        await _insert(connection, "j")
        query = text("SELECT transition_job('j', ARRAY['QUEUED'], 'STARTING', 'fits', '{\"slots\": 2}')")
        assert (await connection.execute(query)).scalar() is True
        assert (await connection.execute(query)).scalar() is False
    async with database.transaction() as connection:
        await _set_state(connection, "j", "QUEUED")
        await connection.execute(text("UPDATE launch_intents SET delivered_at = now()"))
        await _set_state(connection, "j", "STARTING")
    async with database.transaction() as connection:
        intents = (await connection.execute(text("SELECT id FROM launch_intents ORDER BY id"))).scalars().all()
        detail = (await connection.execute(text("SELECT detail FROM events ORDER BY id OFFSET 1 LIMIT 1"))).scalar()
    assert intents == ["j/master/0/1", "j/master/0/2"]
    assert detail == {"slots": 2, "from": "QUEUED", "to": "STARTING"}


async def test_transition_records_the_error_and_notifies(database: Database) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    listener = await database.listen_connection()
    await listener.add_listener("elasticdl_jobs", lambda _c, _p, _ch, payload: heard.put_nowait(payload))
    async with database.transaction() as connection:
        await _insert(connection, "j")
        await connection.execute(
            text("SELECT transition_job('j', ARRAY['QUEUED'], 'FAILED', 'no', '{\"error\": {\"message\": \"m\"}}')")
        )
    assert await asyncio.wait_for(heard.get(), 10) == "j"
    await listener.close()
    async with database.transaction() as connection:
        row = (await connection.execute(text("SELECT state, reason, error FROM jobs"))).one()
    assert tuple(row) == ("FAILED", "no", {"message": "m"})


async def test_replicas_can_migrate_at_once(empty_database_url: str) -> None:
    replicas = [Database(empty_database_url) for _ in range(3)]
    try:
        await asyncio.gather(*(migrate(replica) for replica in replicas))
        async with replicas[0].transaction() as connection:
            names = (await connection.execute(text("SELECT name FROM leadership"))).scalars().all()
    finally:
        for replica in replicas:
            await replica.close()
    assert names == ["scheduler"]


async def test_an_absent_database_is_unavailable_not_a_crash(tmp_path) -> None:
    database = Database(f"postgresql://u:p@/d?host={tmp_path}")
    with pytest.raises(UnavailableError, match="does not answer"):
        async with database.transaction():
            pass
    with pytest.raises(UnavailableError):
        await database.listen_connection()
    await database.close()

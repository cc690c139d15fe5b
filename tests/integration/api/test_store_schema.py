"""The schema: the same from migrations and from models, and the state machine that the database keeps."""

from __future__ import annotations

import asyncio
import itertools
from pathlib import Path

import pytest
from alembic.autogenerate import compare_metadata
from alembic.runtime.migration import MigrationContext
from sqlalchemy import text
from sqlalchemy.exc import DBAPIError

from elasticdl_api.store.migrate import migrate
from elasticdl_core.errors import UnavailableError
from elasticdl_core.job import LEGAL_TRANSITIONS, JobState
from elasticdl_runtime import failpoints
from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.database.tables import metadata
from elasticdl_runtime.database.transitions import transition
from elasticdl_runtime.lifecycle import within

pytestmark = pytest.mark.integration

_PATHS: dict[JobState, list[JobState]] = {
    JobState.QUEUED: [],
    JobState.STARTING: [JobState.STARTING],
    JobState.RUNNING: [JobState.STARTING, JobState.RUNNING],
    JobState.SUSPENDED: [JobState.SUSPENDED],
    JobState.CANCELLING: [JobState.CANCELLING],
    JobState.SUCCEEDED: [JobState.STARTING, JobState.RUNNING, JobState.SUCCEEDED],
    JobState.SUCCEEDED_WITH_SKIPS: [JobState.STARTING, JobState.RUNNING, JobState.SUCCEEDED_WITH_SKIPS],
    JobState.FAILED: [JobState.FAILED],
    JobState.CANCELLED: [JobState.CANCELLED],
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


async def _go(database: Database, job_id: str, *states: JobState) -> None:
    """Changes a job's state through each of these."""
    for origin, to in itertools.pairwise(states):
        async with database.transaction() as connection:
            assert await transition(connection, job_id, origin, to, f"to {to}")


@pytest.mark.parametrize(("before", "after"), list(itertools.permutations(JobState, 2)))
async def test_the_database_refuses_exactly_what_is_not_legal(
    database: Database, before: JobState, after: JobState
) -> None:
    async with database.transaction() as connection:
        await _insert(connection, "j")
    await _go(database, "j", JobState.QUEUED, *_PATHS[before])
    legal = after in LEGAL_TRANSITIONS[before]
    if legal:
        await _go(database, "j", before, after)
    else:
        with pytest.raises(DBAPIError, match=f"cannot go from {before} to {after}"):
            async with database.transaction() as connection:
                await _set_state(connection, "j", after)
    async with database.transaction() as connection:
        row = (await connection.execute(text("SELECT * FROM jobs"))).mappings().one()
        events = (await connection.execute(text("SELECT * FROM events ORDER BY id"))).mappings().all()
    states = _PATHS[before] + ([after] if legal else [])
    assert row["state"] == (states[-1] if states else JobState.QUEUED)
    assert [(event["kind"], event["detail"]["to"]) for event in events] == [("state", str(one)) for one in states]
    assert (row["finished_at"] is not None) == JobState(row["state"]).terminal


async def test_a_job_begins_queued(database: Database) -> None:
    with pytest.raises(DBAPIError, match="begins as QUEUED"):
        async with database.transaction() as connection:
            await connection.execute(
                text("INSERT INTO jobs (id, name, type, spec, state) VALUES ('j', 'j', 't', '{}', 'RUNNING')")
            )


async def _intents(database: Database) -> list[str]:
    async with database.transaction() as connection:
        return list((await connection.execute(text("SELECT id FROM launch_intents ORDER BY id"))).scalars())


async def test_a_start_writes_the_launch_of_the_next_master(database: Database) -> None:
    async with database.transaction() as connection:
        await _insert(connection, "j")
        start = (connection, "j", JobState.QUEUED, JobState.STARTING, "fits", {"slots": 2})
        assert await transition(*start)
        assert not await transition(*start), "it is not queued any more"
    await _go(database, "j", JobState.STARTING, JobState.QUEUED, JobState.STARTING)
    assert await _intents(database) == ["j/master/0/1"], "the one that is not delivered yet serves again"
    async with database.transaction() as connection:
        await connection.execute(text("UPDATE launch_intents SET delivered_at = now()"))
    await _go(database, "j", JobState.STARTING, JobState.QUEUED, JobState.STARTING)
    assert await _intents(database) == ["j/master/0/1", "j/master/0/2"]
    async with database.transaction() as connection:
        event = (await connection.execute(text("SELECT message, detail FROM events ORDER BY id LIMIT 1"))).one()
        job = (await connection.execute(text("SELECT * FROM jobs"))).mappings().one()
    assert tuple(event) == ("fits", {"slots": 2, "from": "QUEUED", "to": "STARTING"})
    assert (job["master_incarnation"], job["reason"]) == (2, "to STARTING")
    assert job["started_at"] is not None


async def test_a_start_that_dies_halfway_leaves_neither_state_nor_launch(
    database: Database, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    async with database.transaction() as connection:
        await _insert(connection, "j")
    monkeypatch.setenv(failpoints.VARIABLE, str(tmp_path))
    failpoints._folder.cache_clear()
    fired = failpoints.arm(tmp_path, "scheduler.before_launch_intent", "raise")
    try:
        with pytest.raises(UnavailableError, match="failpoint"):
            await _go(database, "j", JobState.QUEUED, JobState.STARTING)
    finally:
        monkeypatch.delenv(failpoints.VARIABLE)
        failpoints._folder.cache_clear()
    async with database.transaction() as connection:
        state = (await connection.execute(text("SELECT state FROM jobs"))).scalar()
    assert fired.exists()
    assert (state, await _intents(database)) == ("QUEUED", [])
    await _go(database, "j", JobState.QUEUED, JobState.STARTING)
    assert await _intents(database) == ["j/master/0/1"]


async def test_the_database_refuses_a_master_that_nobody_launches(database: Database) -> None:
    async with database.transaction() as connection:
        await _insert(connection, "j")
    with pytest.raises(DBAPIError, match="job j has no launch intent for its master 0"):
        async with database.transaction() as connection:
            await _set_state(connection, "j", "STARTING")
    await _go(database, "j", JobState.QUEUED, JobState.STARTING)
    with pytest.raises(DBAPIError, match="job j has no launch intent for its master 2"):
        async with database.transaction() as connection:
            await connection.execute(text("UPDATE jobs SET master_incarnation = 2"))


async def test_a_job_that_stops_gives_everything_back(database: Database) -> None:
    async with database.transaction() as connection:
        await _insert(connection, "j")
    await _go(database, "j", JobState.QUEUED, JobState.STARTING, JobState.RUNNING)
    async with database.transaction() as connection:
        await connection.execute(
            text("UPDATE jobs SET target_workers = 3, master_holder = 'm', master_failures = 2, desired = 'evict'")
        )
    await _go(database, "j", JobState.RUNNING, JobState.QUEUED)
    async with database.transaction() as connection:
        job = (await connection.execute(text("SELECT * FROM jobs"))).mappings().one()
    assert (job["target_workers"], job["master_holder"], job["desired"]) == (0, "", "run")
    assert (job["master_failures"], job["finished_at"]) == (2, None)
    await _go(database, "j", JobState.QUEUED, JobState.STARTING, JobState.CANCELLING)
    async with database.transaction() as connection:
        job = (await connection.execute(text("SELECT * FROM jobs"))).mappings().one()
    assert (job["desired"], job["master_failures"]) == ("cancel", 0)


async def test_transition_records_the_error_and_notifies(database: Database) -> None:
    heard: asyncio.Queue[str] = asyncio.Queue()
    async with database.listening("elasticdl_jobs", heard.put_nowait):
        async with database.transaction() as connection:
            await _insert(connection, "j")
            detail = {"error": {"message": "m"}}
            assert await transition(connection, "j", JobState.QUEUED, JobState.FAILED, "no", detail)
        assert await within(heard.get(), 60) == "j"
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
        async with database.listening("elasticdl_jobs", lambda _payload: None):
            pass
    await database.close()

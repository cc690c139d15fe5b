"""What the scheduler leaves for those who ask: reasons as data, word of each pass, a log that does not grow for ever;
and what it waits for."""

from __future__ import annotations

import asyncio
import json
from typing import Any

import asyncpg
import pytest
from structlog.testing import capture_logs

from elasticdl_api.store.migrate import migrate
from elasticdl_core.errors import FencedError
from elasticdl_core.scheduling import Quota, Resources
from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.lifecycle import within
from elasticdl_runtime.scheduling import quotas_from_json
from elasticdl_scheduler.store import PRUNED_AT_ONCE
from elasticdl_scheduler.waiting import await_schema, is_migrated

pytestmark = pytest.mark.integration


async def test_the_reason_in_force_is_kept_as_data(world: Any) -> None:
    await world.submit("a", max_workers=4, min_workers=4)
    await world.submit("b", min_workers=2)
    scheduler, leadership, _ = world.scheduler()
    await leadership.attempt()
    await scheduler.decide_once()
    waiting = await world.job("b")
    detail = json.loads(waiting["target_detail"])
    assert detail["code"] == "waiting_for_capacity"
    assert detail["blockers"] == ["a"]
    assert detail["text"] == waiting["target_reason"]
    (decision,) = await world.sql.fetch("SELECT * FROM plans")
    (change,) = json.loads(decision["changes"])
    assert (change["job_id"], change["from"], change["to"], change["code"]) == ("a", 0, 4, "at_max")


async def test_each_pass_is_told_with_policy_quotas_and_capacity(world: Any) -> None:
    quotas = {"ads": Quota(2.0, Resources(slots=4.0), Resources(slots=8.0)), "other": Quota()}
    scheduler, leadership, _ = world.scheduler(policy="fair", quotas=quotas)
    await leadership.attempt()
    world.slots.used = {"gone": 1}
    await world.submit("a")
    await scheduler.decide_once()
    await scheduler.decide_once()
    (row,) = await world.sql.fetch("SELECT * FROM scheduler_passes")
    assert (row["passes"], row["changes"], row["policy"], row["epoch"]) == (2, 1, "fair", leadership.epoch)
    slots = {"slots": 4, "for_jobs": 4, "used": {"gone": 1}, "leaving": 1.0}
    assert json.loads(row["capacity"]) == {**slots, "memory_mib": 0, "devices": [], "device_uses": []}
    assert quotas_from_json(json.loads(row["quotas"]), "the table") == quotas
    await world.sql.execute("UPDATE leadership SET epoch = epoch + 1")
    with pytest.raises(FencedError):
        await scheduler.decide_once()
    assert await world.sql.fetchval("SELECT passes FROM scheduler_passes") == 2


async def _decisions(world: Any, ages_in_days: list[float]) -> None:
    for age in ages_in_days:
        await world.sql.execute(
            "INSERT INTO plans (at, epoch, policy, input_hash, snapshot, plan) "
            "VALUES (now() - make_interval(secs => $1), 1, 'fair', '', '{}', '{}')",
            age * 86400.0,
        )


async def test_old_decisions_are_removed_by_age_and_by_number(world: Any) -> None:
    _, leadership, store = world.scheduler()
    epoch = await leadership.attempt()
    await _decisions(world, [30, 20, 3, 2, 1, 0])
    assert await store.prune(epoch, keep_days=14, keep_decisions=100) == 2
    assert await store.prune(epoch, keep_days=14, keep_decisions=100) == 0
    assert await store.prune(epoch, keep_days=14, keep_decisions=3) == 1
    assert await world.sql.fetchval("SELECT array_agg(id ORDER BY id) FROM plans") == [4, 5, 6]
    assert PRUNED_AT_ONCE > 3
    await leadership.release()
    with pytest.raises(FencedError):
        await store.prune(epoch, keep_days=14, keep_decisions=1)


async def test_a_pass_sweeps_the_log(world: Any) -> None:
    await _decisions(world, [30])
    scheduler, leadership, _ = world.scheduler()
    await leadership.attempt()
    await world.submit("a")
    await scheduler.decide_once()
    assert await world.sql.fetchval("SELECT count(*) FROM plans") == 1


async def test_it_waits_for_the_migration_and_says_so(empty_database_url: str) -> None:
    database, stop = Database(empty_database_url), asyncio.Event()
    owner = Database(empty_database_url)
    try:
        assert not await is_migrated(database)
        with capture_logs() as logs:
            waiting = asyncio.create_task(await_schema(database, stop, every_s=0.1))
            await asyncio.wait({waiting}, timeout=0.2)
            assert not waiting.done()
            await migrate(owner)
            await within(waiting, 60)
        assert {(entry["event"], entry["log_level"]) for entry in logs} == {("waiting_for_database", "warning")}
        assert "elasticdl_api migrate" in logs[0]["fix"]
        assert await is_migrated(database)
    finally:
        await database.close()
        await owner.close()


async def test_it_stops_while_it_waits_for_the_migration(world: Any) -> None:
    await world.sql.execute("UPDATE alembic_version SET version_num = '0001'")
    scheduler, _, _ = world.scheduler()
    stop = asyncio.Event()
    running = asyncio.create_task(scheduler.run(stop))
    await asyncio.wait({running}, timeout=0.2)
    assert not running.done()
    stop.set()
    await within(running, 60)
    assert await world.sql.fetchval("SELECT count(*) FROM scheduler_passes") == 0


async def test_slots_that_fall_free_wake_it(world: Any) -> None:
    """No job changes and no full pass is due: only the look at the launcher can have seen it."""
    asked = asyncio.Event()

    class Watched(type(world.slots)):  # type: ignore[misc]
        async def capacity(self) -> Any:
            asked.set()
            return await super().capacity()

    world.slots = Watched(4, {"gone": 4})
    await world.submit("a")
    scheduler, _, _ = world.scheduler(interval_s=3600.0)
    stop, changed = asyncio.Event(), asyncio.Event()
    listener = await asyncpg.connect(world.url)
    await listener.add_listener("elasticdl_jobs", lambda *_: changed.set())
    running = asyncio.create_task(scheduler.run(stop))
    try:
        async with asyncio.timeout(60):
            await asked.wait()
            assert await world.targets() == {"a": 0}
            world.slots.used = {}
            while await world.targets() != {"a": 4}:
                await changed.wait()
                changed.clear()
    finally:
        stop.set()
        await running
        await listener.close()

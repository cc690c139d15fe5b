"""One job that cannot be read, or not be changed, planted among others: all others are planned, and it is said."""

from __future__ import annotations

import gc
import json
from typing import Any

import pytest

from elasticdl.cli.doctor import put_off
from elasticdl_core.errors import UnavailableError
from elasticdl_runtime import items
from elasticdl_runtime.database import engine
from elasticdl_runtime.telemetry import meters

pytestmark = pytest.mark.integration


def shown() -> float:
    gc.collect()  # what an earlier test put off counts until it is collected
    items.show_put_off()
    return sum(number for name, _, number in meters.read() if name == "elasticdl_process_items_put_off")


async def test_a_job_that_cannot_be_read_keeps_no_other_from_its_workers_and_keeps_its_own(world: Any) -> None:
    await world.submit("a")
    scheduler, leadership, _ = world.scheduler(lease_s=600.0)
    await leadership.attempt()
    await scheduler.decide_once()
    assert await world.targets() == {"a": 4}
    # What another release let in.
    await world.sql.execute("UPDATE jobs SET spec = $1 WHERE id = 'a'", json.dumps({"microbatches": "many"}))
    await world.submit("b")
    world.slots.slots = 6
    before = shown()
    assert await scheduler.decide_once()
    assert await world.targets() == {"a": 4, "b": 2}
    assert shown() == before + 1
    await world.sql.execute("UPDATE jobs SET spec = '{}' WHERE id = 'a'")
    await scheduler.decide_once()
    assert shown() == before


async def test_a_job_that_cannot_be_changed_keeps_no_other_from_its_change(world: Any) -> None:
    for name in "abc":
        await world.submit(name, max_workers=1)
    await world.sql.execute(
        "CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN RAISE EXCEPTION 'planted'; END $$ LANGUAGE plpgsql"
    )
    await world.sql.execute(
        "CREATE TRIGGER planted BEFORE UPDATE ON jobs FOR EACH ROW WHEN (OLD.id = 'b') EXECUTE FUNCTION refuse()"
    )
    scheduler, leadership, _ = world.scheduler(lease_s=600.0)
    await leadership.attempt()
    before = shown()
    assert await scheduler.decide_once()
    assert await world.targets() == {"a": 1, "b": 0, "c": 1}
    intents = await world.sql.fetch("SELECT job_id FROM launch_intents ORDER BY 1")
    assert [row["job_id"] for row in intents] == ["a", "c"]
    assert await world.sql.fetchval("SELECT count(*) FROM events WHERE job_id = 'b'") == 0
    assert shown() == before + 1
    (finding,) = put_off('elasticdl_process_items_put_off{index="0",role="scheduler"} 1.0')
    assert "scheduler 1" in finding.detail


async def test_a_row_that_somebody_holds_keeps_no_other_from_its_change(
    world: Any, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in "abc":
        await world.submit(name, max_workers=1)
    monkeypatch.setattr(engine, "LOCK_S", 0.1)
    scheduler, leadership, _ = world.scheduler(lease_s=600.0)
    await leadership.attempt()
    async with world.sql.transaction():
        await world.sql.execute("SELECT 1 FROM jobs WHERE id = 'b' FOR UPDATE")
        assert await scheduler.decide_once()
    assert await world.targets() == {"a": 1, "b": 0, "c": 1}


async def test_a_connection_that_is_lost_is_held_against_no_job(world: Any) -> None:
    for name in "ab":
        await world.submit(name, max_workers=1)
    await world.sql.execute(
        "CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN "
        "IF OLD.id = 'a' THEN RAISE EXCEPTION 'planted'; END IF; "
        "PERFORM pg_terminate_backend(pg_backend_pid()); PERFORM pg_sleep(10); RETURN NEW; END $$ LANGUAGE plpgsql"
    )
    await world.sql.execute("CREATE TRIGGER planted BEFORE UPDATE ON jobs FOR EACH ROW EXECUTE FUNCTION refuse()")
    scheduler, leadership, _ = world.scheduler(lease_s=600.0)
    await leadership.attempt()
    before = shown()
    with pytest.raises(UnavailableError):
        await scheduler.decide_once()
    assert shown() <= before + 1  # the one that was refused
    await world.sql.execute("DROP TRIGGER planted ON jobs")
    await scheduler.decide_once()
    assert (await world.targets())["b"] == 1

"""The scheduler service over a real Postgres."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from typing import Any, cast

import asyncpg
import pytest
from sqlalchemy import text
from sqlalchemy.exc import IntegrityError
from structlog.testing import capture_logs

from elasticdl_core.errors import FencedError, UnavailableError
from elasticdl_core.job import JobState
from elasticdl_core.ports.launcher import CapacityInfo
from elasticdl_core.scheduling import Plan, Quota, Resources, Snapshot, policy_by_name
from elasticdl_core.scheduling.pacing import pace
from elasticdl_runtime.database import snapshots
from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.scheduling import unpacked
from elasticdl_scheduler import loop

pytestmark = pytest.mark.integration


async def test_a_queued_job_starts_with_target_reason_intent_and_decision(world: Any) -> None:
    await world.submit("a")
    scheduler, leadership, _ = world.scheduler()
    await leadership.attempt()
    assert await scheduler.decide_once()
    job = await world.job("a")
    assert (job["state"], job["target_workers"]) == ("STARTING", 4)
    assert "4 workers" in job["target_reason"]
    intent = await world.sql.fetchrow("SELECT * FROM launch_intents")
    assert (intent["id"], intent["role"], intent["incarnation"]) == ("a/master/0/1", "master", 1)
    scaled = await world.sql.fetchrow("SELECT * FROM events WHERE kind = 'scaled'")
    assert json.loads(scaled["detail"])["to"] == 4
    row = await world.sql.fetchrow("SELECT * FROM plans")
    assert row["epoch"] == leadership.epoch
    snapshot = Snapshot.from_mapping(unpacked(json.loads(row["snapshot"])))
    assert snapshot.digest() == row["input_hash"]
    replayed = pace(snapshot, policy_by_name(row["policy"]).plan(snapshot))
    assert replayed == Plan.from_mapping(unpacked(json.loads(row["plan"])))


async def test_nothing_is_written_when_nothing_changed(world: Any) -> None:
    await world.submit("a")
    scheduler, leadership, _ = world.scheduler()
    await leadership.attempt()
    assert await scheduler.decide_once()
    before = await world.sql.fetch("SELECT * FROM jobs")
    for _ in range(3):
        assert not await scheduler.decide_once()
    assert await world.sql.fetch("SELECT * FROM jobs") == before
    assert await world.sql.fetchval("SELECT count(*) FROM plans") == 1


async def test_a_reason_is_told_anew_when_the_time_that_it_names_is_over(world: Any) -> None:
    """Who waited for more than was told had "expected at 12:00:00" from hours ago."""
    status = {"progress": {"records_done": 0, "records_total": 4000}, "throughput": {"4": 10.0}}
    await world.submit("runs", min_workers=4, status=json.dumps(status))
    scheduler, leadership, _ = world.scheduler()
    await leadership.attempt()
    await scheduler.decide_once()
    await world.running("runs")
    await world.submit("waits")
    await scheduler.decide_once()
    told = (await world.job("waits"))["target_reason"]
    assert "expected to fit at" in told
    await scheduler.decide_once()
    assert (await world.job("waits"))["target_reason"] == told
    await world.sql.execute(
        "UPDATE jobs SET target_detail = jsonb_set(target_detail, '{data,expected_at}', '1000') WHERE id = 'waits'"
    )
    await world.sql.execute(
        "UPDATE jobs SET status = $1 WHERE id = 'runs'", json.dumps({**status, "throughput": {"4": 5.0}})
    )
    await scheduler.decide_once()
    assert (await world.job("waits"))["target_reason"] not in ("", told)


async def test_a_leader_writes_no_reason_that_stands_already(world: Any) -> None:
    """Each new leader wrote those of all jobs again."""
    await world.submit("runs", min_workers=4)
    await world.submit("waits")
    first, leadership, _ = world.scheduler()
    await leadership.attempt()
    await first.decide_once()
    before = await world.sql.fetch("SELECT * FROM jobs")
    await leadership.release()
    second, leadership, _ = world.scheduler()
    await leadership.attempt()
    assert not await second.decide_once()
    assert await world.sql.fetch("SELECT * FROM jobs") == before


async def test_time_in_suspension_is_no_waiting(world: Any) -> None:
    """A job that its owner had suspended for a week went before all that had waited for an hour."""
    suspended = (JobState.QUEUED, JobState.SUSPENDED)
    for job_id in ("rested", "waited"):
        await world.submit(job_id, min_workers=4)
    await world.change("rested", *suspended)
    for job_id, days in (("rested", 8), ("waited", 2)):
        await world.sql.execute(f"UPDATE jobs SET created_at = now() - interval '{days} days' WHERE id = $1", job_id)
    await world.sql.execute("UPDATE jobs SET suspended_at = now() - interval '7 days' WHERE id = 'rested'")
    await world.change("rested", *reversed(suspended))
    scheduler, leadership, _ = world.scheduler(policy="fifo")
    await leadership.attempt()
    await scheduler.decide_once()
    assert await world.targets() == {"rested": 0, "waited": 4}
    await world.change("rested", *suspended, JobState.CANCELLED)
    assert 7 * 86_400 < (await world.job("rested"))["suspended_s"] < 7 * 86_400 + 3600


async def test_quotas_of_namespaces_are_in_force_with_the_next_pass(world: Any) -> None:
    await world.submit("a", namespace="ads")
    quotas = {"ads": Quota(limit=Resources(slots=3.0)), "nobody": Quota()}
    scheduler, leadership, _ = world.scheduler(policy="fair", quotas=quotas)
    await leadership.attempt()
    with capture_logs() as logs:
        await scheduler.decide_once()
        await scheduler.decide_once()
    assert await world.targets() == {"a": 3}
    told = [one["problem"] for one in logs if one["event"] == "quotas_contradict"]
    assert told == [f"there is a quota for {name!r}, and no namespace of that name" for name in ("ads", "nobody")]
    await world.sql.execute("INSERT INTO namespaces (name, limits) VALUES ('ads', '{\"max_slots\": 2}')")
    await scheduler.decide_once()
    assert await world.targets() == {"a": 2}
    written = json.loads(await world.sql.fetchval("SELECT quotas FROM scheduler_passes"))
    assert written["ads"] == {"weight": 1.0, "limit": 2.0}


async def test_only_rows_that_somebody_wrote_are_read_again(world: Any) -> None:
    """Each pass read and unpacked the status of all jobs."""
    for job_id in ("a", "b", "c"):
        await world.submit(job_id)
    scheduler, leadership, _ = world.scheduler()
    await leadership.attempt()
    database, seen = Database(world.url), cast("snapshots.Rows", {})

    async def read(known: snapshots.Rows | None = seen) -> dict[str, Any]:
        async with database.snapshot() as connection:
            return {row["id"]: row for row in await snapshots.read_jobs(connection, known)}

    try:
        first = await read()
        await world.sql.execute("UPDATE jobs SET status = '{\"worker_seconds\": 7}' WHERE id = 'a'")
        second = await read()
        assert (second["a"]["status"], second["b"] is first["b"]) == ({"worker_seconds": 7}, True)
        await scheduler.decide_once()
        assert await read() == await read({}), "events that belong to a row are written with it"
        await world.change("b", JobState.STARTING, JobState.CANCELLING, JobState.CANCELLED)
        await world.submit("d")
        assert list(await read()) == list(await read({})) == list(await read(None)) == list(seen) == ["a", "c", "d"]
    finally:
        await database.close()


async def test_jobs_that_did_not_change_are_the_same_objects_in_the_next_pass(world: Any) -> None:
    """Each pass worked out anew what all jobs are like, and weighed them anew."""
    for job_id in ("a", "b"):
        await world.submit(job_id)
    _, _, store = world.scheduler()
    first = (await store.read(CapacityInfo(4))).snapshot.by_id
    await world.sql.execute("UPDATE jobs SET status = '{\"worker_seconds\": 7}' WHERE id = 'a'")
    second = (await store.read(CapacityInfo(4))).snapshot.by_id
    assert (second["a"].attained_service, second["b"] is first["b"]) == (7.0, True)


async def test_memory_that_jobs_ask_for_is_given_out_once(world: Any) -> None:
    """Four workers that may take 1000 MiB each were started where there are 3100, 600 of them for the servers."""
    world.slots.memory_mib = 3100
    asks = {"model_def": "m.f", "worker_memory_mib": 1000, "ps_memory_mib": 300, "num_ps": 2}
    await world.submit("a", spec=json.dumps(asks))
    await world.submit("b", spec=json.dumps(asks))
    await world.submit("c", max_workers=1)
    scheduler, leadership, _ = world.scheduler()
    await leadership.attempt()
    await scheduler.decide_once()
    assert await world.targets() == {"a": 2, "b": 0, "c": 1}
    assert (await world.job("b"))["target_reason"] == (
        "its minimum of 1 worker needs 1600 MiB of memory, and 1500 are left beside the minimum of the job that "
        "goes before it"
    )


async def test_two_jobs_share_two_slots_as_explained(world: Any) -> None:
    world.slots.slots = 2
    await world.submit("a", max_workers=2)
    await world.submit("b", max_workers=2)
    scheduler, leadership, _ = world.scheduler()
    await leadership.attempt()
    await scheduler.decide_once()
    assert await world.targets() == {"a": 1, "b": 1}
    reason = (await world.job("a"))["target_reason"]
    assert reason.startswith("it has 1 of at most 2 workers")
    await world.submit("c", max_workers=2)
    await scheduler.decide_once()
    waiting = await world.job("c")
    assert waiting["state"] == "QUEUED"
    assert "its minimum of 1 worker needs 1 slot, and 0 are left" in waiting["target_reason"]


async def test_growth_waits_until_the_former_users_have_left(world: Any) -> None:
    await world.submit("a")
    scheduler, leadership, _ = world.scheduler()
    await leadership.attempt()
    await scheduler.decide_once()
    await world.running("a")
    world.slots.used = {"a": 4}
    await world.submit("b", min_workers=2)
    await scheduler.decide_once()
    assert await world.targets() == {"a": 2, "b": 0}
    waiting = await world.job("b")
    assert waiting["state"] == "QUEUED"
    assert "it is to have 2 workers; it has 0 until" in waiting["target_reason"]
    world.slots.used = {"a": 2}
    await scheduler.decide_once()
    assert await world.targets() == {"a": 2, "b": 2}
    assert (await world.job("b"))["state"] == "STARTING"


async def test_a_change_that_the_owner_asks_for_does_not_wait_for_the_cooldown(world: Any) -> None:
    await world.submit("a", max_workers=1)
    scheduler, leadership, _ = world.scheduler()
    await leadership.attempt()
    await scheduler.decide_once()
    await world.running("a")
    world.slots.used = {"a": 1}
    await world.sql.execute("UPDATE jobs SET max_workers = 3 WHERE id = 'a'")
    assert not await scheduler.decide_once(), "just scaled: growth waits"
    await world.sql.execute(
        "INSERT INTO events (job_id, kind, message) VALUES ('a', 'settings', 'max_workers: 1 -> 3')"
    )
    assert await scheduler.decide_once()
    assert await world.targets() == {"a": 3}


async def test_slots_of_jobs_that_are_over_are_not_given_out(world: Any) -> None:
    world.slots.used = {"gone": 3}
    await world.submit("a")
    scheduler, leadership, _ = world.scheduler()
    await leadership.attempt()
    await scheduler.decide_once()
    assert await world.targets() == {"a": 1}


async def test_a_more_important_minimum_evicts(world: Any) -> None:
    await world.submit("low", min_workers=3)
    scheduler, leadership, _ = world.scheduler()
    await leadership.attempt()
    await scheduler.decide_once()
    await world.running("low")
    world.slots.used = {"low": 4}
    await world.submit("high", min_workers=3, priority=10)
    await scheduler.decide_once()
    low = await world.job("low")
    assert (low["state"], low["desired"], low["target_workers"]) == ("RUNNING", "evict", 0)
    assert low["target_reason"].startswith("evicted: ")
    # It is asked only once, and its slots are not promised to itself while it leaves.
    assert not await scheduler.decide_once()
    await world.change("low", JobState.RUNNING, JobState.QUEUED)
    world.slots.used = {}
    await scheduler.decide_once()
    assert await world.targets() == {"high": 4, "low": 0}
    assert (await world.job("low"))["state"] == "QUEUED"


async def test_a_job_is_as_old_as_its_last_admission(world: Any) -> None:
    """After its first eviction a job older than the minimum run time had no protection any more."""
    await world.submit("a")
    scheduler, leadership, _ = world.scheduler()
    await leadership.attempt()
    await scheduler.decide_once()
    await world.running("a")
    await world.change("a", JobState.RUNNING, JobState.QUEUED)
    old = "UPDATE jobs SET started_at = now() - interval '1 hour', admitted_at = now() - interval '1 hour'"
    await world.sql.execute(old)
    await scheduler.decide_once()
    job = await world.job("a")
    assert (job["admitted_at"] - job["started_at"]).total_seconds() >= 3600
    present = await world.scheduler()[2].read(await world.slots.capacity())
    (view,) = present.snapshot.jobs
    assert present.snapshot.now - view.started_at < 3600


async def test_owners_wishes_come_first(world: Any) -> None:
    await world.submit("a")
    await world.sql.execute("UPDATE jobs SET desired = 'suspend'")
    scheduler, leadership, _ = world.scheduler()
    await leadership.attempt()
    assert not await scheduler.decide_once()
    assert (await world.job("a"))["state"] == "QUEUED"


async def test_measured_speeds_and_priors_reach_the_policy(world: Any) -> None:
    status = {
        "progress": {"records_done": 250, "records_total": 1000},
        "throughput": {"1": 10.0, "2": 18.0, "x": 3, "4": -1},
        "rescale_cost_s": 7.5,
    }
    await world.submit("past", kind="k")
    await world.change("past", JobState.QUEUED, JobState.STARTING, JobState.RUNNING, JobState.SUCCEEDED)
    await world.sql.execute("UPDATE jobs SET status = $1", json.dumps(status))
    await world.submit("new", status=json.dumps(status), kind="k")
    _, _, store = world.scheduler(quotas={"ads": Quota(limit=Resources(slots=2.0))})
    snapshot = (await store.read(await world.slots.capacity())).snapshot
    (job,) = snapshot.jobs
    assert job.throughput == {1: 10.0, 2: 18.0}
    assert job.prior_throughput == {1: 10.0, 2: 18.0}
    assert job.remaining_records == 750.0
    assert job.rescale_cost_s == 7.5
    assert snapshot.quotas["ads"].limit == Resources(slots=2.0)


async def test_many_jobs_of_one_kind_take_no_other_kinds_speeds_away(world: Any) -> None:
    """The last 500 of all kinds were read: an array of small jobs made all others unknown."""
    insert = """
        INSERT INTO jobs (id, name, type, spec, state, kind, finished_at, status)
        SELECT $1::text || n, 'job', 'training', '{}', 'SUCCEEDED', $1, now() - $2::int * interval '1 hour',
               jsonb_build_object('throughput', jsonb_build_object('1', $3::float))
        FROM generate_series(1, $4::int) AS n
    """
    await world.sql.execute("SET session_replication_role = replica")  # no triggers: these jobs are over
    await world.sql.execute(insert, "rare", 20, 5.0, 1)
    await world.sql.execute(insert, "array", 1, 900.0, 600)
    await world.sql.execute("SET session_replication_role = origin")
    await world.submit("waits", kind="rare")
    _, _, store = world.scheduler()

    async def priors() -> dict[str, dict[int, float]]:
        snapshot = (await store.read(await world.slots.capacity())).snapshot
        return {job.id: dict(job.prior_throughput) for job in snapshot.jobs}

    assert await priors() == {"waits": {1: 5.0}}
    await world.submit("next", kind="array")
    await world.submit("of-before")
    assert await priors() == {"waits": {1: 5.0}, "next": {1: 900.0}, "of-before": {}}, (
        "a new kind is looked up at once"
    )


async def test_a_short_job_that_never_ran_starts_behind_a_reservation(world: Any) -> None:
    """Its work was not known before its master counted, so it waited beside idle slots as long as the large one."""
    short = {"max_workers": 1, "kind": "k", "data_key": "d", "spec": json.dumps({"num_epochs": 1})}
    status = {"progress": {"records_done": 100, "records_total": 100}, "throughput": {"1": 10.0}}
    await world.submit("past", status=json.dumps(status), **short)
    await world.change("past", JobState.QUEUED, JobState.STARTING, JobState.RUNNING, JobState.SUCCEEDED)
    long = {"progress": {"records_done": 0, "records_total": 10_000}, "throughput": {"3": 10.0}}
    await world.submit("runs", min_workers=3, max_workers=3, status=json.dumps(long))
    scheduler, leadership, _ = world.scheduler()
    await leadership.attempt()
    await scheduler.decide_once()
    await world.running("runs")
    world.slots.used = {"runs": 3}
    await world.submit("large", min_workers=4)
    await world.submit("unknown", max_workers=1)
    await scheduler.decide_once()
    assert await world.targets() == {"past": 0, "runs": 3, "large": 0, "unknown": 0}
    await world.submit("short", **short)
    await scheduler.decide_once()
    assert await world.targets() == {"past": 0, "runs": 3, "large": 0, "unknown": 0, "short": 1}
    assert (await world.job("short"))["state"] == "STARTING"


async def test_only_one_leads_and_the_next_has_a_higher_epoch(world: Any) -> None:
    first, second = world.scheduler()[1], world.scheduler()[1]
    epoch = await first.attempt()
    assert epoch is not None
    assert await second.attempt() is None
    assert await first.attempt() == epoch
    await first.release()
    later = await second.attempt()
    assert later is not None
    assert later > epoch
    assert await first.attempt() is None


async def test_a_deposed_scheduler_writes_nothing(world: Any) -> None:
    await world.submit("a")
    _, leadership, store = world.scheduler()
    epoch = await leadership.attempt()
    present = await store.read(await world.slots.capacity())
    plan = policy_by_name("goodput").plan(present.snapshot)
    await world.sql.execute("UPDATE leadership SET expires_at = now() - interval '1 second'")
    assert await world.scheduler()[1].attempt() == epoch + 1
    with pytest.raises(FencedError):
        await store.write(epoch, present, plan)
    assert (await world.job("a"))["state"] == "QUEUED"
    assert await world.sql.fetchval("SELECT count(*) FROM plans") == 0
    assert leadership.epoch is None


async def test_a_plan_is_written_wholly_or_not_at_all(world: Any) -> None:
    await world.submit("a", max_workers=1)
    await world.submit("b", max_workers=1)
    _, leadership, store = world.scheduler()
    epoch = await leadership.attempt()
    present = await store.read(await world.slots.capacity())
    plan = policy_by_name("goodput").plan(present.snapshot)
    await world.sql.execute("ALTER TABLE plans ADD CONSTRAINT broken CHECK (policy = 'none')")
    with pytest.raises(IntegrityError, match="broken"):
        await store.write(epoch, present, plan)
    assert await world.targets() == {"a": 0, "b": 0}
    assert await world.sql.fetchval("SELECT count(*) FROM launch_intents") == 0
    await world.sql.execute("ALTER TABLE plans DROP CONSTRAINT broken")
    assert await store.write(epoch, present, plan) == 2
    assert await world.targets() == {"a": 1, "b": 1}


async def test_a_job_cancelled_since_the_snapshot_is_left_alone(world: Any) -> None:
    await world.submit("a")
    _, leadership, store = world.scheduler()
    epoch = await leadership.attempt()
    present = await store.read(await world.slots.capacity())
    plan = policy_by_name("goodput").plan(present.snapshot)
    await world.change("a", JobState.QUEUED, JobState.CANCELLED)
    assert await store.write(epoch, present, plan) == 0
    assert (await world.job("a"))["state"] == "CANCELLED"


async def test_without_a_capacity_nothing_changes(world: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(loop, "CAPACITY_S", 0.05)
    world.slots.down = True
    await world.submit("a")
    scheduler, leadership, _ = world.scheduler()
    await leadership.attempt()
    with pytest.raises(UnavailableError, match="capacity"):
        await scheduler.decide_once()
    assert await world.targets() == {"a": 0}


async def test_the_loop_is_woken_by_a_new_job(world: Any) -> None:
    """With an hour between full passes, only the notification can have started the job."""
    scheduler, _, _ = world.scheduler(interval_s=3600.0)
    stop, started = asyncio.Event(), asyncio.Event()
    states: list[str] = []
    listener = await asyncpg.connect(world.url)
    observer = await asyncpg.connect(world.url)

    async def look() -> None:
        states.append(await observer.fetchval("SELECT state FROM jobs WHERE id = 'b'"))
        if states[-1] == "STARTING":
            started.set()

    tasks: list[asyncio.Task[None]] = []
    lock = asyncio.Lock()

    async def guarded() -> None:
        async with lock:
            await look()

    await listener.add_listener("elasticdl_jobs", lambda *_: tasks.append(asyncio.create_task(guarded())))
    running = asyncio.create_task(scheduler.run(stop))
    try:
        await world.submit("a", max_workers=1)
        await world.submit("b", max_workers=1)
        async with asyncio.timeout(60):
            await started.wait()
    finally:
        stop.set()
        await running
        await asyncio.gather(*tasks)
        await listener.close()
        await observer.close()
    assert await world.sql.fetchval("SELECT expires_at < now() FROM leadership")


async def test_a_killed_scheduler_is_resumed_to_the_same_plan(world: Any) -> None:
    """Dropping a scheduler after any of its writes leaves a state from which another reaches the same plan."""
    for i in range(6):
        await world.submit(f"job-{i}", min_workers=1 + i % 2, max_workers=4, priority=i % 3)
    world.slots.slots = 7
    _, first, store = world.scheduler()
    epoch = await first.attempt()
    present = await store.read(await world.slots.capacity())
    whole = policy_by_name("goodput").plan(present.snapshot)
    # The first dies after deciding on part of the jobs only: the strongest form of an interrupted pass.
    part = dict(list(whole.allocations.items())[:2])
    await store.write(epoch, present, dataclasses.replace(whole, allocations=part))
    await world.sql.execute("UPDATE leadership SET expires_at = now() - interval '1 second'")
    scheduler, second, _ = world.scheduler()
    await second.attempt()
    while await scheduler.decide_once():
        pass
    assert await world.targets() == dict(sorted(whole.targets().items()))


async def test_a_job_that_started_with_few_slots_gets_the_rest_as_they_fall_free(world: Any) -> None:
    world.slots.used = {"gone": 3}
    await world.submit("a")
    scheduler, leadership, _ = world.scheduler()
    await leadership.attempt()
    await scheduler.decide_once()
    assert await world.targets() == {"a": 1}
    world.slots.used = {"a": 1}
    await scheduler.decide_once()
    assert await world.targets() == {"a": 4}


async def test_a_lease_from_before_the_clock_was_set_back_is_free(world: Any) -> None:
    """Nobody led until the clock had caught up: an hour, where it was set back by an hour."""
    _, dead, _ = world.scheduler()
    await dead.attempt()
    await world.sql.execute("UPDATE leadership SET expires_at = now() + interval '1 hour'")
    _, living, _ = world.scheduler()
    assert await living.attempt() == (dead.epoch or 0) + 1
    _, other, _ = world.scheduler()
    assert await other.attempt() is None


async def test_who_began_to_ask_before_another_took_the_lease_does_not_take_it(world: Any) -> None:
    """Seen from the beginning of its transaction the new lease was further ahead than one can last."""
    first, second = world.scheduler()[1], world.scheduler()[1]
    async with second._database.transaction() as connection:
        await connection.execute(text("SELECT now()"))
        epoch = await first.attempt()
        assert await second._take(connection) is None
    assert await first.attempt() == epoch

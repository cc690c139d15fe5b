"""One item that cannot be handled, planted in each background loop: all others are handled, and it is said."""

from __future__ import annotations

import os
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cli.doctor import put_off
from elasticdl_api.background.housekeeping import Housekeeping
from elasticdl_api.background.leftovers import LEFT_AT_ONCE, LeftoverCleanup
from elasticdl_api.background.relay import Relay
from elasticdl_api.background.watchdog import Watchdog
from elasticdl_api.store.retention import RetentionStore
from elasticdl_core.errors import InvalidInputError, UnavailableError
from elasticdl_core.ports.launcher import CapacityInfo, ProcessId, ProcessSpec, ProcessState, Role
from elasticdl_runtime.bundles import digest_of
from elasticdl_runtime.items import Items
from elasticdl_runtime.launcher.codec import capacity_from_message, capacity_to_message
from tests.fakes.launcher import FakeLauncher
from tests.integration.api.conftest import Api, known_for_ever, make_zip
from tests.integration.api.test_background import Clock, _launched, _master, _sql

pytestmark = pytest.mark.integration


async def metric(api: Api, loop: str) -> float:
    text = (await api.http.get("/metrics")).text
    (line,) = [line for line in text.splitlines() if "background_put_off{" in line and f'task="{loop}"' in line]
    assert [finding.detail for finding in put_off(text)]
    return float(line.split()[-1])


async def refuse(api: Api, table: str, when: str, condition: str) -> None:
    """Has the database refuse some statements."""
    await _sql(
        api,
        "CREATE FUNCTION refuse() RETURNS trigger AS $$ BEGIN RAISE EXCEPTION 'planted'; END $$ LANGUAGE plpgsql",
    )
    await _sql(
        api,
        f"CREATE TRIGGER planted BEFORE {when} ON {table} FOR EACH ROW WHEN ({condition}) EXECUTE FUNCTION refuse()",
    )


async def test_an_intent_that_raises_does_not_keep_the_others_from_being_launched(api: Api) -> None:
    bad, *good = [await api.submit() for _ in range(3)]
    for job_id in (bad, *good):
        await api.admit(job_id)
    # What an earlier release let in.
    await _sql(api, "UPDATE jobs SET spec = jsonb_set(spec, '{training_data}', '5') WHERE id = :id", id=bad)
    relay = Relay(api.services.intents, api.launcher, api.services.reaches)
    for _ in range(3):
        await relay.step()
    assert [spec.id.job_id for spec in api.launcher.launched] == good
    assert await metric(api, "relay") == 1
    later = await api.submit()
    await api.admit(later)
    await relay.step()
    assert api.launcher.launched[-1].id.job_id == later


async def test_an_agent_of_an_earlier_release_launches_no_master_until_it_is_replaced(
    api: Api, monkeypatch: pytest.MonkeyPatch
) -> None:
    job_id = await api.submit()
    await api.admit(job_id)
    clock = Clock()
    relay = Relay(api.services.intents, api.launcher, api.services.reaches, clock)
    told = capacity_to_message(await api.launcher.capacity())
    told.ClearField("job_revision")  # it knows of no such field

    async def old() -> CapacityInfo:
        return capacity_from_message(told)

    with monkeypatch.context() as patch:
        patch.setattr(api.launcher, "capacity", old)
        await relay.step()
    assert api.launcher.launched == []
    assert (await api.job(job_id))["state"] == "STARTING"
    assert await metric(api, "relay") == 1
    clock.now += 10
    await relay.step()
    assert [spec.id.job_id for spec in api.launcher.launched] == [job_id]


async def test_a_job_that_cannot_be_looked_after_does_not_keep_the_watchdog_from_the_others(api: Api) -> None:
    jobs = sorted([await _launched(api), await _launched(api)])
    await refuse(api, "jobs", "UPDATE", f"OLD.id = '{jobs[0]}'")
    for job_id in jobs:
        api.launcher.finish(_master(job_id), 1)
    clock = Clock()
    watchdog = Watchdog(api.services.intents, api.launcher, clock)
    for _ in range(3):
        await watchdog.step()
    query = "SELECT master_incarnation FROM jobs ORDER BY id"
    assert [row[0] for row in await _sql(api, query)] == [1, 2]
    assert await metric(api, "watchdog") == 1
    await _sql(api, "DROP TRIGGER planted ON jobs")
    clock.now += 1000
    await watchdog.step()
    assert [row[0] for row in await _sql(api, query)] == [2, 2]


class Stubborn(FakeLauncher):
    """Does not end the processes of some jobs."""

    def __init__(self, error: Exception) -> None:
        super().__init__()
        self.error = error
        self.jobs: set[str] = set()
        self.told: list[str] = []

    async def terminate_job(self, job_id: str, *, grace_s: float) -> None:
        self.told.append(job_id)
        if job_id in self.jobs:
            raise self.error
        await super().terminate_job(job_id, grace_s=grace_s)


@pytest.mark.parametrize("error", [InvalidInputError("no", fix=""), UnavailableError("slow")], ids=["raises", "slow"])
async def test_left_over_processes_that_cannot_be_ended_do_not_keep_the_others(api: Api, error: Exception) -> None:
    launcher, clock = Stubborn(error), Clock()
    for name in ("a", "b", "c"):
        await launcher.launch(ProcessSpec(ProcessId(f"{name}-aaaaaa", Role.WORKER, 0, 1)))
    launcher.jobs = {"a-aaaaaa"}
    cleanup = LeftoverCleanup(api.services.intents, launcher, clock)
    await cleanup.step()
    clock.now += 31
    for _ in range(3):
        try:
            await cleanup.step()
        except UnavailableError:
            assert isinstance(error, UnavailableError)
    assert [s.id.job_id for s in await launcher.list() if s.state is not ProcessState.EXITED] == ["a-aaaaaa"]
    assert launcher.told.count("a-aaaaaa") == 1
    assert await metric(api, "leftovers") == 1


async def test_jobs_that_were_evicted_do_not_keep_those_that_are_over_from_being_left(api: Api) -> None:
    over = await _launched(api)
    launcher = Stubborn(InvalidInputError("no", fix=""))
    await _sql(
        api,
        "INSERT INTO jobs (id, namespace, name, type, spec, state, priority, min_workers, max_workers) "
        "SELECT 'aaa-' || n, namespace, name, type, spec, 'QUEUED', priority, min_workers, max_workers "
        "FROM jobs, generate_series(1, :most) n",
        most=LEFT_AT_ONCE + 20,
    )
    master = api.master(over)
    master.epoch = 1
    await master.post("/state", to="FAILED", reason="x")
    await _sql(api, "UPDATE jobs SET finished_at = now() - interval '9 s' WHERE id = :id", id=over)
    for job_id in [over, *(f"aaa-{number}" for number in range(1, LEFT_AT_ONCE + 21))]:
        await launcher.launch(ProcessSpec(_master(job_id)))
        launcher.finish(_master(job_id), 0)
    cleanup = LeftoverCleanup(api.services.intents, launcher, Clock())
    await cleanup.step()
    assert launcher.told == [over]


async def test_rows_that_cannot_be_removed_do_not_keep_the_rest_of_housekeeping(api: Api) -> None:
    settings = api.services.settings.model_copy(update={"keep_events_days": 1.0, "keep_losses": 1})
    jobs = [await api.submit() for _ in range(3)]
    await api.http.post(f"/jobs/{jobs[0]}/cancel")
    await _sql(api, "UPDATE events SET at = now() - interval '9 days'")
    for job_id, most in zip(jobs, (2, 2, 9), strict=True):
        query = "INSERT INTO losses (job_id, model_version, loss) SELECT :id, n, n FROM generate_series(1, :most) n"
        await _sql(api, query, id=job_id, most=most)
    await refuse(api, "events", "DELETE", "true")
    await known_for_ever(api)
    stray = settings.bundles_dir / f"{'0' * 64}.zip"
    stray.write_bytes(b"")
    os.utime(stray, (1, 1))
    await Housekeeping(settings, api.services.retention).step()
    assert await metric(api, "housekeeping") == 1
    assert not stray.exists()
    counts = await _sql(api, "SELECT count(*) FROM losses GROUP BY job_id ORDER BY 1")
    assert [row[0] for row in counts] == [2, 2, 2]
    assert len(await _sql(api, "SELECT 1 FROM job_disk")) == 3


async def test_a_folder_that_could_not_be_removed_is_tried_again(api: Api, monkeypatch: pytest.MonkeyPatch) -> None:
    job_id = await api.submit()
    await api.http.post(f"/jobs/{job_id}/cancel")
    await _sql(api, "UPDATE jobs SET finished_at = now() - interval '9 days'")
    code = api.services.settings.job_dir(job_id) / "code"
    code.mkdir(parents=True)
    clock = Clock()

    class Always(RetentionStore):
        async def take_turn(self, every_s: float) -> bool:
            return True

    tidy = Housekeeping(api.services.settings, Always(api.services.database), clock)
    with monkeypatch.context() as patch:
        patch.setattr("elasticdl_api.background.housekeeping.remove_tree", lambda _: OSError("busy"))
        await tidy.step()
    assert code.exists()
    for passed in (1, 1000):
        clock.now += passed
        await tidy.step()
    assert not code.exists()


async def test_items_are_put_off_ever_longer_and_forgotten_when_they_go_well_or_are_gone() -> None:
    clock = Clock()
    items = Items("items of a test", clock)
    wrong: dict[str, Exception] = {"a": ValueError("x"), "b": UnavailableError("away")}
    tries: dict[str, list[float]] = {"a": [], "b": [], "c": []}

    async def work(name: str) -> None:
        tries[name].append(clock.now)
        if name in wrong:
            raise wrong[name]

    async def look(names: str = "cab") -> bool:
        round_ = items.begin()
        try:
            for name in names:
                await round_.handle(name, lambda name=name: work(name))  # type: ignore[misc]
            round_.end()
        except UnavailableError:
            return False
        return True

    for _ in range(200):
        await look()
        clock.now += 1
    assert len(tries["c"]) == 200
    for name in "ab":
        assert len(tries[name]) < 10
        pauses = [after - before for before, after in zip(tries[name], tries[name][1:], strict=False)]
        assert pauses[-1] > pauses[0]
    wrong.clear()
    clock.now += 1000
    assert await look()
    assert not items.is_put_off("a")
    # What is away for all is away: nothing is held against anyone.
    wrong |= dict.fromkeys("abc", UnavailableError("away"))
    begun: Any = {name: len(found) for name, found in tries.items()}
    assert not await look()
    assert {name: len(found) - begun[name] for name, found in tries.items()} == {"c": 1, "a": 1, "b": 0}
    assert not any(items.is_put_off(name) for name in "abc")


async def test_strays_are_found_however_many_names_there_are_and_whatever_they_are(api: Api) -> None:
    names = [f"nobody-{number}" for number in range(40_000)]  # more than a statement has arguments
    job_id = await api.submit()
    store = api.services.retention
    assert await store.list_jobs([*names, job_id]) == {job_id}
    assert await store.list_bundles(names) == frozenset()
    assert (await api.services.intents.read_states([*names, job_id])).keys() == {job_id}
    await known_for_ever(api)
    folder = api.services.settings.data_dir / "jobs"
    strays = [folder / "nobody-aaaaaa", Path(os.fsdecode(bytes(folder / "no-text-") + b"\xff"))]
    for stray in strays:
        stray.mkdir(parents=True)
        os.utime(stray, (1, 1))
    await Housekeeping(api.services.settings, store).step()
    assert not any(stray.exists() for stray in strays)


async def test_a_bundle_that_is_uploaded_while_strays_are_removed_keeps_its_file(api: Api) -> None:
    data = make_zip({"model.py": "x = 1"})
    digest = digest_of(data)
    path = api.services.settings.bundles_dir / f"{digest[7:]}.zip"
    other = path.with_name(f"{'0' * 64}.zip")
    await known_for_ever(api)
    for stray in (path, other):
        stray.parent.mkdir(parents=True, exist_ok=True)
        stray.write_bytes(b"left over")
        os.utime(stray, (1, 1))

    class Uploading(RetentionStore):
        async def list_bundles(self, digests: Any) -> frozenset[str]:
            known = await super().list_bundles(digests)
            assert (await api.http.put(f"/bundles/{digest}", content=data)).status_code == 201
            return known

    await Housekeeping(api.services.settings, Uploading(api.services.database)).step()
    assert (await api.http.get(f"/bundles/{digest}")).content == data
    assert [found.name for found in path.parent.iterdir()] == [path.name]

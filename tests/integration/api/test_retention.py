"""What goes when it is old, what stays as long as it is needed, and what a namespace may fill."""

from __future__ import annotations

import itertools
import os
import time
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from sqlalchemy import text

from elasticdl_api.background.housekeeping import EVERY_S, Housekeeping
from elasticdl_api.background.leftovers import LeftoverCleanup
from elasticdl_api.settings import ApiSettings
from elasticdl_api.store.turns import _TAKE, take_turn
from elasticdl_core.ports.launcher import ProcessId, ProcessSpec, Role
from elasticdl_runtime.bundles import digest_of
from elasticdl_runtime.cluster.paths import KNOWN_FILES
from tests.integration.api.conftest import MODULE, Api, known_for_ever, make_zip

pytestmark = pytest.mark.integration


@pytest.fixture
def settings(settings: ApiSettings) -> ApiSettings:
    ages = {"keep_jobs_days": 60.0, "keep_events_days": 20.0, "keep_logs_days": 10.0, "keep_bundles_days": 30.0}
    return settings.model_copy(update={**ages, "keep_losses": 300})


async def sql(api: Api, statement: str, **values: Any) -> list[Any]:
    async with api.services.database.transaction() as connection:
        found = await connection.execute(text(statement), values)
        return list(found.scalars()) if found.returns_rows else []


async def ended(api: Api, days: int, **changes: Any) -> str:
    """A job that ended so many days ago, with files."""
    job_id = await api.submit(**changes)
    await api.http.post(f"/jobs/{job_id}/cancel")
    await sql(api, "ALTER TABLE jobs DISABLE TRIGGER USER")
    age = {"days": days, "job": job_id}
    await sql(api, "UPDATE jobs SET finished_at = now() - make_interval(days => :days) WHERE id = :job", **age)
    await sql(api, "ALTER TABLE jobs ENABLE TRIGGER USER")
    await sql(api, "UPDATE events SET at = now() - make_interval(days => :days) WHERE job_id = :job", **age)
    for name in ("code/zoo/m.py", "logs/master-0.1.log", "artifacts/model.keras", "checkpoints/v/ps"):
        file = api.services.settings.job_dir(job_id) / name
        file.parent.mkdir(parents=True)
        file.write_bytes(b"x" * 10_000)
    return job_id


async def tidy(api: Api) -> None:
    await sql(api, "DELETE FROM leadership WHERE name = 'housekeeping'")
    await Housekeeping(api.services.settings, api.services.retention).step()


def has(api: Api, job_id: str) -> set[str]:
    folder = api.services.settings.job_dir(job_id)
    return {path.name for path in folder.iterdir()} if folder.exists() else set()


async def test_things_go_at_their_age_and_not_before(api: Api) -> None:
    jobs = {days: await ended(api, days) for days in (0, 5, 15, 25, 70)}
    running = await api.submit()
    await sql(api, "UPDATE events SET at = now() - interval '99 days' WHERE job_id = :job", job=running)
    await tidy(api)
    await tidy(api)
    kept = {"artifacts", "checkpoints"}
    assert has(api, jobs[0]) == {"artifacts", "checkpoints", "code", "logs"}
    assert has(api, jobs[5]) == kept | {"logs"}
    assert has(api, jobs[15]) == has(api, jobs[25]) == kept
    assert has(api, jobs[70]) == set()
    assert (await api.http.get(f"/jobs/{jobs[70]}")).status_code == 404
    for job_id, there in ((jobs[15], True), (jobs[25], False), (running, True)):
        assert bool((await api.http.get(f"/jobs/{job_id}/events")).json()) is there
    used = await sql(api, "SELECT bytes FROM job_disk WHERE job_id = :job", job=jobs[15])
    assert used[0] >= 20_000


async def test_a_job_stays_as_long_as_another_begins_with_what_it_saved(api: Api) -> None:
    old = await ended(api, 70)
    folder = api.services.settings.job_dir(old) / "checkpoints"
    user = await api.submit(checkpoint_dir_for_init=str(folder))
    await tidy(api)
    assert has(api, old) >= {"checkpoints"}
    assert (await api.http.post(f"/jobs/{user}/cancel")).status_code == 202
    await tidy(api)
    assert has(api, old) == set()


async def test_a_bundle_stays_as_long_as_it_may_be_needed(api: Api) -> None:
    bundles = {
        name: await api.upload({"model.py": MODULE + f"# {name}"}) for name in ("waits", "old", "young", "used")
    }
    waiting = await api.submit(model_bundle=bundles["waits"])
    await ended(api, 40, model_bundle=bundles["old"])
    await ended(api, 5, model_bundle=bundles["young"])
    await sql(api, "UPDATE bundles SET used_at = now() - interval '35 days'")
    assert (await api.http.head(f"/bundles/{bundles['used']}")).status_code == 200
    await tidy(api)
    await known_for_ever(api)
    folder = api.services.settings.bundles_dir
    for path in folder.iterdir():
        os.utime(path, (time.time() - 90_000, time.time() - 90_000))
    (folder / ".upload-lost").write_bytes(b"")
    os.utime(folder / ".upload-lost", (0, 0))
    await tidy(api)
    left = {f"sha256:{path.stem}" for path in folder.iterdir()}
    assert left == {bundles[name] for name in ("waits", "young", "used")}
    assert (await api.http.head(f"/bundles/{bundles['old']}")).status_code == 404
    await api.admit(waiting)
    master = api.master(waiting)
    await master.lease()
    assert (await master.request("GET", "/bundle")).status_code == 200
    again = await api.upload({"model.py": MODULE + "# old"})
    assert again == bundles["old"]
    assert (await api.http.head(f"/bundles/{again}")).status_code == 200


async def test_files_of_no_job_go_after_a_day(api: Api) -> None:
    await known_for_ever(api)
    jobs = api.services.settings.data_dir / "jobs"
    for name, age_s in (("gone-aaaaaa", 90_000), ("new-aaaaaa", 60)):
        (jobs / name / "artifacts").mkdir(parents=True)
        os.utime(jobs / name, (time.time() - age_s, time.time() - age_s))
    known = await api.submit()
    (jobs / known).mkdir()
    os.utime(jobs / known, (0, 0))
    await tidy(api)
    assert {path.name for path in jobs.iterdir()} == {"new-aaaaaa", known}


async def test_files_that_the_database_may_not_know_stay(api: Api) -> None:
    """Whoever named an empty database for a data directory lost all models and all code that were there."""
    folders = [api.services.settings.data_dir / "jobs", api.services.settings.bundles_dir]

    async def look(*, goes_back: str = "") -> set[str]:
        for folder in folders:
            folder.mkdir(parents=True, exist_ok=True)
            (folder / "stray-aaaaaa").touch()
            os.utime(folder / "stray-aaaaaa", (time.time() - 90_000,) * 2)
        await sql(api, goes_back or "SELECT 1")
        await tidy(api)
        return {path.name for folder in folders for path in folder.iterdir()}

    assert await look() == {"stray-aaaaaa"}, "a directory that was never seen before"
    await known_for_ever(api)
    assert await look() == set()
    emptied = "DELETE FROM leadership WHERE name LIKE 'looks at %'"
    assert await look(goes_back=emptied) == {"stray-aaaaaa"}
    assert await look() == {"stray-aaaaaa"}, "and from then on"
    await known_for_ever(api)
    restored = "UPDATE leadership SET epoch = epoch - 1 WHERE name LIKE 'looks at %'"
    assert await look(goes_back=restored) == {"stray-aaaaaa"}
    assert await look() == {"stray-aaaaaa"}
    file = api.services.settings.data_dir / KNOWN_FILES
    for torn in ("", "[]", '{"name": 7}'):
        await known_for_ever(api)
        file.write_text(torn)
        assert await look() == {"stray-aaaaaa"}


async def test_one_replica_tidies_up_at_a_time(api: Api) -> None:
    assert await api.services.retention.take_turn(EVERY_S)
    assert not await api.services.retention.take_turn(EVERY_S)
    old = await ended(api, 70)
    await Housekeeping(api.services.settings, api.services.retention).step()
    assert (await api.http.get(f"/jobs/{old}")).status_code == 200


async def test_who_began_to_ask_before_another_took_the_turn_does_not_take_it_too(api: Api) -> None:
    database = api.services.database
    async with database.transaction() as connection:
        await connection.execute(text("SELECT now()"))
        assert await take_turn(database, "tidying", 600.0)
        assert (await connection.execute(_TAKE, {"name": "tidying", "every": 600.0})).first() is None


async def test_a_namespace_that_is_full_may_add_nothing(api: Api, tmp_path: Path) -> None:
    full, other = await api.token("full", "submit"), await api.token("other", "submit")
    await sql(api, """UPDATE namespaces SET limits = '{"disk_mib": 1}' WHERE name = 'full'""")
    data = make_zip({"model.py": MODULE, "data.bin": os.urandom(700_000)})
    more = make_zip({"model.py": MODULE, "data.bin": os.urandom(500_000)})
    for headers in (full, other):
        for content in (data, more):
            put = await api.http.put(f"/bundles/{digest_of(content)}", content=content, headers=headers)
            assert put.status_code in (200, 201)
    spec = {"name": "digits", "model_def": "model.custom_model", "model_bundle": digest_of(data)}
    spec |= {"training_data": "words", "custom_data_reader": "custom_model"}
    refused = await api.http.post("/jobs", json=spec, headers=full)
    assert (refused.status_code, refused.json()["code"]) == (409, "disk_limit")
    third = make_zip({"model.py": MODULE, "x.bin": b"x"})
    refused = await api.http.put(f"/bundles/{digest_of(third)}", content=third, headers=full)
    assert (refused.status_code, refused.json()["code"]) == (409, "disk_limit")
    assert (await api.http.post("/jobs", json=spec, headers=other)).status_code == 201


async def test_sockets_go_when_a_job_whose_processes_left_is_over(api: Api) -> None:
    job_id = await ended(api, 1)
    active = await api.submit()
    await api.admit(active)
    told: list[str] = []
    for one in (job_id, active):
        process = ProcessId(one, Role.WORKER, 0, 1)
        await api.launcher.launch(ProcessSpec(process))
        api.launcher.finish(process)
    launcher = api.launcher

    class Listening:
        """The launcher, and which jobs it was told to end."""

        def __getattr__(self, name: str) -> Any:
            return getattr(launcher, name)

        async def terminate_job(self, job: str, *, grace_s: float) -> None:
            told.append(job)
            await launcher.terminate_job(job, grace_s=grace_s)

    cleanup = LeftoverCleanup(api.services.intents, Listening())  # type: ignore[arg-type]
    await cleanup.step()
    await cleanup.step()
    assert told == [job_id]


async def test_the_log_of_changes_tokens_and_sessions_go_at_their_age(api: Api) -> None:
    await api.token("team-a", name="gone", revoked_at=datetime.now(UTC) - timedelta(days=91))
    await api.token("team-a", name="expired", expires_at=datetime.now(UTC) - timedelta(days=91))
    await api.token("team-a", name="young", revoked_at=datetime.now(UTC) - timedelta(days=89))
    await api.token("team-a", name="valid", created_at=datetime.now(UTC) - timedelta(days=999))
    await api.http.post("/tokens", json={"name": "one"})
    await api.http.post("/tokens", json={"name": "two"})
    await sql(api, "UPDATE audit_log SET at = now() - interval '401 days' WHERE detail->>'name' = 'one'")
    for secret, ends in (("a", "1 hour"), ("b", "-1 second")):
        values = f"('{secret}', '', now() + interval '{ends}')"
        await sql(api, f"INSERT INTO sessions (sha256, token_sha256, expires_at) VALUES {values}")
    await tidy(api)
    assert sorted(await sql(api, "SELECT name FROM tokens")) == ["one", "two", "valid", "young"]
    assert await sql(api, "SELECT detail->>'name' FROM audit_log") == ["two"]
    assert await sql(api, "SELECT sha256 FROM sessions") == ["a"]


async def test_the_losses_of_a_long_training_become_coarser(api: Api) -> None:
    long, short = await api.submit(), await api.submit()
    for job_id, number in ((long, 900), (short, 100)):
        await sql(
            api,
            "INSERT INTO losses (job_id, model_version, loss) SELECT :job, n * 10, n FROM generate_series(1, :n) n",
            job=job_id,
            n=number,
        )
    await tidy(api)
    left = await sql(api, "SELECT model_version FROM losses WHERE job_id = :job ORDER BY 1", job=long)
    assert 150 <= len(left) <= 300
    assert (left[0], left[-1]) == (10, 9000)
    steps = {later - one for one, later in itertools.pairwise(left)}
    assert max(steps) <= 60
    assert len(await sql(api, "SELECT 1 FROM losses WHERE job_id = :job", job=short)) == 100

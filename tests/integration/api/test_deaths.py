"""An api that dies between two steps of a change: the next one goes on, and what was half done heals."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import pytest

from elasticdl_agent.agent import Agent
from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.processes.environment import Endpoints
from elasticdl_api.background.housekeeping import Housekeeping
from elasticdl_api.background.leftovers import LeftoverCleanup
from elasticdl_api.services import Services
from elasticdl_api.store.retention import RetentionStore
from elasticdl_api.store.wakeups import Wakeups
from elasticdl_core.ports.launcher import ProcessId, ProcessSpec, ProcessState, Role
from elasticdl_runtime import failpoints
from elasticdl_runtime.bundles import digest_of
from elasticdl_runtime.failpoints import VARIABLE, arm
from tests.integration.api.conftest import MODULE, Api, known_for_ever, make_zip
from tests.integration.api.test_process import _environment, _serving

pytestmark = pytest.mark.integration
COMMANDS = dict.fromkeys(Role, (sys.executable, "-c", ""))
PLACE = "/cluster/reservations/shop"
ZIP = make_zip({"model.py": MODULE})
BUNDLE = f"/bundles/{digest_of(ZIP)}"


@pytest.fixture
def armory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Iterator[Path]:
    """The folder in which failpoints of this process are armed."""
    folder = tmp_path / "armory"
    folder.mkdir()
    monkeypatch.setenv(VARIABLE, str(folder))
    failpoints._folder.cache_clear()
    yield folder
    failpoints._folder.cache_clear()


async def age_all(api: Api, folder: Path) -> None:
    """Lets time pass: what lies in a folder is of long ago, and it is time to tidy up again."""
    await known_for_ever(api)
    for path in folder.iterdir():
        os.utime(path, (1, 1))
    await Housekeeping(api.services.settings, RetentionStore(api.services.database)).step()


def next_api(api: Api) -> Api:
    """Another api over the same database, files and processes, as the one that follows a dead one."""
    one = api.services
    services = Services(one.settings, one.database, api.launcher, Wakeups(one.database), one.examiners)
    return Api(services, api.launcher)


async def ended_job(http: httpx.AsyncClient) -> str:
    assert (await http.put(BUNDLE, content=ZIP)).status_code == 201
    spec = {"model_def": "model.custom_model", "model_bundle": digest_of(ZIP), "training_data": "/d"}
    job_id = str((await http.post("/jobs", json=spec)).json()["id"])
    assert (await http.post(f"/jobs/{job_id}/cancel")).status_code == 202
    return job_id


async def test_what_is_left_of_a_job_whose_api_died_deleting_it_goes(api: Api, armory: Path) -> None:
    job_id = await api.submit()
    await api.http.post(f"/jobs/{job_id}/cancel")
    folder = api.services.settings.job_dir(job_id)
    (folder / "logs").mkdir(parents=True)
    await api.launcher.launch(ProcessSpec(ProcessId(job_id, Role.WORKER, 0, 0)))
    fired = arm(armory, "api.after_job_removed", "raise")
    assert (await api.http.delete(f"/jobs/{job_id}")).status_code == 503
    assert fired.exists() and folder.exists()
    following = next_api(api)
    async with following.http as http:
        assert (await http.delete(f"/jobs/{job_id}")).status_code == 404
    now = [0.0]
    cleanup = LeftoverCleanup(following.services.intents, api.launcher, lambda: now[0])
    for _ in range(2):
        await cleanup.step()
        now[0] += 31.0
    assert [one for one in await api.launcher.list() if one.state is not ProcessState.EXITED] == []
    await age_all(following, folder.parent)
    assert not folder.exists()


@pytest.mark.parametrize("again", [False, True])
async def test_a_bundle_whose_api_died_storing_it_is_uploaded_again_or_goes(
    api: Api, armory: Path, again: bool
) -> None:
    fired = arm(armory, "api.after_bundle_placed", "raise")
    assert (await api.http.put(BUNDLE, content=ZIP)).status_code == 503
    folder = api.services.settings.bundles_dir
    assert fired.exists() and len(list(folder.iterdir())) == 1
    following = next_api(api)
    async with following.http as http:
        assert (await http.get(BUNDLE)).status_code == 404
        if again:
            assert (await http.put(BUNDLE, content=ZIP)).status_code == 201
            assert (await http.get(BUNDLE)).content == ZIP
    await age_all(following, folder)
    assert len(list(folder.iterdir())) == again


@pytest.mark.slow
@pytest.mark.timeout(300)
@pytest.mark.parametrize(
    ("name", "method", "path"),
    [
        ("api.after_reservation", "PUT", PLACE),
        ("api.after_reservation", "DELETE", PLACE),
        ("api.before_bundle_placed", "PUT", BUNDLE),
        ("api.after_bundle_placed", "PUT", BUNDLE),
        ("api.after_job_removed", "DELETE", "/jobs/{job}"),
    ],
)
async def test_the_next_api_goes_on_where_a_killed_one_was(
    empty_database_url: str,
    tmp_path: Path,
    tmp_path_factory: pytest.TempPathFactory,
    name: str,
    method: str,
    path: str,
) -> None:
    run, armory, data = tmp_path_factory.mktemp("r"), tmp_path / "armory", tmp_path / "data"
    armory.mkdir()
    sent: dict[str, Any] = {"content": ZIP} if path == BUNDLE else {}
    if (method, path) == ("PUT", PLACE):
        sent = {"json": {"slots": 1}}
    async with Agent(
        AgentDirectories(tmp_path / "agent", run),
        Endpoints("s" * 32, "http://127.0.0.1:1", ""),
        "n" * 32,
        2,
        COMMANDS,
    ) as agent:
        names = {"ELASTICDL_AGENT": agent.address, "ELASTICDL_NODE_TOKEN": "n" * 32, VARIABLE: str(armory)}
        environment = _environment(empty_database_url, data, **names)
        async with _serving(environment) as (_, http):
            if (method, path) == ("DELETE", PLACE):
                assert (await http.put(PLACE, json={"slots": 1})).status_code == 200
            if "{job}" in path:
                path = path.format(job=await ended_job(http))
            fired = arm(armory, name, "kill")
            with pytest.raises(httpx.TransportError):
                await http.request(method, path, **sent)
            assert fired.exists()
        async with _serving(environment) as (_, http):
            if path == PLACE:
                entries = (await http.get("/audit?target=shop")).json()["entries"]
                assert entries[0]["action"] == f"reservation.{method.lower()}"
            if path == BUNDLE:
                assert (await http.get(BUNDLE)).status_code == 404
            wanted = {PLACE: 200, BUNDLE: 201}[path] if method == "PUT" else 404
            assert (await http.request(method, path, **sent)).status_code == wanted
            left = (await http.get("/cluster/reservations")).json()["reservations"]
            assert [one["name"] for one in left] == (["shop"] if (method, path) == ("PUT", PLACE) else [])
            if path == BUNDLE:
                assert (await http.get(BUNDLE)).content == ZIP

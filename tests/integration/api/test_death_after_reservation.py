"""An api that dies after the agent changed a reservation: what was done is in the audit log, the next api goes on."""

from __future__ import annotations

import sys
from pathlib import Path

import httpx
import pytest

from elasticdl_agent.agent import Agent
from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.processes.environment import Endpoints
from elasticdl_core.ports.launcher import Role
from elasticdl_runtime.failpoints import VARIABLE, arm
from tests.integration.api.test_process import _environment, _serving

pytestmark = [pytest.mark.integration, pytest.mark.slow, pytest.mark.timeout(300)]
COMMANDS = dict.fromkeys(Role, (sys.executable, "-c", ""))
PLACE = "/cluster/reservations/shop"


@pytest.mark.parametrize("method", ["PUT", "DELETE"])
async def test_the_next_api_knows_what_the_dead_one_did(
    empty_database_url: str, tmp_path: Path, tmp_path_factory: pytest.TempPathFactory, method: str
) -> None:
    run, armory = tmp_path_factory.mktemp("r"), tmp_path / "armory"
    armory.mkdir()
    body = {"slots": 1} if method == "PUT" else None
    async with Agent(
        AgentDirectories(tmp_path / "agent", run),
        Endpoints("s" * 32, "http://127.0.0.1:1", ""),
        "n" * 32,
        2,
        COMMANDS,
    ) as agent:
        names = {"ELASTICDL_AGENT": agent.address, "ELASTICDL_NODE_TOKEN": "n" * 32, VARIABLE: str(armory)}
        environment = _environment(empty_database_url, tmp_path / "data", **names)
        async with _serving(environment) as (_, http):
            if method == "DELETE":
                assert (await http.put(PLACE, json={"slots": 1})).status_code == 200
            fired = arm(armory, "api.after_reservation", "kill")
            with pytest.raises(httpx.TransportError):
                await http.request(method, PLACE, json=body)
            assert fired.exists()
        async with _serving(environment) as (_, http):
            entries = (await http.get("/audit?target=shop")).json()["entries"]
            assert entries[0]["action"] == f"reservation.{method.lower()}"
            assert (await http.request(method, PLACE, json=body)).status_code == (200 if method == "PUT" else 404)
            left = (await http.get("/cluster/reservations")).json()["reservations"]
            assert [one["name"] for one in left] == (["shop"] if method == "PUT" else [])

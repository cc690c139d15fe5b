"""What a job asks of its pods: refused at its submission, or told to the launcher."""

from __future__ import annotations

import pytest

from elasticdl_api.background.relay import Relay
from elasticdl_core.pods import PodRequest, PodRules
from tests.integration.api.conftest import Api

pytestmark = pytest.mark.integration
ASKED = {
    "image": "registry.example/own:1",
    "volume": "claim_name=own,mount_path=/mnt/own",
    "master_resource_request": "cpu=1,memory=1Gi",
}


async def problems(api: Api) -> dict[str, str]:
    response = await api.http.post("/jobs", json=await api.spec(**ASKED))
    assert response.status_code == 422, response.text
    return {one["field"]: one["fix"] for one in response.json()["problems"]}


async def test_a_cluster_whose_processes_are_no_pods_refuses_them_at_the_submission(api: Api) -> None:
    found = await problems(api)
    assert list(found) == ["image", "volume", "master_resource_request"]
    assert "Kubernetes" in found["image"]


async def test_what_the_administrator_does_not_allow_is_refused_at_the_submission(api: Api) -> None:
    api.launcher.pods = PodRules(images=("registry.example/*",), most_cpu="500m")
    assert list(await problems(api)) == ["volume", "master_resource_request"]


async def test_what_is_allowed_comes_to_the_launcher_with_the_master(api: Api) -> None:
    api.launcher.pods = PodRules(("registry.example/*",), ("own",))
    await api.admit(await api.submit(**ASKED))
    await Relay(api.services.intents, api.launcher, api.services.reaches).step()
    assert api.launcher.launched[0].pod == PodRequest(cpu="1", volume=ASKED["volume"])
    assert api.launcher.launched[0].memory_mib == 1024

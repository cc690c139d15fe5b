"""``elasticdl up --kubernetes`` and ``down --kubernetes``, on the fake cluster."""

from __future__ import annotations

import base64
from collections.abc import AsyncIterator, Iterator
from typing import Any

import kubernetes_validate
import pytest

from elasticdl_agent.kubernetes.access import KubernetesAccess
from elasticdl_agent.kubernetes.client import KubernetesClient
from elasticdl_agent.kubernetes.command import set_up, take_down
from elasticdl_agent.kubernetes.deployment import DeploymentOptions, KubernetesDeployment, manifests, path_of
from elasticdl_agent.kubernetes.manifests import MANAGED
from elasticdl_agent.kubernetes.ownership import take_namespace
from elasticdl_agent.kubernetes.pod_states import FINALIZER, JOB
from elasticdl_core.errors import ConflictError, InvalidInputError, NotFoundError, UnavailableError
from tests.fakes.kubernetes.cluster import FakeKubernetes

pytestmark = pytest.mark.contract
IMAGE = "registry.example/elasticdl:1"
STORES = {"database_url": "postgresql://u:p@db/x", "redis_url": "redis://r"}


@pytest.fixture
def cluster() -> Iterator[FakeKubernetes]:
    with FakeKubernetes() as found:
        yield found


@pytest.fixture
async def client(cluster: FakeKubernetes) -> AsyncIterator[KubernetesClient]:
    async with KubernetesClient(KubernetesAccess.of_kubeconfig(cluster.kubeconfig())) as found:
        yield found


def deployment(client: KubernetesClient, told: list[str], **options: str) -> KubernetesDeployment:
    return KubernetesDeployment(client, DeploymentOptions(**{"image": IMAGE, **options}), told.append)


def names(cluster: FakeKubernetes, plural: str) -> list[str]:
    return cluster.do(lambda: [found["metadata"]["name"] for found in cluster.store.all(plural)])


async def secret(client: KubernetesClient, space: str = "elasticdl") -> dict[str, str]:
    found = await client.call("GET", f"/api/v1/namespaces/{space}/secrets/elasticdl")
    return {name: base64.b64decode(value).decode() for name, value in found["data"].items()}


def pod(name: str, labels: dict[str, str], **metadata: Any) -> dict[str, Any]:
    return {
        "apiVersion": "v1",
        "kind": "Pod",
        "metadata": {"name": name, "labels": labels, **metadata},
        "spec": {"containers": [{"name": "c", "image": "i"}]},
    }


async def test_it_is_set_up_and_a_second_time_made_what_the_options_say(
    cluster: FakeKubernetes, client: KubernetesClient
) -> None:
    told: list[str] = []
    await deployment(client, told, storage_class="nfs").set_up(60)
    workloads = [*names(cluster, "deployments"), *names(cluster, "statefulsets")]
    assert sorted(workloads) == [f"elasticdl-{one}" for one in ("agent", "api", "postgres", "redis", "scheduler")]
    assert {f"* Deployment {name} is ready" for name in names(cluster, "deployments")} <= set(told)
    made = await secret(client)
    assert made["database_url"].startswith(f"postgresql://elasticdl:{made['postgres_password']}@elasticdl-postgres.")
    # Again, with another image, and without the class of a volume that is there.
    await deployment(client, told, image="registry.example/elasticdl:2").set_up(60)
    assert await secret(client) == made
    agent = await client.call("GET", "/apis/apps/v1/namespaces/elasticdl/deployments/elasticdl-agent")
    (container,) = agent["spec"]["template"]["spec"]["containers"]
    assert container["image"] == "registry.example/elasticdl:2"
    assert {"name": "ELASTICDL_KUBERNETES_IMAGE", "value": "registry.example/elasticdl:2"} in container["env"]
    claim = await client.call("GET", "/api/v1/namespaces/elasticdl/persistentvolumeclaims/elasticdl-data")
    assert claim["spec"]["storageClassName"] == "nfs"


async def test_what_it_waits_for_is_told_and_the_same_command_goes_on(
    cluster: FakeKubernetes, client: KubernetesClient
) -> None:
    cluster.rolls_out = False
    told: list[str] = []
    with pytest.raises(UnavailableError, match="Deployment elasticdl-api"):
        await deployment(client, told).set_up(0.5)
    await client.call(
        "POST", "/api/v1/namespaces/elasticdl/pods", pod("api-1", {"app.kubernetes.io/part-of": "elasticdl"})
    )
    waiting = {"state": {"waiting": {"reason": "ImagePullBackOff", "message": "no such image"}}}
    status = {"status": {"phase": "Pending", "containerStatuses": [waiting]}}
    await client.call(
        "PATCH",
        "/api/v1/namespaces/elasticdl/pods/api-1/status",
        status,
        kind="application/merge-patch+json",
    )
    with pytest.raises(UnavailableError, match="api-1: ImagePullBackOff: no such image"):
        await deployment(client, told).set_up(2.5)
    assert told.count("! api-1: ImagePullBackOff: no such image") == 1
    cluster.roll_out()
    await deployment(client, told).set_up(60)


async def test_down_keeps_data_and_lets_go_of_pods_of_jobs(cluster: FakeKubernetes, client: KubernetesClient) -> None:
    told: list[str] = []
    one = deployment(client, told)
    await one.set_up(60)
    space = "/api/v1/namespaces/elasticdl"
    labels = {MANAGED: "elasticdl", JOB: "digits-1"}
    anchor = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": {"name": "job-digits-1", "labels": labels}}
    uid = (await client.call("POST", f"{space}/configmaps", anchor))["metadata"]["uid"]
    owner = {"apiVersion": "v1", "kind": "ConfigMap", "name": "job-digits-1", "uid": uid}
    await client.call(
        "POST", f"{space}/pods", pod("digits-1-ps-0-1", labels, finalizers=[FINALIZER], ownerReferences=[owner])
    )
    kept = await one.take_down(delete_data=False)
    assert kept == ["PersistentVolumeClaim/elasticdl-data", "Secret/elasticdl"]
    assert "- job digits-1" in told
    for plural in ("deployments", "statefulsets", "services", "pods", "configmaps", "clusterroles", "roles"):
        assert names(cluster, plural) == [], plural
    before = await secret(client)
    await one.set_up(60)
    assert await secret(client) == before, "the database knows these tokens"
    assert await one.take_down(delete_data=True) == []
    assert names(cluster, "persistentvolumeclaims") == names(cluster, "secrets") == []
    with pytest.raises(NotFoundError):
        await one.take_down(delete_data=True)


async def test_it_takes_no_namespace_of_others(cluster: FakeKubernetes, client: KubernetesClient) -> None:
    await client.call("POST", "/api/v1/namespaces/default/pods", pod("web", {}))
    with pytest.raises(ConflictError, match="other pods run in the namespace default"):
        await deployment(client, [], namespace="default").set_up(60)
    await client.call("POST", "/api/v1/namespaces", {"metadata": {"name": "elsewhere"}})
    await take_namespace(client, "elsewhere", "the secret of an agent of another place")
    with pytest.raises(ConflictError, match="another ElasticDL makes its pods in the namespace elsewhere"):
        await deployment(client, [], namespace="elsewhere").set_up(60)
    assert names(cluster, "networkpolicies") == []


async def test_the_mark_of_its_agent_goes_with_it(cluster: FakeKubernetes, client: KubernetesClient) -> None:
    one = deployment(client, [])
    await one.set_up(60)
    await take_namespace(client, "elasticdl", (await secret(client))["cluster_secret"])
    await one.set_up(60)
    await one.take_down(delete_data=True)
    await one.set_up(60)


async def test_other_stores_than_those_that_are_there_are_refused(client: KubernetesClient) -> None:
    await deployment(client, [], **STORES).set_up(60)
    with pytest.raises(ConflictError, match="another database_url"):
        await deployment(client, [], **{**STORES, "database_url": "postgresql://other"}).set_up(60)


def test_what_is_made_is_of_its_namespace_and_still_valid() -> None:
    """That the base is valid for all versions the tests of its files say."""
    for stores in ({}, STORES):
        made = manifests(DeploymentOptions("ml", IMAGE, "registry.example/services:1", "nfs", **stores))
        text = str(made)
        assert "elasticdl.svc" not in text and "'namespace': 'elasticdl'" not in text
        wide = {path_of(one) for one in made if "/namespaces/ml/" not in path_of(one)}
        assert {path.rpartition("/")[2] for path in wide} == {"ml", "elasticdl-jobs-ml", "elasticdl-capacity-ml"}
        assert ("StatefulSet" in text) == (not stores)
    for found in made:
        if found["kind"] in ("Deployment", "Namespace", "ClusterRoleBinding", "PersistentVolumeClaim"):
            kubernetes_validate.validate(found, "1.37", strict=True)


@pytest.mark.parametrize("wrong", [{"image": ""}, {"image": "A b"}, {"redis_url": "redis://r"}])
def test_what_cannot_be_set_up_is_refused(wrong: dict[str, str]) -> None:
    with pytest.raises(InvalidInputError):
        DeploymentOptions(**{"image": IMAGE, **wrong}).check()


def test_the_commands_say_where_it_is_and_what_is_left(
    cluster: FakeKubernetes, monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    monkeypatch.setenv("KUBECONFIG", str(cluster.kubeconfig()))
    set_up(DeploymentOptions("ml", IMAGE), "", 60)
    shown = capsys.readouterr().out
    assert "* StatefulSet elasticdl-redis is ready" in shown
    assert "up at http://elasticdl-api.ml.svc:8850 within the cluster" in shown
    assert "kubectl -n ml port-forward service/elasticdl-api 8850" in shown
    take_down("ml", "fake", delete_data=False)
    assert "Kept with the data of all jobs: PersistentVolumeClaim/elasticdl-data" in capsys.readouterr().out

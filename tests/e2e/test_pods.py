"""Whole jobs on Kubernetes: what they survive on one machine they survive there.

On a fake cluster whose pods are processes, and by ``./dev kubernetes`` on a real one of four nodes.
"""

from __future__ import annotations

import json
import time
from collections.abc import Iterator

import pytest

from elasticdl_agent.kubernetes.pod_states import INDEX, JOB, ROLE
from tests.chaos.counting import CountingJob, counting_job
from tests.chaos.test_group_faults import group_job, quiet_job
from tests.contract.launcher.real_cluster import CLUSTER, KUBECONFIG
from tests.e2e.pod_services import FakeMachines, PodCluster, fake_services, real_services
from tests.fakes.kubernetes.node import can_run

pytestmark = [pytest.mark.e2e, pytest.mark.slow, pytest.mark.timeout(1800)]
RECORDS = 600


@pytest.fixture(scope="module", params=["fake", "real"])
def pods(request: pytest.FixtureRequest) -> Iterator[PodCluster]:
    """A cluster of three nodes with a worker's room each, beside one for the services."""
    if request.param == "fake" and not can_run():
        pytest.skip("pods of the fake cluster take mount namespaces")
    if request.param == "real" and not (KUBECONFIG and CLUSTER):
        pytest.skip("no real cluster: see tests/contract/launcher/real_cluster.py")
    with (fake_services if request.param == "fake" else real_services)() as cluster:
        yield cluster


@pytest.fixture(autouse=True)
def all_nodes(pods: PodCluster) -> Iterator[None]:
    """Nodes that a test closed are open for the next one."""
    yield
    for node in pods.items("/api/v1/nodes"):
        if node.get("spec", {}).get("unschedulable"):
            pods.cordon(node["metadata"]["name"], False)


def working(pods: PodCluster, job: CountingJob, workers: int) -> None:
    """Waits until that many workers run, and train."""
    pods.until(lambda: len(pods.pods(job.id, "worker")) == workers, f"{workers} workers run")
    begun = job.applied()
    pods.until(lambda: job.applied() > begun, "they train")


def replaced(pods: PodCluster, job: CountingJob, pod: dict) -> None:
    """Waits until another one runs in the place of a pod."""
    role, index = pod["metadata"]["labels"][ROLE], pod["metadata"]["labels"][INDEX]

    def other() -> bool:
        present = [one for one in pods.pods(job.id, role) if one["metadata"]["labels"][INDEX] == index]
        return any(one["metadata"]["uid"] != pod["metadata"]["uid"] for one in present)

    pods.until(other, f"another {role} runs")


def ends(pods: PodCluster, job: CountingJob, faults: int) -> None:
    """It ends with each record in the model, and few of those in flight at the faults twice; nothing is left."""
    job.finish(600)
    job.nothing_lost(most_again=job.in_flight(faults))
    audit = pods.job(job.id)["status"]["audit"]
    assert audit["state"] == "passed" and audit["planned"] == audit["committed"] == job.records * job.epochs
    pods.until(lambda: not pods.left_of(job.id), "nothing is left", 60)


@pytest.mark.parametrize("framework", ["tensorflow", "torch"])
def test_a_pod_of_each_role_and_of_each_service_is_killed(pods: PodCluster, framework: str) -> None:
    with counting_job(pods, f"roles-{framework}", records=RECORDS, framework=framework) as job:
        working(pods, job, 2)
        for role in ("worker", "ps", "master"):
            pod = pods.pods(job.id, role)[0]
            pods.kill(pod)
            replaced(pods, job, pod)
            job.trains()
        for service in ("api", "scheduler", "agent"):
            pods.restart_service(service)
        pods.find_api()
        leaving = pods.pods(job.id, "worker")[-1]
        pods.delete(leaving, grace_s=30)
        replaced(pods, job, leaving)
        assert job.running(), "void: the job was nearly over before the last fault"
        ends(pods, job, faults=4)


def test_a_group_of_one_three_and_two_is_equal_to_the_last_bit(pods: PodCluster) -> None:
    epochs = 12
    with group_job(pods, "group", epochs=epochs, members=1, records=RECORDS) as job:
        working(pods, job, 1)
        job.scale(max_workers=3)
        working(pods, job, 3)
        pods.kill(pods.pods(job.id, "worker")[1])
        job.scale(max_workers=2)
        pods.until(lambda: len(pods.pods(job.id, "worker")) == 2, "two are left")
        job.trains()
        assert job.running(), "void: the job was nearly over before it had two members"
        job.finish(600)
        job.exact(quiet_job(pods, "group-quiet", epochs, RECORDS))
        pods.until(lambda: not pods.left_of(job.id), "nothing is left", 60)


def test_a_node_with_a_server_and_a_worker_is_lost(pods: PodCluster) -> None:
    spare = pods.train_nodes()[-1]
    pods.cordon(spare)
    with counting_job(pods, "node", records=RECORDS) as job:
        working(pods, job, 2)
        pods.cordon(spare, False)
        node = pods.shared_node(job.id)
        pods.machines.kill_node(node)
        try:
            pods.until(lambda: job.events("restored") or job.events("start_over"), "the model is back")
            job.trains()
            ends(pods, job, faults=3)
        finally:
            pods.machines.start_node(node)


def test_a_node_with_master_and_server_comes_back_to_a_job_that_waited(pods: PodCluster) -> None:
    """The others are too small for the server; a kubelet that has only begun can make no containers for a while."""
    if not isinstance(pods.machines, FakeMachines):
        pytest.skip("nodes of this machine have all of its memory")
    kubernetes = pods.machines.kubernetes
    with counting_job(pods, "back", "--ps_resource_request", "memory=9Gi", records=RECORDS, num_ps=1) as job:
        working(pods, job, 2)
        assert {pods.pods(job.id, role)[0]["spec"]["nodeName"] for role in ("master", "ps")} == {"train-0"}
        kubernetes.kill_node("train-0")

        def waiting() -> list[str]:
            found = pods.items(pods.path("pods"), labelSelector=f"{JOB}={job.id},{ROLE}=ps")
            return [pod["metadata"]["name"] for pod in found if pod["status"]["phase"] == "Pending"]

        pods.until(waiting, "the server waits for a node")
        before = waiting()
        kubernetes.start_node("train-0", reads=False)
        told = lambda: pods.job(job.id)["status"].get("degraded") or ""  # noqa: E731
        pods.until(lambda: "services have not yet been read" in told(), "its container cannot be made yet")
        kubernetes.do(kubernetes.kubelets["train-0"].read)
        pods.until(lambda: bool(pods.pods(job.id, "ps")), "the server runs")
        assert [pod["metadata"]["name"] for pod in pods.pods(job.id, "ps")] == before, "the one that waited"
        ends(pods, job, faults=2)


def test_a_node_is_drained(pods: PodCluster) -> None:
    """One server leaves at a time; the others hold the model until it is back."""
    with counting_job(pods, "drain", records=RECORDS) as job:
        working(pods, job, 2)
        pods.drain(pods.pods(job.id, "ps")[0]["spec"]["nodeName"])
        working(pods, job, 2)
        ends(pods, job, faults=4)


def test_the_api_server_is_away(pods: PodCluster) -> None:
    """Training goes on; what dies meanwhile is launched once when it is back."""
    with counting_job(pods, "away", records=RECORDS, epochs=30 if pods.machines.away_s else 6) as job:
        working(pods, job, 2)
        killed = pods.pods(job.id, "worker")[0]
        uid = killed["metadata"]["uid"]
        with pods.machines.api_away():
            pods.machines.kill(killed)
            back = time.monotonic() + pods.machines.away_s
            job.trains()
            while time.monotonic() < back:
                job.trains()
        # The master, which cannot learn of the death, replaces a silent worker by one with another index.
        others = lambda: [one for one in pods.pods(job.id, "worker") if one["metadata"]["uid"] != uid]  # noqa: E731
        pods.until(lambda: len(others()) == 2, "another worker runs")
        launched = {pod["metadata"]["name"] for pod in pods.items(pods.path("pods"), labelSelector=f"{JOB}={job.id}")}
        assert len(launched) == 6, sorted(launched)
        ends(pods, job, faults=1)


def test_a_quota_is_changed_under_way(pods: PodCluster) -> None:
    """Workers that it has no room for wait, and the job says so; what runs goes on."""
    with counting_job(pods, "quota", records=RECORDS, workers=1) as job:
        working(pods, job, 1)
        pods.make("resourcequotas", {"metadata": {"name": "less"}, "spec": {"hard": {"requests.cpu": "1.3"}}})
        pods.cli("jobs", "scale", job.id, "--max-workers", "2")
        job.trains()
        assert len(pods.pods(job.id, "worker")) == 1
        pods.patch(pods.path("resourcequotas", "less"), {"spec": {"hard": {"requests.cpu": "30"}}})
        working(pods, job, 2)
        pods.http.delete(pods.path("resourcequotas", "less"))
        job.workers = 2
        ends(pods, job, faults=0)


def test_an_image_that_cannot_be_pulled_is_told_in_the_jobs_status(pods: PodCluster) -> None:
    with counting_job(pods, "image", "--image", "registry.invalid/nothing:1", records=RECORDS) as job:
        told = lambda: json.dumps(pods.job(job.id)["status"].get("degraded")) + json.dumps(job.events("worker_lost"))  # noqa: E731
        pods.until(lambda: "registry.invalid/nothing:1 cannot be pulled: mend its name" in told(), "it is told")
        pods.cli("jobs", "cancel", job.id)
        pods.until(lambda: not pods.left_of(job.id), "nothing is left", 60)

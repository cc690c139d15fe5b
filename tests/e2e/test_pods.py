"""Whole jobs on a fake Kubernetes whose pods are processes: what they survive on one machine they survive here."""

from __future__ import annotations

import json
from collections.abc import Iterator
from pathlib import Path

import pytest

from elasticdl_agent.kubernetes.pod_states import JOB, ROLE
from tests.chaos.counting import LEASES
from tests.e2e.pod_services import PodCluster, pod_services
from tests.e2e.test_group import _check_equal as equal_parameters
from tests.e2e.test_group import _members as members
from tests.e2e.test_group import _parameters as parameters
from tests.fakes.kubernetes.node import can_run

pytestmark = [
    pytest.mark.e2e,
    pytest.mark.timeout(900),
    pytest.mark.skipif(not can_run(), reason="pods of the fake cluster take mount namespaces"),
]


@pytest.fixture(scope="module")
def pods() -> Iterator[PodCluster]:
    """A cluster of three nodes with a worker's room each; the first has more memory than the others."""
    with pod_services(
        {f"node-{number}": {"cpu": "1.9", "memory": memory} for number, memory in enumerate(("16Gi", "8Gi", "8Gi"))}
    ) as cluster:
        yield cluster


@pytest.fixture(scope="module")
def digits(pods: PodCluster) -> Path:
    """The digits."""
    folder = pods.directory / "digits"
    pods.cli("data", "generate", "digits", str(folder))
    return folder


def check_exact(pods: PodCluster, job: dict, *, in_flight: int = 0) -> None:
    """All is in the model, and once but for so many records of tasks that workers had when their master was lost."""
    assert job["state"] == "SUCCEEDED", f"{json.dumps(job.get('error'), indent=1)}\n{pods.picture()}"
    progress, audit = job["status"]["progress"], job["status"]["audit"]
    assert progress["records_done"] == progress["records_total"] == audit["planned"] == audit["committed"] > 0
    assert audit["state"] == "passed" and audit["duplicates"] <= in_flight


def submit(pods: PodCluster, name: str, digits: Path, workers: int, *flags: str) -> str:
    return pods.submit_digits(name, digits, "--max_workers", str(workers), "--min_workers", "1", *flags)


def working(pods: PodCluster, job_id: str, workers: int, records: int = 1) -> None:
    """Waits until that many workers run, and so much is done."""
    pods.until(lambda: len(pods.pods(job_id, "worker")) == workers, f"{workers} workers run")
    pods.until(lambda: pods.job(job_id)["status"]["progress"]["records_done"] >= records, "they have done something")


def left_of(pods: PodCluster, job_id: str) -> list[str]:
    """What the cluster still holds of a job."""
    store = pods.kubernetes.store
    return pods.kubernetes.do(lambda: ["/".join(key) for key in store.objects if job_id in key[2]])


@pytest.mark.slow
def test_digits_are_exact_though_a_pod_of_each_role_is_killed(pods: PodCluster, digits: Path) -> None:
    """And when the job has ended nothing is left of it."""
    job_id = submit(pods, "roles", digits, 2, "--num_epochs", "40", "--num_ps_pods", "2")
    working(pods, job_id, 2)
    for role in ("worker", "ps", "master"):
        pod = pods.pods(job_id, role)[0]
        pods.kill(pod)
        pods.until(
            lambda role=role, uid=pod["metadata"]["uid"]: (
                all(one["metadata"]["uid"] != uid for one in pods.pods(job_id, role))
                and bool(pods.pods(job_id, role))
            ),
            f"another {role} runs",
        )
    pods.delete(pods.pods(job_id, "worker")[-1], grace_s=30)
    check_exact(pods, pods.wait(job_id))
    pods.until(lambda: not left_of(pods, job_id), "nothing is left", 60)


@pytest.mark.slow
def test_a_group_of_one_three_and_two_is_equal_to_the_last_bit(pods: PodCluster, digits: Path) -> None:
    group = ("--distribution_strategy", "AllReduceStrategy", "--microbatches", "4", "--num_epochs", "250")
    quiet = submit(pods, "quiet", digits, 1, *group)
    check_exact(pods, pods.wait(quiet))
    job_id = submit(pods, "group", digits, 1, *group)
    working(pods, job_id, 1)
    pods.cli("jobs", "scale", job_id, "--max-workers", "3")
    pods.until(lambda: members(pods, job_id) == 3, "three members train")
    pods.kill(pods.pods(job_id, "worker")[1])
    pods.until(lambda: members(pods, job_id) == 2, "two are left")
    pods.cli("jobs", "scale", job_id, "--max-workers", "2")
    check_exact(pods, pods.wait(job_id))
    equal_parameters(parameters(pods, quiet), parameters(pods, job_id))


@pytest.mark.slow
def test_a_node_with_a_server_and_a_worker_is_lost(digits: Path, pods: PodCluster) -> None:
    job_id = submit(pods, "node", digits, 2, "--num_epochs", "60", "--num_ps_pods", "2", "--checkpoint_steps", "100")
    working(pods, job_id, 2)
    nodes = {pod["spec"]["nodeName"] for pod in pods.pods(job_id, "ps")}
    nodes &= {pod["spec"]["nodeName"] for pod in pods.pods(job_id, "worker")}
    assert nodes, pods.picture()
    pods.kubernetes.kill_node(min(nodes))
    check_exact(pods, pods.wait(job_id, timeout=600))
    pods.until(lambda: not left_of(pods, job_id), "nothing is left", 60)


@pytest.mark.slow
def test_a_node_with_master_and_server_comes_back_to_a_job_that_waited(pods: PodCluster, digits: Path) -> None:
    """The others are too small for the server; a kubelet that has only begun can make no containers for a while."""
    flags = ("--num_epochs", "30", "--num_ps_pods", "1", "--minibatch_size", "64", "--num_minibatches_per_task", "8")
    more = ("--checkpoint_steps", "50", "--ps_resource_request", "memory=9Gi")
    job_id = submit(pods, "returns", digits, 2, *flags, *more)
    working(pods, job_id, 2)
    assert {pods.pods(job_id, role)[0]["spec"]["nodeName"] for role in ("master", "ps")} == {"node-0"}
    pods.kubernetes.kill_node("node-0")

    def waiting() -> list[str]:
        found = pods.kubernetes.store.all("pods", "default", lambda pod: pod["metadata"]["labels"].get(JOB) == job_id)
        return [
            pod["metadata"]["name"]
            for pod in found
            if pod["metadata"]["labels"][ROLE] == "ps" and pod["status"]["phase"] == "Pending"
        ]

    pods.until(lambda: bool(pods.kubernetes.do(waiting)), "the server waits for a node")
    before = pods.kubernetes.do(waiting)
    pods.kubernetes.start_node("node-0", reads=False)
    log = lambda: pods.cli("jobs", "logs", job_id, "--role", "ps").stdout  # noqa: E731
    pods.until(lambda: "services have not yet been read" in log(), "its container cannot be made yet")
    pods.kubernetes.do(pods.kubernetes.kubelets["node-0"].read)
    pods.until(lambda: bool(pods.pods(job_id, "ps")), "the server runs")
    assert [pod["metadata"]["name"] for pod in pods.pods(job_id, "ps")] == before, "the one that waited"
    check_exact(pods, pods.wait(job_id, timeout=600), in_flight=2 * LEASES * 64 * 8)


@pytest.mark.slow
def test_the_api_server_is_away(pods: PodCluster, digits: Path) -> None:
    """Training goes on; what dies meanwhile is launched once when it is back."""
    job_id = submit(pods, "away", digits, 2, "--num_epochs", "60", "--num_ps_pods", "1")
    working(pods, job_id, 2)
    pods.kubernetes.do(lambda: (setattr(pods.kubernetes.api, "away", True), pods.kubernetes.api.cut_watches()))
    before = pods.job(job_id)["status"]["progress"]["records_done"]
    pods.kill(pods.pods(job_id, "worker")[0])
    pods.until(
        lambda: pods.job(job_id)["status"]["progress"]["records_done"] > before + 2000, "training goes on", 120
    )
    pods.kubernetes.do(lambda: setattr(pods.kubernetes.api, "away", False))
    check_exact(pods, pods.wait(job_id))
    pods.until(lambda: not left_of(pods, job_id), "nothing is left", 60)

"""A real cluster loses a node with a parameter server and a worker; and the start of a worker's pod.

./dev bench lost_node [--rounds 2]    with ELASTICDL_TEST_KUBECONFIG (see tests/contract/launcher/real_cluster.py)
"""

from __future__ import annotations

import time
from collections.abc import Callable
from datetime import datetime
from statistics import median
from typing import Any

from benchmarks.harness import Report, parse
from elasticdl_agent.kubernetes.pod_states import JOB
from tests.chaos.counting import CountingJob, counting_job
from tests.contract.launcher.real_cluster import CLUSTER, KUBECONFIG
from tests.e2e.pod_services import PodCluster, real_services

ABOUT = """\
Kubernetes 1.36 on one machine: API server, controllers, scheduler and four nodes, three of them for jobs. A job
of the counting model in TensorFlow with two parameter servers and two workers loses a node with one of each (its
kubelet, containerd and containers die at once); the cluster waits 20 s for a node and lets its pods stay 10 s
more. Told is the time from when the API server marks the pods of the node until the servers are back at the last
checkpoint and records are applied again. And of a worker that is killed: from the creation of the pod after it,
of which the API server tells whole seconds, to its first record; interpreters start anew in it. Afterwards each
record has to be in the parameters."""
GOAL_S = 30.0


def seconds_until(condition: Callable[[], Any]) -> float:
    began = time.monotonic()
    while not condition():
        if time.monotonic() - began > 600:
            raise TimeoutError("it does not come to it")
        time.sleep(0.1)
    return time.monotonic() - began


def one_round(pods: PodCluster, number: int) -> tuple[float, float]:
    """Seconds from the word of the cluster until the job goes on; and from a pod's creation to its first record."""
    spare = pods.train_nodes()[-1]
    pods.cordon(spare)
    with counting_job(pods, f"lost-{number}", records=600) as job:
        pods.until(lambda: len(pods.pods(job.id, "worker")) == 2, "two workers run")
        pods.cordon(spare, False)
        job.trains()
        start = _start_of_a_worker(pods, job)
        node = pods.shared_node(job.id)
        pods.machines.kill_node(node)
        try:
            seconds_until(lambda: _marked(pods, job, node))
            goes_on = seconds_until(lambda: job.events("restored") or job.events("start_over"))
            there = job.applied()
            goes_on += seconds_until(lambda: job.applied() > there)
            job.finish(600)
            job.nothing_lost(most_again=job.in_flight(3))
        finally:
            pods.machines.start_node(node)
    pods.until(lambda: all(map(_ready, pods.items("/api/v1/nodes"))), "all nodes are ready")
    return goes_on, start


def _start_of_a_worker(pods: PodCluster, job: CountingJob) -> float:
    traces = pods.job_dir(job.id) / "traces"
    known = {file.name for file in traces.iterdir()}
    pod = pods.pods(job.id, "worker")[0]
    pods.kill(pod)
    seconds_until(lambda: any(file.stat().st_size for file in traces.iterdir() if file.name not in known))
    now = time.time()
    found = pods.items(pods.path("pods"), labelSelector=f"{JOB}={job.id}")
    made = max(datetime.fromisoformat(one["metadata"]["creationTimestamp"]).timestamp() for one in found)
    return now - made


def _marked(pods: PodCluster, job: CountingJob, node: str) -> bool:
    found = pods.items(pods.path("pods"), labelSelector=f"{JOB}={job.id}")
    return any(one["spec"].get("nodeName") == node and "deletionTimestamp" in one["metadata"] for one in found)


def _ready(node: dict[str, Any]) -> bool:
    return any(one["type"] == "Ready" and one["status"] == "True" for one in node["status"]["conditions"])


def main() -> None:
    options = parse(__doc__, rounds=2)
    if not (KUBECONFIG and CLUSTER):
        raise SystemExit("no real cluster: see tests/contract/launcher/real_cluster.py")
    report = Report("lost_node", "A node of a real cluster is lost", ABOUT, "./dev bench lost_node")
    with real_services() as pods:
        rounds = [one_round(pods, number) for number in range(1 if options.quick else options.rounds)]
    for number, (goes_on, start) in enumerate(rounds):
        report.say(f"round {number}: goes on after {goes_on:.1f} s, a pod's first record after {start:.1f} s")
    report.table(
        ["what", "median, s", "most, s"],
        [
            ("from the cluster's word to going on", median(one[0] for one in rounds), max(one[0] for one in rounds)),
            (
                "from a pod's creation to its first record",
                median(one[1] for one in rounds),
                max(one[1] for one in rounds),
            ),
        ],
    )
    report.target("goes_on_after_loss_s", max(one[0] for one in rounds), GOAL_S, at_least=False)
    report.write()


if __name__ == "__main__":
    main()

"""The Kubernetes launcher: a job of 300 pods whose watches are cut each second, and 10,000 pods that change.

./dev bench pods [--quick] [--pods 10000] [--seconds 30]
"""

from __future__ import annotations

import asyncio
import gc
import multiprocessing
import tempfile
import time
from collections import Counter
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

import psutil

from benchmarks.harness import Report, parse
from elasticdl_agent.kubernetes.access import KubernetesAccess
from elasticdl_agent.kubernetes.client import KubernetesClient
from elasticdl_agent.kubernetes.launcher import KubernetesLauncher
from elasticdl_agent.kubernetes.manifests import MANAGED, PodTemplate
from elasticdl_agent.kubernetes.pod_states import INCARNATION, INDEX, JOB, ROLE
from elasticdl_agent.kubernetes.settings import KubernetesSettings
from elasticdl_agent.processes.credentials import ProcessCertificates
from elasticdl_agent.processes.environment import Endpoints
from tests.fakes.kubernetes.cluster import FakeKubernetes
from tests.fakes.kubernetes.objects import KINDS
from tests.fakes.kubernetes.store import Event

ABOUT = """\
The launcher in a process of its own on the fake cluster of the tests (`tests/fakes/kubernetes`), which holds pods
that say that they run and runs nothing. First one job of {job} pods: all watches are cut each second, and ten pods
a second change; processor time of the launcher's process. Then {pods:,} pods of jobs of 100: the memory that the
launcher takes for them beyond what it has before its first list, and the time from the last change until the
launcher has seen all of them and has done what they ask for (an ended pod's Secret is deleted): of 1,000 pods that
end within ten seconds, by a watch; and of 100 that end while a watch is cut and the versions that it could go on
from are gone, by a list."""
JOB_PODS = 300
GOAL_PROCESSOR, GOAL_MB, GOAL_S = 0.05, 64.0, 2.0
SECRET = "cluster-secret-of-the-benchmark"


class QuietKubernetes(FakeKubernetes):
    """A cluster without controllers, scheduler and nodes."""

    def _react(self, event: Event) -> None:
        pass


def pod(job: int, index: int) -> dict[str, Any]:
    """A worker's pod that runs."""
    name = f"job-{job:04d}"
    labels = {MANAGED: "elasticdl", JOB: name, ROLE: "worker", INDEX: str(index), INCARNATION: "1"}
    return {
        "metadata": {"name": f"{name}-worker-{index}-1", "labels": labels, "finalizers": ["elasticdl.org/told"]},
        "spec": {"nodeName": "node-0", "containers": [{"name": "elasticdl", "image": "image:1"}]},
        "status": {"phase": "Running", "containerStatuses": [{"state": {"running": {}}}]},
    }


def fill(cluster: FakeKubernetes, pods: int, each: int) -> list[str]:
    """Makes pods; returns their names."""
    made = []
    for number in range(pods):
        one = pod(number // each, number % each)
        created = cluster.do(lambda one=one: cluster.store.create(KINDS["pods"], "default", one))
        created = {**created, "status": one["status"]}
        cluster.do(lambda found=created: tell(cluster, found))
        made.append(one["metadata"]["name"])
    return made


def tell(cluster: FakeKubernetes, found: dict[str, Any]) -> None:
    cluster.store.replace(KINDS["pods"], "default", found["metadata"]["name"], found, "kubelet", part="status")


def end(cluster: FakeKubernetes, name: str) -> None:
    """The container of a pod exits."""
    found = dict(cluster.store.get(KINDS["pods"], "default", name))
    ended = {"terminated": {"exitCode": 0, "reason": "Completed"}}
    found["status"] = {"phase": "Succeeded", "containerStatuses": [{"state": ended}]}
    tell(cluster, found)


def touch(cluster: FakeKubernetes, name: str) -> None:
    """A condition of a pod changes, which says nothing of its process."""
    found = dict(cluster.store.get(KINDS["pods"], "default", name))
    found["status"] = {**found["status"], "conditions": [{"type": "Ready", "status": "True", "at": time.time()}]}
    tell(cluster, found)


def serve(kubeconfig: Path, pipe: Connection) -> None:
    """Runs a launcher and answers with its numbers, in a process of its own."""
    asyncio.run(_serve(kubeconfig, pipe))


async def _serve(kubeconfig: Path, pipe: Connection) -> None:
    process = psutil.Process()
    with tempfile.TemporaryDirectory() as folder:
        settings = KubernetesSettings(
            image="image:1",
            claim="data",
            data_dir=Path(folder),
            cluster_secret=SECRET,
            node_token="node-token-of-the-benchmark",
            api_url="http://127.0.0.1:1",
            redis_url="redis://127.0.0.1:1",
        )
        access = KubernetesAccess.of_kubeconfig(kubeconfig)
        endpoints = Endpoints(SECRET, settings.api_url, settings.redis_url)
        template = PodTemplate(settings, access.namespace)
        async with KubernetesClient(access) as client:
            gc.collect()
            before = process.memory_info().rss
            async with KubernetesLauncher(client, template, endpoints, ProcessCertificates(SECRET)) as launcher:
                await launcher._mirror.listed.wait()
                while await asyncio.to_thread(pipe.recv):
                    states = Counter(str(status.state) for status in await launcher.list())
                    # What an ended process leaves to do is done when its Secret is gone.
                    done = len(launcher._without_secret) + len(launcher._renewed)
                    mb = (process.memory_info().rss - before) / 1e6
                    pipe.send((states, done, sum(process.cpu_times()[:2]), mb))


@contextmanager
def launcher(cluster: FakeKubernetes) -> Iterator[Callable[[], tuple[Counter[str], int, float, float]]]:
    """A launcher in a process of its own; the call asks for its numbers."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    process = context.Process(target=serve, args=(cluster.kubeconfig(), theirs), daemon=True)
    process.start()

    def ask() -> tuple[Counter[str], int, float, float]:
        ours.send(True)
        return ours.recv()

    try:
        yield ask
    finally:
        ours.send(False)
        process.join(30)


def until(ask: Callable[[], Any], condition: Callable[[Any], bool]) -> float:
    """Seconds until the launcher's numbers are so."""
    began = time.perf_counter()
    while not condition(ask()):
        time.sleep(0.02)
        if time.perf_counter() - began > 600:
            raise TimeoutError(f"the launcher does not come to it: {ask()}")
    return time.perf_counter() - began


def cut_watches(seconds: int) -> float:
    """The part of a core that the launcher takes while the watches of a job are cut each second."""
    with QuietKubernetes() as cluster:
        names = fill(cluster, JOB_PODS, JOB_PODS)
        with launcher(cluster) as ask:
            until(ask, lambda numbers: numbers[1] == JOB_PODS)
            began, busy = time.perf_counter(), ask()[2]
            for second in range(seconds):
                cluster.do(cluster.api.cut_watches)
                for number in range(10 * second, 10 * second + 10):
                    cluster.do(lambda number=number: touch(cluster, names[number % JOB_PODS]))
                time.sleep(max(0.0, began + second + 1 - time.perf_counter()))
            return (ask()[2] - busy) / (time.perf_counter() - began)


def many_pods(pods: int, report: Report) -> tuple[float, float, float]:
    """Megabytes for so many pods, and seconds from the last change until all is done, by a watch and by a list."""
    changes = min(1_000, pods // 4)
    with QuietKubernetes(kept=50_000) as cluster:
        names = fill(cluster, pods, 100)
        with launcher(cluster) as ask:
            report.say(f"{pods} pods are known and seen to after {until(ask, lambda n: n[1] == pods):.1f} s")
            began = time.perf_counter()
            for number, name in enumerate(names[:changes]):
                cluster.do(lambda name=name: end(cluster, name))
                time.sleep(max(0.0, began + 0.01 * (number + 1) - time.perf_counter()))
            watched = until(ask, lambda n: n[0]["exited"] == changes and n[1] == pods + changes)
            missed = names[changes : changes + 100]

            def miss() -> None:
                cluster.api.cut_watches()
                for name in missed:
                    end(cluster, name)
                cluster.store.forget()

            cluster.do(miss)
            ended = changes + len(missed)
            listed = until(ask, lambda n: n[0]["exited"] == ended and n[1] == pods + ended)
            return ask()[3], watched, listed


def main() -> None:
    options = parse(__doc__, pods=10_000, seconds=30)
    pods, seconds = (1_000, 5) if options.quick else (options.pods, options.seconds)
    about = ABOUT.format(job=JOB_PODS, pods=pods)
    report = Report("pods", "The launcher of pods", about, "./dev bench pods")
    processor = cut_watches(seconds)
    report.say(f"{processor:.1%} of a core")
    memory, watched, listed = many_pods(pods, report)
    report.table(
        ["what", "seconds after the last change"], [("by a watch", watched), ("by a list, versions gone", listed)]
    )
    report.target("processor_300_pods", processor, GOAL_PROCESSOR, at_least=False)
    report.target("memory_10k_mb", memory, GOAL_MB, at_least=False)
    report.target("reconciled_10k_s", max(watched, listed), GOAL_S, at_least=False)
    report.write()


if __name__ == "__main__":
    main()

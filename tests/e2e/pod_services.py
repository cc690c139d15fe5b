"""ElasticDL on Kubernetes: agent, api and scheduler are pods, and so is every process of its jobs.

On the fake cluster, and on a real one that runs on this machine (see ``tests/contract/launcher/real_cluster.py``).
"""

from __future__ import annotations

import contextlib
import copy
import os
import secrets
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import httpx

from elasticdl_agent.cluster.redis import find_server
from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.kubernetes.access import KubernetesAccess
from elasticdl_agent.kubernetes.deployment import DeploymentOptions, manifests, path_of
from elasticdl_agent.kubernetes.pod_states import INDEX, JOB, ROLE
from tests.contract.launcher.real_cluster import CLUSTER, USER, RealCluster
from tests.contract.launcher.real_cluster import IMAGE as REAL_IMAGE
from tests.e2e.local_cluster import ROOT, Cluster, user_environment
from tests.fakes.kubernetes.cluster import FakeKubernetes
from tests.fakes.kubernetes.objects import Object
from tests.fakes.redis_server import RedisServer
from tests.integration.conftest import PostgresServer, _binaries

IMAGE, SERVICES = "elasticdl:test", "services"
_MARK = "app.kubernetes.io/name"
_POOL = "elasticdl.test/pool"
_READY_S = 120.0


class Machines(Protocol):
    """The machines below a cluster, for what no API does.

    Attributes:
        away_s: how long the API server is away at least.
    """

    away_s: float

    def kill(self, pod: Object) -> None:
        """Kills what runs in a pod, as the kernel would."""

    def kill_node(self, name: str) -> None:
        """Power loss."""

    def start_node(self, name: str) -> None:
        """The power is back."""

    def api_away(self) -> contextlib.AbstractContextManager[None]:
        """The API server does not answer meanwhile."""


class FakeMachines:
    """Those of the fake cluster."""

    away_s = 0.0

    def __init__(self, kubernetes: FakeKubernetes) -> None:
        self.kubernetes = kubernetes
        self.kill_node, self.start_node = kubernetes.kill_node, kubernetes.start_node

    def kill(self, pod: Object) -> None:
        def kill() -> None:
            kubelet = self.kubernetes.kubelets[pod["spec"]["nodeName"]]
            if (process := kubelet.processes.get(pod["metadata"]["uid"])) is not None:
                process.kill()

        self.kubernetes.do(kill)

    @contextlib.contextmanager
    def api_away(self) -> Iterator[None]:
        api = self.kubernetes.api
        self.kubernetes.do(lambda: (setattr(api, "away", True), api.cut_watches()))
        yield
        self.kubernetes.do(lambda: setattr(api, "away", False))


class LocalMachines:
    """Those of a real cluster on this machine: processes are killed here, and a program starts and stops the rest."""

    away_s = 150.0

    def kill(self, pod: Object) -> None:
        for file in Path("/proc").glob("[0-9]*/cgroup"):
            with contextlib.suppress(OSError):
                inside = pod["metadata"]["uid"] in file.read_text().replace("_", "-")
                if inside and b"elasticdl" in (file.parent / "cmdline").read_bytes():
                    os.kill(int(file.parent.name), signal.SIGKILL)

    def kill_node(self, name: str) -> None:
        self._do("kill-node", name.rpartition("-")[2])

    def start_node(self, name: str) -> None:
        self._do("start-node", name.rpartition("-")[2])

    @contextlib.contextmanager
    def api_away(self) -> Iterator[None]:
        self._do("stop-api")
        try:
            yield
        finally:
            self._do("start-api")

    def _do(self, *words: str) -> None:
        subprocess.run([CLUSTER, *words], check=True, capture_output=True, timeout=180)


@dataclass
class PodCluster(Cluster):
    """A cluster on Kubernetes, and the command line that talks to it.

    Attributes:
        http: the API server, as its administrator.
        namespace: where all of it is.
        machines: what is below.
        services: the pods of services, as they were asked for.
        common: of the specification of each service's pod.
        patience: how much longer than on the fake anything may take.
    """

    http: httpx.Client = field(default_factory=httpx.Client)
    namespace: str = "default"
    machines: Machines = field(default_factory=LocalMachines)
    services: dict[str, Object] = field(default_factory=dict)
    common: Object = field(default_factory=dict)
    patience: float = 1.0

    # -- the API server --------------------------------------------------------------------------------------------

    def path(self, kind: str, name: str = "") -> str:
        """The path of objects of a kind in the namespace, or of one."""
        return f"/api/v1/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")

    def items(self, path: str, **params: str) -> list[Object]:
        """The objects of a list."""
        return self.http.get(path, params=params).raise_for_status().json()["items"]

    def make(self, kind: str, manifest: Object) -> None:
        """Makes an object in the namespace."""
        self.http.post(self.path(kind), json=manifest).raise_for_status()

    def patch(self, path: str, change: Object) -> None:
        """Changes an object."""
        headers = {"Content-Type": "application/merge-patch+json"}
        self.http.patch(path, json=change, headers=headers).raise_for_status()

    def pods(self, job_id: str, role: str = "") -> list[Object]:
        """The pods of a job whose containers run, by index."""
        found = self.items(self.path("pods"), labelSelector=f"{JOB}={job_id}")
        running = [pod for pod in found if role in ("", pod["metadata"]["labels"][ROLE]) and _runs(pod)]
        return sorted(running, key=lambda pod: int(pod["metadata"]["labels"][INDEX]))

    def left_of(self, job_id: str) -> list[str]:
        """What the cluster still holds of a job."""
        kinds = [self.path(kind) for kind in ("pods", "secrets", "services", "configmaps")]
        kinds.append(f"/apis/policy/v1/namespaces/{self.namespace}/poddisruptionbudgets")
        found = [one for kind in kinds for one in self.items(kind, labelSelector=f"{JOB}={job_id}")]
        return [one["metadata"]["name"] for one in found]

    def delete(self, pod: Object, grace_s: int = 1) -> None:
        """Deletes a pod."""
        params = {"gracePeriodSeconds": str(grace_s)}
        self.http.delete(self.path("pods", pod["metadata"]["name"]), params=params).raise_for_status()

    def cordon(self, node: str, unschedulable: bool = True) -> None:
        """Lets no more pods onto a node, or lets them again."""
        self.patch(f"/api/v1/nodes/{node}", {"spec": {"unschedulable": unschedulable}})

    def train_nodes(self) -> list[str]:
        """The nodes that run jobs."""
        return sorted(
            node["metadata"]["name"] for node in self.items("/api/v1/nodes", labelSelector=f"{_POOL}=train")
        )

    def shared_node(self, job_id: str) -> str:
        """A node with a server and a worker of a job, without its master where there is one."""
        servers, workers, masters = (
            {pod["spec"]["nodeName"] for pod in self.pods(job_id, role)} for role in ("ps", "worker", "master")
        )
        both = servers & workers
        assert both, self.picture()
        return min(both - masters or both)

    def drain(self, node: str) -> None:
        """Sends all pods of jobs away from a node, as ``kubectl drain``: those that budgets keep are asked again."""
        self.cordon(node)

        def gone() -> bool:
            there = [
                pod for pod in self.items(self.path("pods"), labelSelector=JOB) if pod["spec"].get("nodeName") == node
            ]
            living = [pod for pod in there if pod["status"]["phase"] in ("Pending", "Running")]
            for pod in living:
                name = pod["metadata"]["name"]
                eviction = {"apiVersion": "policy/v1", "kind": "Eviction", "metadata": {"name": name}}
                answer = self.http.post(f"{self.path('pods', name)}/eviction", json=eviction)
                assert answer.status_code in (201, 404, 409, 429), answer.text
            return not living

        self.until(gone, f"all have left {node}")

    # -- states ----------------------------------------------------------------------------------------------------

    def kill(self, pod: Object) -> None:
        """Kills what runs in a pod, and waits until the cluster has seen it."""
        self.machines.kill(pod)
        uid = pod["metadata"]["uid"]

        def seen() -> bool:
            return all(one["metadata"]["uid"] != uid or not _runs(one) for one in self.items(self.path("pods")))

        self.until(seen, "the cluster has seen the death")

    def until(self, condition: Callable[[], Any], what: str, timeout: float = 240.0) -> None:
        """Waits for a state."""
        end = time.monotonic() + timeout * self.patience
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"not within {timeout:.0f} s: {what}\n{self.picture()}")
            time.sleep(0.1 * self.patience)

    def wait(self, job_id: str, timeout: float = 300) -> dict:
        return super().wait(job_id, timeout * self.patience)

    def picture(self) -> str:
        """All pods with the ends of their logs."""
        told = []
        for pod in self.items(self.path("pods")):
            name, status = pod["metadata"]["name"], pod["status"]
            states = [one["state"] for one in status.get("containerStatuses", [])]
            end = self.http.get(f"{self.path('pods', name)}/log", params={"tailLines": "12"}).text[-1500:]
            told.append(
                f"== {name} on {pod['spec'].get('nodeName')}: {status.get('phase')} {states}"
                f" {status.get('conditions')}\n{end}"
            )
        return "\n".join(told)

    # -- services --------------------------------------------------------------------------------------------------

    def start_service(self, name: str, module: str, variables: dict[str, str], *, node_token: bool = True) -> None:
        """Makes the pod of a service."""
        volumes, mounts = [], []
        if node_token:
            volumes.append({"name": "node", "secret": {"secretName": "elasticdl-node"}})
            mounts.append({"name": "node", "mountPath": "/mnt/elasticdl/node"})
            variables = {**variables, "ELASTICDL_RPC_CREDENTIALS": "/mnt/elasticdl/node/node.pem"}
        env = [
            {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            *({"name": key, "value": value} for key, value in variables.items()),
        ]
        self.start_pod(name, ["python", "-P", "-m", module], env, volumes, mounts)

    def start_pod(
        self, name: str, command: list[str], env: list[Object], volumes: list[Object], mounts: list[Object]
    ) -> None:
        """Makes a pod on the node of the services."""
        spec = copy.deepcopy(self.common)
        container = spec["containers"][0]
        spec["volumes"] += volumes
        container |= {
            "name": name,
            "command": command,
            "env": env,
            "volumeMounts": container["volumeMounts"] + mounts,
        }
        if name == "agent" and "serviceAccountName" in spec:
            spec["automountServiceAccountToken"] = True
        self.services[name] = {"metadata": {"labels": {_MARK: name}}, "spec": spec}
        self._start_again(name)

    def restart_service(self, name: str) -> None:
        """Kills a service's pod and makes another, as a Deployment would; waits until it runs."""
        old = self.service_pod(name)
        assert old is not None
        self.kill(old)
        self._start_again(name)
        self.until(lambda: self.service_pod(name) is not None, f"another {name} runs")

    def _start_again(self, name: str) -> None:
        pod = copy.deepcopy(self.services[name])
        pod["metadata"]["name"] = f"{name}-{secrets.token_hex(3)}"
        self.make("pods", pod)

    def service_pod(self, name: str) -> Object | None:
        """The running pod of a service."""
        return next(filter(_runs, self.items(self.path("pods"), labelSelector=f"{_MARK}={name}")), None)

    def service_address(self, name: str) -> str:
        """Waits until a service's pod runs; its address."""
        self.until(lambda: self.service_pod(name) is not None, f"the pod of {name} runs", _READY_S)
        return (self.service_pod(name) or {})["status"]["podIP"]

    def find_api(self) -> None:
        """Has commands talk to the api's pod, and waits until it answers."""
        self.environment["ELASTICDL_API_URL"] = f"http://{self.service_address('api')}:8850"
        self.until(lambda: self.cli("jobs", "list", expect=None).returncode == 0, "the api answers", _READY_S)

    def client(self):
        from elasticdl import Client
        from elasticdl.client.retry import RetryPolicy

        return Client(
            api_url=self.environment["ELASTICDL_API_URL"],
            token=self.environment["ELASTICDL_TOKEN"],
            retry=RetryPolicy(attempts=20),
        )


@contextlib.contextmanager
def fake_services() -> Iterator[PodCluster]:
    """A fake cluster of three nodes with a worker's room each, beside one that runs the services.

    The first has more memory than the others.
    """
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edl-pods-")))
        postgres = stack.enter_context(PostgresServer())
        redis = RedisServer()
        redis.start()
        stack.callback(redis.close)
        postgres.sql("CREATE DATABASE elasticdl")
        environment = user_environment(folder)
        data = folder / "cluster"
        data.mkdir()
        variables = {"PATH": environment["PATH"], "TF_CPP_MIN_LOG_LEVEL": "2", "LANG": "C.UTF-8"}
        nodes = {SERVICES: {"cpu": "1", "memory": "1Gi"}}
        for number, memory in enumerate(("16Gi", "8Gi", "8Gi")):
            nodes[f"train-{number}"] = {"cpu": "1.9", "memory": memory}
        kubernetes = stack.enter_context(FakeKubernetes(nodes, {IMAGE: variables}, {"data": data}))
        kubeconfig = kubernetes.kubeconfig()
        cluster = PodCluster(
            folder, environment, stack.enter_context(_administrator(kubeconfig)), machines=FakeMachines(kubernetes)
        )
        cluster.common = _pod_of_services(IMAGE, data, {}, SERVICES)
        _start(cluster, postgres.url("elasticdl"), redis.url, {"KUBECONFIG": str(kubeconfig)}, IMAGE)
        yield cluster


@contextlib.contextmanager
def real_services() -> Iterator[PodCluster]:
    """The same on a real cluster, with its stores in pods as well; the first of its nodes has the services."""
    with contextlib.ExitStack() as stack:
        folder = Path(stack.enter_context(tempfile.TemporaryDirectory(prefix="edl-pods-", dir="/var/tmp")))
        folder.chmod(0o755)
        data, programs = folder / "cluster", folder / "programs"
        programs.mkdir()
        # The first folder of the path of images that say nothing of it.
        (programs / "python").write_text(f'#!/bin/sh\nexec {sys.executable} "$@"\n')
        (programs / "python").chmod(0o755)
        (folder / "passwd").write_text(f"elasticdl:x:{USER}:{USER}::/tmp:/bin/sh\n")
        inside = stack.enter_context(RealCluster(AgentDirectories(data, data), cpu="32"))
        settings = inside.settings()
        settings["volume"] += f";host_path={programs},mount_path=/usr/local/sbin,read_only=true"
        settings["volume"] += f";host_path={folder},mount_path={folder},read_only=true"
        http = stack.enter_context(_administrator(inside.kubeconfig()))
        cluster = PodCluster(folder, user_environment(folder), http, inside.namespace, patience=2.5)
        nodes = sorted(node["metadata"]["name"] for node in cluster.items("/api/v1/nodes"))
        mounts = {str(programs): "/usr/local/sbin", str(folder / "passwd"): "/etc/passwd"}
        mounts |= {path: path for path in ("/usr", sys.base_prefix, str(ROOT))}
        cluster.common = {
            **_pod_of_services(REAL_IMAGE, data, mounts, nodes[0]),
            "serviceAccountName": "elasticdl-agent",
        }
        stack.callback(_clean_up, cluster, nodes)
        for manifest in manifests(DeploymentOptions(inside.namespace, REAL_IMAGE)):
            if manifest["kind"] in ("ServiceAccount", "Role", "RoleBinding", "ClusterRole", "ClusterRoleBinding"):
                http.post(path_of(manifest).rpartition("/")[0], json=manifest).raise_for_status()
        password = secrets.token_hex(8)
        pg = _binaries()
        made = f"{pg}/initdb -D /tmp/pg -U elasticdl -A scram-sha-256 --pwfile /tmp/pw --no-sync -E UTF8 --locale=C"
        serve = f"{pg}/postgres -D /tmp/pg -h 0.0.0.0 -k /tmp -c fsync=off -c shared_buffers=32MB"
        serve = f"echo host all all all scram-sha-256 >>/tmp/pg/pg_hba.conf; exec {serve}"
        shell = ["/bin/sh", "-ec"]
        cluster.start_pod(
            "postgres",
            [
                *shell,
                f"echo {password} >/tmp/pw; {made}; {serve}",
            ],
            [],
            [],
            [],
        )
        redis = f"exec {find_server()} --bind 0.0.0.0 --port 6379 --requirepass {password} --save '' --dir /tmp"
        cluster.start_pod("redis", [*shell, redis], [], [], [])
        hosts = {name: cluster.service_address(name) for name in ("postgres", "redis")}
        for name, port in (("postgres", 5432), ("redis", 6379)):
            cluster.until(lambda name=name, port=port: _answers(hosts[name], port), f"{name} listens", _READY_S)
        database = f"postgresql://elasticdl:{password}@{hosts['postgres']}:5432/postgres"
        own = {"ELASTICDL_KUBERNETES_VOLUME": settings["volume"]}
        _start(cluster, database, f"redis://:{password}@{hosts['redis']}:6379/0", own, REAL_IMAGE)
        yield cluster


def _administrator(kubeconfig: Path) -> httpx.Client:
    access = KubernetesAccess.of_kubeconfig(kubeconfig)
    headers = {"Authorization": f"Bearer {access.token()}"} if access.token() else {}
    return httpx.Client(base_url=access.server, verify=access.tls or False, headers=headers, timeout=30)


def _pod_of_services(image: str, data: Path, host_paths: dict[str, str], node: str) -> Object:
    """The specification that pods of services have in common."""
    volumes: list[Object] = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
    mounts: list[Object] = [{"name": "data", "mountPath": str(data)}]
    for number, (path, seen) in enumerate(host_paths.items()):
        volumes.append({"name": f"host-{number}", "hostPath": {"path": path}})
        mounts.append({"name": f"host-{number}", "mountPath": seen, "readOnly": True})
    request = {"requests": {"cpu": "10m", "memory": "64Mi"}}
    return {
        "restartPolicy": "Never",
        "automountServiceAccountToken": False,
        "enableServiceLinks": False,
        "nodeSelector": {"kubernetes.io/hostname": node},
        "securityContext": {"runAsUser": USER, "runAsGroup": USER} if host_paths else {},
        "containers": [{"image": image, "volumeMounts": mounts, "resources": request}],
        "volumes": volumes,
    }


def _clean_up(cluster: PodCluster, nodes: list[str]) -> None:
    """Removes what is not in the namespace."""
    for node in nodes:
        cluster.patch(
            f"/api/v1/nodes/{node}", {"metadata": {"labels": {_POOL: None}}, "spec": {"unschedulable": None}}
        )
    for kind in ("clusterroles", "clusterrolebindings"):
        cluster.http.delete(f"/apis/rbac.authorization.k8s.io/v1/{kind}/elasticdl-capacity-{cluster.namespace}")


def _start(cluster: PodCluster, database_url: str, redis_url: str, own: dict[str, str], image: str) -> None:
    admin, space = secrets.token_hex(16), cluster.namespace
    for node in cluster.items("/api/v1/nodes"):
        name = node["metadata"]["name"]
        if name != cluster.common["nodeSelector"]["kubernetes.io/hostname"]:
            cluster.patch(f"/api/v1/nodes/{name}", {"metadata": {"labels": {_POOL: "train"}}})
    shared = {
        "ELASTICDL_CLUSTER_SECRET": secrets.token_hex(16),
        "ELASTICDL_NODE_TOKEN": secrets.token_hex(16),
        "ELASTICDL_DATA_DIR": str(cluster.data_dir),
        "ELASTICDL_DATABASE_URL": database_url,
        "ELASTICDL_AGENT": f"tls://agent.elasticdl@elasticdl-agent.{space}.svc:7010",
        "ELASTICDL_LOG_FORMAT": "json",
        "HOME": "/tmp",
    }
    token_file = cluster.data_dir / "token"
    token_file.write_text(admin)
    token_file.chmod(0o644)
    migrated = subprocess.run(
        [sys.executable, "-P", "-m", "elasticdl_api", "migrate"],
        env={**cluster.environment, **shared, "ELASTICDL_ADMIN_TOKEN_FILE": str(token_file)},
        capture_output=True,
        text=True,
        timeout=300,
        check=False,
    )
    assert migrated.returncode == 0, migrated.stderr
    for name, port in (("agent", 7010), ("api", 8850)):
        spec = {"selector": {_MARK: name}, "ports": [{"port": port, "targetPort": port}]}
        cluster.make("services", {"metadata": {"name": f"elasticdl-{name}"}, "spec": spec})
    kubernetes = {
        "ELASTICDL_LAUNCHER": "kubernetes",
        "ELASTICDL_KUBERNETES_IMAGE": image,
        "ELASTICDL_KUBERNETES_JOB_IMAGES": "*",
        "ELASTICDL_KUBERNETES_CLAIM": "data",
        "ELASTICDL_KUBERNETES_LISTEN": "$(POD_IP):7010",
        "ELASTICDL_KUBERNETES_NODE_SELECTOR": f"{_POOL}=train",
        "ELASTICDL_KUBERNETES_WORKER_CPU": "1.1",
        "ELASTICDL_KUBERNETES_WORKER_MEMORY": "64Mi",
        "ELASTICDL_KUBERNETES_SERVER_MEMORY": "64Mi",
        "ELASTICDL_KUBERNETES_SERVER_CPU": "1m",
        "ELASTICDL_API_URL": f"http://elasticdl-api.{space}.svc:8850",
        "ELASTICDL_REDIS_URL": redis_url,
        **own,
    }
    api = {
        "ELASTICDL_ADMIN_TOKEN_FILE": str(token_file),
        "ELASTICDL_API_HOST": "$(POD_IP)",
        "ELASTICDL_API_PLAIN_HTTP": "true",
        "ELASTICDL_API_PORT": "8850",
        "ELASTICDL_API_ALLOWED_HOSTS": f"elasticdl-api.{space}.svc",
    }
    cluster.start_service("agent", "elasticdl_agent", {**shared, **kubernetes}, node_token=False)
    cluster.start_service("api", "elasticdl_api", {**shared, **api})
    cluster.start_service("scheduler", "elasticdl_scheduler", {**shared, "ELASTICDL_SCHEDULER_POLICY": "fair"})
    cluster.environment["ELASTICDL_TOKEN"] = admin
    cluster.find_api()


def _answers(host: str, port: int) -> bool:
    try:
        with socket.create_connection((host, port), timeout=2):
            return True
    except OSError:
        return False


def _runs(pod: Object) -> bool:
    return any("running" in one["state"] for one in pod["status"].get("containerStatuses", []))

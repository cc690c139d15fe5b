"""ElasticDL on a fake Kubernetes: agent, api and scheduler are pods, and so is every process of its jobs."""

from __future__ import annotations

import contextlib
import copy
import secrets
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from pathlib import Path

from elasticdl_agent.kubernetes.pod_states import INDEX, JOB, ROLE
from tests.e2e.local_cluster import Cluster, user_environment
from tests.fakes.kubernetes.cluster import FakeKubernetes
from tests.fakes.kubernetes.objects import KINDS, Object
from tests.fakes.redis_server import RedisServer
from tests.integration.conftest import PostgresServer

IMAGE, SERVICES = "elasticdl:test", "services"
_MARK = "app.kubernetes.io/name"
_READY_S = 120.0


@dataclass
class PodCluster(Cluster):
    """A cluster on Kubernetes, and the command line that talks to it.

    Attributes:
        kubernetes: the fake.
        services: the pods of services, as they were asked for.
    """

    kubernetes: FakeKubernetes = field(default_factory=FakeKubernetes)
    services: dict[str, Object] = field(default_factory=dict)

    def pods(self, job_id: str, role: str = "") -> list[Object]:
        """The pods of a job whose containers run, by index."""

        def find() -> list[Object]:
            found = self.kubernetes.store.all(
                "pods", "default", lambda pod: pod["metadata"]["labels"].get(JOB) == job_id
            )
            running = [pod for pod in found if role in ("", pod["metadata"]["labels"][ROLE]) and _runs(pod)]
            return sorted(running, key=lambda pod: int(pod["metadata"]["labels"][INDEX]))

        return self.kubernetes.do(find)

    def delete(self, pod: Object, grace_s: int = 1) -> None:
        """Deletes a pod."""
        name = pod["metadata"]["name"]
        options = {"gracePeriodSeconds": grace_s}
        self.kubernetes.do(lambda: self.kubernetes.store.delete(KINDS["pods"], "default", name, options))

    def kill(self, pod: Object) -> None:
        """Kills what runs in a pod, as the kernel would."""

        def kill() -> None:
            kubelet = self.kubernetes.kubelets[pod["spec"]["nodeName"]]
            if (process := kubelet.processes.get(pod["metadata"]["uid"])) is not None:
                process.kill()

        self.kubernetes.do(kill)

    def until(self, condition: Callable[[], bool], what: str, timeout: float = 240.0) -> None:
        """Waits for a state."""
        end = time.monotonic() + timeout
        while not condition():
            if time.monotonic() > end:
                raise AssertionError(f"not within {timeout:.0f} s: {what}\n{self.picture()}")
            time.sleep(0.1)

    def picture(self) -> str:
        """All pods with the ends of their logs."""

        def draw() -> str:
            told = []
            for pod in self.kubernetes.store.all("pods"):
                name, node = pod["metadata"]["name"], pod["spec"].get("nodeName", "")
                states = [one["state"] for one in pod["status"].get("containerStatuses", [])]
                output = self.kubernetes.kubelets[node].output.get(("default", name), []) if node else []
                end = b"".join(piece for _, piece in output)[-1500:].decode(errors="replace")
                told.append(f"== {name} on {node}: {pod['status'].get('phase')} {states}\n{end}")
            return "\n".join(told)

        return self.kubernetes.do(draw)

    def start_service(self, name: str, module: str, variables: dict[str, str], *, node_token: bool = True) -> None:
        """Makes the pod of a service and waits until it runs."""
        volumes = [{"name": "data", "persistentVolumeClaim": {"claimName": "data"}}]
        mounts = [{"name": "data", "mountPath": str(self.data_dir)}]
        if node_token:
            volumes.append({"name": "node", "secret": {"secretName": "elasticdl-node"}})
            mounts.append({"name": "node", "mountPath": "/mnt/elasticdl/node"})
            variables = {**variables, "ELASTICDL_RPC_CREDENTIALS": "/mnt/elasticdl/node/node.pem"}
        container = {
            "name": name,
            "image": IMAGE,
            "command": ["python", "-P", "-m", module],
            "env": [
                {"name": "POD_IP", "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
                *({"name": key, "value": value} for key, value in variables.items()),
            ],
            "volumeMounts": mounts,
        }
        pod = {
            "metadata": {"name": f"{name}-{secrets.token_hex(3)}", "labels": {_MARK: name}},
            "spec": {
                "restartPolicy": "Never",
                "nodeSelector": {"kubernetes.io/hostname": SERVICES},
                "containers": [container],
                "volumes": volumes,
            },
        }
        self.services[name] = pod
        self.kubernetes.do(lambda: self.kubernetes.store.create(KINDS["pods"], "default", pod))

    def restart_service(self, name: str) -> None:
        """Kills a service's pod and makes another, as a Deployment would; waits until it runs."""
        old, again = self.service_pod(name), copy.deepcopy(self.services[name])
        assert old is not None
        self.kill(old)
        again["metadata"]["name"] = f"{name}-{secrets.token_hex(3)}"
        self.until(lambda: self.service_pod(name) is None, f"the {name} is gone")
        self.kubernetes.do(lambda: self.kubernetes.store.create(KINDS["pods"], "default", again))
        self.until(lambda: self.service_pod(name) is not None, f"another {name} runs")

    def service_pod(self, name: str) -> Object | None:
        """The running pod of a service."""
        labelled = lambda pod: pod["metadata"]["labels"].get(_MARK) == name and _runs(pod)  # noqa: E731
        return next(iter(self.kubernetes.do(lambda: self.kubernetes.store.all("pods", "default", labelled))), None)

    def submit_digits(self, name: str, digits: Path, *flags: str, zoo: str = "digits") -> str:
        """Submits training on the digits."""
        from tests.e2e.local_cluster import EXAMPLES

        model = ("--model_zoo", str(EXAMPLES / zoo / "zoo"), "--model_def", "digits.forward")
        return self.submit(*model, "--training_data", str(digits / "train"), "--job_name", name, *flags)

    def job_dir(self, job_id: str) -> Path:
        return self.data_dir / "jobs" / job_id

    def client(self):
        from elasticdl import Client
        from elasticdl.client.retry import RetryPolicy

        return Client(
            api_url=self.environment["ELASTICDL_API_URL"],
            token=self.environment["ELASTICDL_TOKEN"],
            retry=RetryPolicy(attempts=20),
        )


@contextlib.contextmanager
def pod_services(nodes: dict[str, dict[str, str]]) -> Iterator[PodCluster]:
    """A cluster on nodes of this size, beside one that runs the services."""
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
        all_nodes = {SERVICES: {"cpu": "0", "memory": "0"}, **nodes}
        kubernetes = stack.enter_context(FakeKubernetes(all_nodes, {IMAGE: variables}, {"data": data}))
        cluster = PodCluster(folder, environment, kubernetes)
        _start(cluster, postgres.url("elasticdl"), redis.url)
        yield cluster


def _start(cluster: PodCluster, database_url: str, redis_url: str) -> None:
    store, admin = cluster.kubernetes.store, secrets.token_hex(16)
    shared = {
        "ELASTICDL_CLUSTER_SECRET": secrets.token_hex(16),
        "ELASTICDL_NODE_TOKEN": secrets.token_hex(16),
        "ELASTICDL_DATA_DIR": str(cluster.data_dir),
        "ELASTICDL_DATABASE_URL": database_url,
        "ELASTICDL_AGENT": "tls://agent.elasticdl@elasticdl-agent.default.svc:7010",
        "ELASTICDL_LOG_FORMAT": "json",
    }
    token_file = cluster.data_dir / "token"
    token_file.write_text(admin)
    migrated = subprocess.run(
        [sys.executable, "-P", "-m", "elasticdl_api", "migrate"],
        env={**cluster.environment, **shared, "ELASTICDL_ADMIN_TOKEN_FILE": str(token_file)},
        capture_output=True,
        text=True,
        timeout=120,
        check=False,
    )
    assert migrated.returncode == 0, migrated.stderr
    for name in ("agent", "api"):
        service = {"metadata": {"name": f"elasticdl-{name}"}, "spec": {"selector": {_MARK: name}}}
        cluster.kubernetes.do(lambda service=service: store.create(KINDS["services"], "default", service))
    kubernetes = {
        "KUBECONFIG": str(cluster.kubernetes.kubeconfig()),
        "ELASTICDL_LAUNCHER": "kubernetes",
        "ELASTICDL_KUBERNETES_IMAGE": IMAGE,
        "ELASTICDL_KUBERNETES_CLAIM": "data",
        "ELASTICDL_KUBERNETES_LISTEN": "$(POD_IP):7010",
        "ELASTICDL_KUBERNETES_WORKER_MEMORY": "64Mi",
        "ELASTICDL_KUBERNETES_SERVER_MEMORY": "64Mi",
        "ELASTICDL_KUBERNETES_SERVER_CPU": "1m",
        "ELASTICDL_API_URL": "http://elasticdl-api.default.svc:8850",
        "ELASTICDL_REDIS_URL": redis_url,
    }
    api = {
        "ELASTICDL_ADMIN_TOKEN_FILE": str(token_file),
        "ELASTICDL_API_HOST": "$(POD_IP)",
        "ELASTICDL_API_PORT": "8850",
        "ELASTICDL_API_ALLOWED_HOSTS": "elasticdl-api.default.svc",
    }
    cluster.start_service("agent", "elasticdl_agent", {**shared, **kubernetes}, node_token=False)
    cluster.start_service("api", "elasticdl_api", {**shared, **api})
    cluster.start_service("scheduler", "elasticdl_scheduler", {**shared, "ELASTICDL_SCHEDULER_POLICY": "fair"})
    cluster.until(lambda: cluster.service_pod("api") is not None, "the api's pod runs", _READY_S)
    address = (cluster.service_pod("api") or {})["status"]["podIP"]
    cluster.environment |= {"ELASTICDL_API_URL": f"http://{address}:8850", "ELASTICDL_TOKEN": admin}

    def ready() -> bool:
        return cluster.cli("jobs", "list", expect=None).returncode == 0

    cluster.until(ready, "the api answers", _READY_S)


def _runs(pod: Object) -> bool:
    return any("running" in one["state"] for one in pod["status"].get("containerStatuses", []))

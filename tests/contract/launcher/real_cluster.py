"""A namespace on a real Kubernetes whose nodes see this machine's files: one that runs on this machine.

``ELASTICDL_TEST_KUBECONFIG`` names a kubeconfig of its administrator, ``ELASTICDL_TEST_IMAGE`` an image that its
nodes have: an empty root (with ``/tmp`` for all, and ``bin`` and ``lib`` that lead to ``/usr``) that ``/usr`` of this
machine is mounted into. Whole jobs take three nodes besides the first, and ``ELASTICDL_TEST_CLUSTER``, a program that
is called with ``kill-node I``, ``start-node I`` (of the node whose name ends with ``-I``), ``stop-api`` or
``start-api``.
"""

from __future__ import annotations

import os
import secrets
import shutil
import sys
import tempfile
from pathlib import Path

import httpx
import yaml

from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.kubernetes.access import KubernetesAccess
from elasticdl_agent.kubernetes.launcher import KubernetesLauncher

KUBECONFIG = os.environ.get("ELASTICDL_TEST_KUBECONFIG", "")
IMAGE = os.environ.get("ELASTICDL_TEST_IMAGE", "docker.io/lab/host:1")
CLUSTER = os.environ.get("ELASTICDL_TEST_CLUSTER", "")
USER = 10001
"""Whom pods run as."""
_ROOT = Path(__file__).parents[3]


class RealCluster:
    """A namespace, and a volume in it that is a folder of this machine; a context manager.

    Args:
        directories: whose data the volume is.
        cpu: how much the namespace may have.

    Attributes:
        namespace: its name.
    """

    def __init__(self, directories: AgentDirectories, cpu: str) -> None:
        self._cpu = cpu
        self._data = directories.data
        self.namespace = f"elasticdl-{secrets.token_hex(4)}"
        self._folder = Path(tempfile.mkdtemp(prefix="edl-"))
        access = KubernetesAccess.of_kubeconfig(Path(KUBECONFIG))
        headers = {"Authorization": f"Bearer {access.token()}"} if access.token() else {}
        self._http = httpx.Client(base_url=access.server, verify=access.tls or False, headers=headers, timeout=30)

    def __enter__(self) -> RealCluster:
        self._data.mkdir(parents=True, exist_ok=True)
        os.chown(self._data, USER, USER)
        claim = {"accessModes": ["ReadWriteMany"], "storageClassName": "", "volumeName": self.namespace}
        volume = {
            "capacity": {"storage": "1Gi"},
            "accessModes": ["ReadWriteMany"],
            "storageClassName": "",
            "claimRef": {"namespace": self.namespace, "name": "data"},
            "hostPath": {"path": str(self._data)},
        }
        self._make("/api/v1/namespaces", self.namespace)
        self._make("/api/v1/persistentvolumes", self.namespace, volume)
        claim["resources"] = {"requests": {"storage": "1Gi"}}  # type: ignore[assignment]
        inside = f"/api/v1/namespaces/{self.namespace}"
        self._make(f"{inside}/persistentvolumeclaims", "data", claim)
        self._http.post(
            f"{inside}/serviceaccounts", json={"metadata": {"name": "default"}}
        )  # or it comes in a moment
        self._make(f"{inside}/resourcequotas", "all", {"hard": {"requests.cpu": self._cpu}})
        return self

    def __exit__(self, *_: object) -> None:
        pods = f"/api/v1/namespaces/{self.namespace}/pods"
        self._http.delete(pods, params={"gracePeriodSeconds": "1"})
        for pod in self._http.get(pods).json()["items"]:
            patch = {"headers": {"Content-Type": "application/merge-patch+json"}}
            self._http.patch(f"{pods}/{pod['metadata']['name']}", json={"metadata": {"finalizers": None}}, **patch)
        for path in (f"namespaces/{self.namespace}", f"persistentvolumes/{self.namespace}"):
            self._http.delete(f"/api/v1/{path}")
        self._http.close()
        shutil.rmtree(self._folder)

    def kubeconfig(self, token: str = "") -> Path:
        """The administrator's, in that namespace."""
        assert not token, "users of few rights are made on the fake alone"
        config = yaml.safe_load(Path(KUBECONFIG).read_text())
        chosen = next(one for one in config["contexts"] if one["name"] == config["current-context"])
        chosen["context"]["namespace"] = self.namespace
        file = self._folder / "kubeconfig"
        file.write_text(yaml.safe_dump(config))
        return file

    def settings(self) -> dict[str, str]:
        """What the agent is told of pods: Python and this tree are this machine's."""
        seen = {"/usr", sys.base_prefix, str(_ROOT)}
        volumes = ";".join(f"host_path={path},mount_path={path},read_only=true" for path in sorted(seen))
        return {"image": IMAGE, "volume": volumes}

    def _make(self, path: str, name: str, spec: dict | None = None) -> None:
        self._http.post(
            path, json={"metadata": {"name": name}, **({"spec": spec} if spec else {})}
        ).raise_for_status()


class OwningLauncher(KubernetesLauncher):
    """A launcher run by another user than pods are: it gives them their folders."""

    def _make_folders(self, job_id: str) -> None:
        super()._make_folders(job_id)
        job = self._directories.job_dir(job_id)
        for folder in (job, *self._directories.worker_folders(job_id)):
            for one in (folder, *folder.parents):
                if job.parent in (one, *one.parents):
                    os.chown(one, USER, USER)

"""Manifests of all that a job has in the cluster: its anchor, and of each process a pod, a Secret and a Service."""

from __future__ import annotations

import base64
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elasticdl_agent.directories import AgentDirectories
from elasticdl_agent.kubernetes.client import Manifest
from elasticdl_agent.kubernetes.pod_states import CONTAINER, FINALIZER, GATE, INCARNATION, INDEX, JOB, ROLE
from elasticdl_agent.kubernetes.settings import KubernetesSettings
from elasticdl_core.devices import WHOLE
from elasticdl_core.errors import InvalidInputError
from elasticdl_core.pods import parse_pairs, parse_volumes, times
from elasticdl_core.ports.launcher import ProcessId, ProcessSpec, Role
from elasticdl_runtime.launcher.addresses import PROCESS_PORT, service_name
from elasticdl_runtime.rpc.credentials import CREDENTIALS_VARIABLE, TlsAddress
from elasticdl_runtime.tokens import certificate_name

MANAGED = "app.kubernetes.io/managed-by"
SELECTOR = f"{MANAGED}=elasticdl,{JOB}"
HOME = "/mnt/elasticdl"
"""Where pods find their credentials, and write what is only theirs."""
_ADDRESS = "ELASTICDL_POD_IP"
_CREDENTIALS_KEY = "credentials.pem"
_VARIABLE = re.compile(r"[-._a-zA-Z][-._a-zA-Z0-9]*")
_LIVES_ON_S = 10
"""Seconds that pods wait for a node that is not heard of, before they count as lost."""
_GRACE_S = 60
"""What a drained node or an eviction leaves a pod, unless it is told another time."""
_USER = 10001
SERVERS = frozenset({Role.MASTER, Role.PS})
"""Roles that others connect to."""


@dataclass(frozen=True, slots=True)
class PodTemplate:
    """The parts that all pods have in common.

    Attributes:
        settings: of the agent.
        namespace: where they are made.
        commands: what each role runs; another interpreter in tests only.
    """

    settings: KubernetesSettings
    namespace: str
    commands: Mapping[Role, tuple[str, ...]] = field(
        default_factory=lambda: {role: ("python", "-P", "-m", f"elasticdl_{role}") for role in Role}
    )

    def path(self, kind: str, name: str = "") -> str:
        """The path of objects of a kind, such as ``pods``, or of one."""
        group = {"poddisruptionbudgets": "apis/policy/v1"}.get(kind, "api/v1")
        return f"/{group}/namespaces/{self.namespace}/{kind}" + (f"/{name}" if name else "")

    def anchor(self, job_id: str) -> Manifest:
        """The object that owns all others of a job: who deletes it deletes the job's pods."""
        return {**_head("v1", "ConfigMap", anchor_name(job_id), _of_job(job_id)), "data": {"job": job_id}}

    def secret(self, spec: ProcessSpec, environment: Mapping[str, str], credentials: bytes, uid: str) -> Manifest:
        """The secrets of one process: its variables, among them its tokens, and its certificate.

        Raises:
            InvalidInputError: a variable has a name that pods cannot have.
        """
        for name in environment:
            if not _VARIABLE.fullmatch(name) or name == _CREDENTIALS_KEY:
                raise InvalidInputError(
                    f"a pod cannot have an environment variable {name[:40]!r}",
                    fix="use letters, digits, `_`, `-` and `.`, and begin with none of the digits",
                )
        values = {name: value.encode() for name, value in environment.items()} | {_CREDENTIALS_KEY: credentials}
        return {
            **_owned(_head("v1", "Secret", pod_name(spec.id), _labels(spec.id)), spec.id.job_id, uid),
            "type": "Opaque",
            "data": {name: base64.b64encode(value).decode() for name, value in values.items()},
        }

    def service(self, process: ProcessId, uid: str) -> Manifest:
        """Leads to this incarnation of a master or a parameter server; the address is the same for each."""
        head = _head(
            "v1", "Service", service_name(process.job_id, process.role, process.index), _of_job(process.job_id)
        )
        return {
            **_owned(head, process.job_id, uid),
            "spec": {
                "selector": _labels(process),
                "ports": [{"name": "grpc", "port": PROCESS_PORT, "targetPort": PROCESS_PORT, "protocol": "TCP"}],
                # It has to be reached before anybody could say that it is ready.
                "publishNotReadyAddresses": True,
            },
        }

    def budget(self, job_id: str, uid: str, servers: int) -> Manifest:
        """Lets nodes be drained of one of a job's parameter servers at a time: the others hold the model meanwhile.

        A whole number that stays is all that Kubernetes knows of pods without a controller: of others that may go it
        would let none go.
        """
        head = _head("policy/v1", "PodDisruptionBudget", f"{anchor_name(job_id)}-ps", _of_job(job_id))
        return {
            **_owned(head, job_id, uid),
            "spec": {"minAvailable": servers - 1, "selector": {"matchLabels": {JOB: job_id, ROLE: str(Role.PS)}}},
        }

    def pod(
        self,
        spec: ProcessSpec,
        environment: Mapping[str, str],
        directories: AgentDirectories,
        uid: str,
        *,
        gated: bool,
    ) -> Manifest:
        """The pod of a process.

        Args:
            spec: the process.
            environment: its variables, which its Secret holds.
            directories: where its job's files are.
            uid: of the job's anchor.
            gated: whether it waits until an older incarnation has ended.

        Raises:
            InvalidInputError: it asks for a part of a device.
        """
        process, name = spec.id, pod_name(spec.id)
        volumes, mounts = self._volumes(spec, name, directories)
        own = self._own(process)
        variables: list[Manifest] = [
            {"name": _ADDRESS, "valueFrom": {"fieldRef": {"fieldPath": "status.podIP"}}},
            *(
                {"name": variable, "valueFrom": {"secretKeyRef": {"name": name, "key": variable}}}
                for variable in sorted(environment.keys() - own.keys() - {_ADDRESS})
            ),
            *({"name": variable, "value": value} for variable, value in own.items()),
        ]
        container = {
            "name": CONTAINER,
            "image": spec.pod.image or self.settings.image,
            "imagePullPolicy": spec.pod.image_pull_policy or self.settings.image_pull_policy,
            "command": list(self.commands[process.role]),
            "workingDir": str(directories.job_dir(process.job_id)),
            "env": variables,
            "volumeMounts": mounts,
            "resources": self._resources(spec),
            "securityContext": {
                "allowPrivilegeEscalation": False,
                "readOnlyRootFilesystem": True,
                "capabilities": {"drop": ["ALL"]},
            },
            "terminationMessagePolicy": "FallbackToLogsOnError",
        }
        manifest = _owned(_head("v1", "Pod", name, _labels(process)), process.job_id, uid)
        manifest["metadata"]["finalizers"] = [FINALIZER]
        body: Manifest = {
            "restartPolicy": "Never",
            "automountServiceAccountToken": False,
            "enableServiceLinks": False,
            # The first process of a namespace is not ended by signals that it does not handle, and has to wait for
            # orphans: let that be the pod's own, not ours.
            "shareProcessNamespace": True,
            "terminationGracePeriodSeconds": _GRACE_S,
            "securityContext": {
                "runAsNonRoot": True,
                "runAsUser": _USER,
                "runAsGroup": _USER,
                "fsGroup": _USER,
                "fsGroupChangePolicy": "OnRootMismatch",
                "seccompProfile": {"type": "RuntimeDefault"},
            },
            "tolerations": [
                {
                    "key": f"node.kubernetes.io/{trouble}",
                    "operator": "Exists",
                    "effect": "NoExecute",
                    "tolerationSeconds": _LIVES_ON_S,
                }
                for trouble in ("not-ready", "unreachable")
            ],
            "containers": [container],
            "volumes": volumes,
        }
        if selector := {**spec.pod.node_selector, **parse_pairs(self.settings.node_selector, ",")}:
            body["nodeSelector"] = selector
        if self.settings.priority_class:
            body["priorityClassName"] = self.settings.priority_class
        if gated:
            body["schedulingGates"] = [{"name": GATE}]
        return {**manifest, "spec": body}

    def _own(self, process: ProcessId) -> dict[str, str]:
        """Variables that are no secret, and that nobody who asks for a launch sets."""
        listen = TlsAddress(
            certificate_name(process.job_id, process.role, process.index), f"$({_ADDRESS}):{PROCESS_PORT}"
        )
        return {
            "ELASTICDL_LISTEN": str(listen),
            "ELASTICDL_GROUP_HOST": f"$({_ADDRESS})",
            CREDENTIALS_VARIABLE: f"{HOME}/credentials/{_CREDENTIALS_KEY}",
            "TMPDIR": f"{HOME}/tmp",
            "HOME": f"{HOME}/tmp",
            "NUMBA_CACHE_DIR": f"{HOME}/tmp/numba",
        }

    def _resources(self, spec: ProcessSpec) -> Manifest:
        settings = self.settings
        worker = spec.id.role is Role.WORKER
        slots = max(1, spec.slots)
        cpu, memory = settings.server_cpu, settings.server_memory
        if worker:
            cpu, memory = times(settings.worker_cpu, slots), times(settings.worker_memory, slots)
        requests, limits = {"cpu": cpu, "memory": memory}, {}
        memory = f"{spec.memory_mib}Mi" if spec.memory_mib else ""
        # What is asked for is the limit as well: what a process may take is what was promised to it.
        for kind, amount in (("cpu", spec.pod.cpu), ("memory", memory), ("ephemeral-storage", spec.pod.disk)):
            if amount:
                requests[kind] = limits[kind] = amount
        if spec.device_share:
            if spec.device_share % WHOLE:
                raise InvalidInputError(
                    f"a pod cannot have {spec.device_share} % of a GPU",
                    fix="ask for whole ones: --worker_resource_request gpu=1",
                )
            limits["nvidia.com/gpu"] = str(spec.device_share // WHOLE)
        return {"requests": requests, "limits": limits} if limits else {"requests": requests}

    def _volumes(
        self, spec: ProcessSpec, name: str, directories: AgentDirectories
    ) -> tuple[list[Manifest], list[Manifest]]:
        """The job's folder, in which workers write in folders of their own only; credentials; what is shared."""
        process = spec.id
        job = directories.job_dir(process.job_id)
        worker = process.role is Role.WORKER
        volumes: list[Manifest] = [
            {"name": "data", "persistentVolumeClaim": {"claimName": self.settings.claim}},
            {
                "name": "credentials",
                "secret": {"secretName": name, "defaultMode": 0o440, "items": [_whole(_CREDENTIALS_KEY)]},
            },
            {"name": "tmp", "emptyDir": {}},
        ]
        mounts: list[Manifest] = [
            {"name": "data", "mountPath": str(job), "subPath": self._below(job), "readOnly": worker},
            {"name": "credentials", "mountPath": f"{HOME}/credentials", "readOnly": True},
            {"name": "tmp", "mountPath": f"{HOME}/tmp"},
        ]
        if worker:
            mounts += [
                {"name": "data", "mountPath": str(folder), "subPath": self._below(folder)}
                for folder in directories.worker_folders(process.job_id)
            ]
        for number, asked in enumerate(parse_volumes(f"{self.settings.volume};{spec.pod.volume}")):
            read_only = asked.get("read_only", "").lower() == "true"
            source: Manifest = (
                {"persistentVolumeClaim": {"claimName": asked["claim_name"]}}
                if "claim_name" in asked
                else {"hostPath": {"path": asked["host_path"]}}
            )
            volumes.append({"name": f"volume-{number}", **source})
            mount: Manifest = {"name": f"volume-{number}", "mountPath": asked["mount_path"], "readOnly": read_only}
            if "sub_path" in asked:
                mount["subPath"] = asked["sub_path"]
            mounts.append(mount)
        return volumes, mounts

    def _below(self, folder: Path) -> str:
        return str(folder.relative_to(self.settings.data_dir))


def anchor_name(job_id: str) -> str:
    """The name of a job's anchor."""
    return f"job-{job_id}"


def pod_name(process: ProcessId) -> str:
    """The name of a process's pod and Secret: the same process has the same one, so that it is made once."""
    return f"{process.job_id}-{process.role}-{process.index}-{process.incarnation}"


def process_named(name: str) -> ProcessId:
    """The process whose pod has a name.

    Raises:
        ValueError: it is no name of ours.
    """
    job_id, role, index, incarnation = name.rsplit("-", 3)
    return ProcessId(job_id, Role(role), int(index), int(incarnation))


def credentials_patch(credentials: bytes) -> Manifest:
    """Replaces the certificate in a process's Secret."""
    return {"data": {_CREDENTIALS_KEY: base64.b64encode(credentials).decode()}}


def _labels(process: ProcessId) -> dict[str, str]:
    return {
        **_of_job(process.job_id),
        ROLE: str(process.role),
        INDEX: str(process.index),
        INCARNATION: str(process.incarnation),
    }


def _of_job(job_id: str) -> dict[str, str]:
    return {MANAGED: "elasticdl", JOB: job_id}


def _head(version: str, kind: str, name: str, labels: Mapping[str, str]) -> Manifest:
    return {"apiVersion": version, "kind": kind, "metadata": {"name": name, "labels": dict(labels)}}


def _owned(manifest: Manifest, job_id: str, uid: str) -> Manifest:
    owner: dict[str, Any] = {"apiVersion": "v1", "kind": "ConfigMap", "name": anchor_name(job_id), "uid": uid}
    manifest["metadata"]["ownerReferences"] = [owner]
    return manifest


def _whole(key: str) -> dict[str, str]:
    return {"key": key, "path": key}

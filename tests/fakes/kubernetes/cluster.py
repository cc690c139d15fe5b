"""The fake cluster as a whole: API server, controllers, scheduler and nodes on the event loop of a thread."""

from __future__ import annotations

import asyncio
import copy
import secrets
import shutil
import socket
import tempfile
import threading
from collections.abc import Callable
from pathlib import Path
from typing import TypeVar

import uvicorn
import yaml

from tests.fakes.kubernetes.node import Kubelet
from tests.fakes.kubernetes.objects import KINDS, Object, Refusal, amount, label_selector, now, requests_of
from tests.fakes.kubernetes.server import ApiServer, Rule, disrupt
from tests.fakes.kubernetes.store import Event, Store

PODS, NODES = KINDS["pods"], KINDS["nodes"]
T = TypeVar("T")


class FakeKubernetes:
    """A cluster; a context manager.

    Args:
        nodes: what each has: ``{"cpu": "2", "memory": "4Gi"}`` by name.
        images: what can be pulled, each with variables that its containers begin with.
        claims: by name, the folders of volumes that last.
        kept: changes that watches can go on from.

    Attributes:
        url: of the API server.
        token: of its administrator.
        store: the objects; use ``do`` to touch them from outside of its thread.
        api: the API server, for faults.
        kubelets: by the names of their nodes.
        rolls_out: whether Deployments and StatefulSets come to be ready.
    """

    def __init__(
        self,
        nodes: dict[str, dict[str, str]] | None = None,
        images: dict[str, dict[str, str]] | None = None,
        claims: dict[str, Path] | None = None,
        *,
        kept: int = 1000,
    ) -> None:
        self.token = secrets.token_hex(16)
        self.store = Store(kept)
        self.api = ApiServer(self.store, {self.token: ("admin", None)}, self._logs)
        self._nodes = nodes or {}
        self.images, self.claims = images or {}, claims or {}
        self.kubelets: dict[str, Kubelet] = {}
        self.folder = Path(tempfile.mkdtemp(prefix="kube-"))
        self._hosts = self.folder / "etc" / "hosts"
        self._loop = asyncio.new_event_loop()
        self._thread = threading.Thread(target=self._loop.run_forever, name="kubernetes", daemon=True)
        self._pending: set[str] = set()
        self.rolls_out = True

    def __enter__(self) -> FakeKubernetes:
        self._hosts.parent.mkdir()
        self._thread.start()
        listener = socket.create_server(("127.0.0.1", 0))
        self.url = f"http://127.0.0.1:{listener.getsockname()[1]}"
        self._run(self._start(listener))
        return self

    def __exit__(self, *_: object) -> None:
        self._run(self._stop())
        self._loop.call_soon_threadsafe(self._loop.stop)
        self._thread.join()
        self._loop.close()
        shutil.rmtree(self.folder, ignore_errors=True)

    def do(self, call: Callable[[], T]) -> T:
        """Does something on the cluster's thread; returns what it gives."""

        async def run() -> T:
            return call()

        return self._run(run())

    def kubeconfig(self, namespace: str = "default", token: str = "") -> Path:
        """Writes a kubeconfig of the administrator, or of another token."""
        config = {
            "current-context": "fake",
            "contexts": [{"name": "fake", "context": {"cluster": "fake", "user": "me", "namespace": namespace}}],
            "clusters": [{"name": "fake", "cluster": {"server": self.url}}],
            "users": [{"name": "me", "user": {"token": token or self.token}}],
        }
        file = self.folder / f"kubeconfig-{secrets.token_hex(4)}"
        file.write_text(yaml.safe_dump(config))
        return file

    def user(self, name: str, *rules: Rule) -> str:
        """Lets somebody in who may do little; returns the token."""
        token = secrets.token_hex(16)
        self.api.users[token] = name, rules
        return token

    def kill_node(self, name: str) -> None:
        """Power loss: what runs there dies, and the cluster says so: not ready, and pods are deleted."""

        def kill() -> None:
            self.kubelets[name].power_off()
            node = copy.deepcopy(self.store.get(NODES, "", name))
            node["status"]["conditions"] = [{"type": "Ready", "status": "Unknown", "reason": "NodeStatusUnknown"}]
            self.store.replace(NODES, "", name, node, "controller", part="status")
            for pod in self.store.all("pods", match=lambda one: one["spec"].get("nodeName") == name):
                if pod["status"]["phase"] in ("Pending", "Running") and "deletionTimestamp" not in pod["metadata"]:
                    disrupt(
                        self.store, pod, "DeletionByTaintManager", "Taint manager: deleting due to NoExecute taint"
                    )
                    self.store.delete(PODS, pod["metadata"]["namespace"], pod["metadata"]["name"])

        self.do(kill)

    def start_node(self, name: str, *, reads: bool = True) -> None:
        """The power is back, and the node ready; whether its kubelet has read what it needs is told, too."""

        def start() -> None:
            self.kubelets[name].has_read = reads
            self.kubelets[name].power_on()
            node = copy.deepcopy(self.store.get(NODES, "", name))
            node["status"]["conditions"] = [{"type": "Ready", "status": "True"}]
            self.store.replace(NODES, "", name, node, "kubelet", part="status")

        self.do(start)

    # -- the inside ------------------------------------------------------------------------------------------------

    def _run(self, work) -> T:
        return asyncio.run_coroutine_threadsafe(work, self._loop).result(60)

    async def _start(self, listener: socket.socket) -> None:
        config = uvicorn.Config(
            self.api, log_config=None, lifespan="off", ws="none", http="httptools", timeout_graceful_shutdown=0
        )
        self._server = uvicorn.Server(config)
        config.load()
        self._server.lifespan, self._listener = config.lifespan_class(config), listener
        await self._server.startup([listener])
        self._serving = asyncio.ensure_future(self._server.main_loop())
        self.store.listeners.append(self._changed)
        for name, can in self._nodes.items():
            self.kubelets[name] = Kubelet(self.store, name, self.folder / name, self.images, self.claims, self._hosts)
            node = {"metadata": {"name": name, "labels": {"kubernetes.io/hostname": name}}}
            made = self.store.create(NODES, "", node)
            ready = {"type": "Ready", "status": "True"}
            made["status"] = {"allocatable": {"pods": "110", **can}, "capacity": dict(can), "conditions": [ready]}
            self.store.replace(NODES, "", name, made, "kubelet", part="status")
        self._resolve()

    async def _stop(self) -> None:
        self.store.listeners.remove(self._changed)
        for kubelet in self.kubelets.values():
            await kubelet.close()
        self.api.cut_watches()
        self._server.should_exit = True
        await self._serving
        await self._server.shutdown([self._listener])

    def _changed(self, event: Event) -> None:
        """What controllers, scheduler and kubelets do when something changes; later, as they do."""
        self._loop.call_soon(self._react, event)

    def _react(self, event: Event) -> None:
        plural = event.key[0]
        gone = event.after is None or (
            event.before is not None
            and "deletionTimestamp" in event.after["metadata"]
            and "foregroundDeletion" in (event.after["metadata"].get("finalizers") or [])
        )
        if gone:
            self._collect((event.before or event.after)["metadata"]["uid"])
        if event.after is not None and (owners := event.after["metadata"].get("ownerReferences")):
            present = {found["metadata"]["uid"] for found in self.store.objects.values()}
            if all(owner["uid"] not in present for owner in owners):
                self._delete(event.key)
        if plural in ("pods", "nodes", "resourcequotas"):
            self._schedule()
            self._count_quotas()
        if plural in ("pods", "services"):
            self._resolve()
        if plural == "pods":
            pod = event.after or event.before
            kubelet = self.kubelets.get(pod["spec"].get("nodeName", ""))
            if kubelet is not None and event.after is None:
                kubelet.gone(pod["metadata"]["uid"])
            elif kubelet is not None and self.store.objects.get(event.key) is event.after:
                kubelet.look(event.after)
        if plural in ("deployments", "statefulsets") and event.after is not None:
            self._roll_out(event.key)
        if plural == "secrets" and event.after is not None:
            for pod in self.store.all("pods", event.key[1]):
                if (kubelet := self.kubelets.get(pod["spec"].get("nodeName", ""))) is not None:
                    kubelet.look(pod)

    def roll_out(self) -> None:
        """All Deployments and StatefulSets come to be ready from now on: their pods are nobody's concern here."""
        self.rolls_out = True
        self.do(lambda: [self._roll_out(key) for key in list(self.store.objects)])

    def _roll_out(self, key: tuple[str, str, str]) -> None:
        present = self.store.objects.get(key)
        if present is None or key[0] not in ("deployments", "statefulsets") or not self.rolls_out:
            return
        replicas = present["spec"].get("replicas", 1)
        status = {"observedGeneration": present["metadata"].get("generation", 0)}
        status |= dict.fromkeys(("replicas", "updatedReplicas", "readyReplicas"), replicas)
        if present.get("status") != status:
            found = {**copy.deepcopy(present), "status": status}
            self.store.replace(KINDS[key[0]], key[1], key[2], found, "controller", part="status")

    def _collect(self, uid: str) -> None:
        """Deletes what has lost its last owner, and lets go of an owner whose last one is gone."""
        present = {found["metadata"]["uid"] for found in self.store.objects.values()}
        waits = next((found for found in self.store.objects.values() if found["metadata"]["uid"] == uid), None)
        for key, owned in self.store.owned(uid):
            owners = owned["metadata"]["ownerReferences"]
            if all(owner["uid"] not in present or owner["uid"] == uid for owner in owners):
                self._delete(key)
        if waits is not None and not self.store.owned(uid):
            found = copy.deepcopy(waits)
            found["metadata"]["finalizers"].remove("foregroundDeletion")
            kind = next(one for one in KINDS.values() if one.kind == found["kind"])
            self.store.replace(kind, found["metadata"].get("namespace", ""), found["metadata"]["name"], found, "gc")
        for found in list(self.store.objects.values()):
            waiting = "foregroundDeletion" in (found["metadata"].get("finalizers") or []) and found is not waits
            if waiting and not self.store.owned(found["metadata"]["uid"]):
                self._collect(found["metadata"]["uid"])

    def _delete(self, key: tuple[str, str, str]) -> None:
        try:
            if "deletionTimestamp" not in self.store.objects[key]["metadata"]:
                self.store.delete(KINDS[key[0]], key[1], key[2])
        except (KeyError, Refusal):
            pass

    def _schedule(self) -> None:
        """Binds pods that wait, the oldest first, to the first node with room."""
        pods = self.store.all("pods")
        waiting = [
            pod
            for pod in pods
            if not pod["spec"].get("nodeName") and not pod["spec"].get("schedulingGates")
            and "deletionTimestamp" not in pod["metadata"] and pod["status"]["phase"] == "Pending"
        ]  # fmt: skip
        for pod in sorted(waiting, key=lambda one: int(one["metadata"]["resourceVersion"])):
            node = next((one for one in self.store.all("nodes") if self._fits(pod, one)), None)
            metadata, found = pod["metadata"], copy.deepcopy(pod)
            if node is not None:
                found["spec"]["nodeName"] = node["metadata"]["name"]
                self.store.replace(PODS, metadata["namespace"], metadata["name"], found, "scheduler")
            elif metadata["uid"] not in self._pending:
                self._pending.add(metadata["uid"])
                told = {"reason": "Unschedulable", "message": "0 nodes are available: Insufficient cpu."}
                found["status"]["conditions"] = [{"type": "PodScheduled", "status": "False", **told}]
                self.store.replace(PODS, metadata["namespace"], metadata["name"], found, "scheduler", part="status")

    def _fits(self, pod: Object, node: Object) -> bool:
        if node["status"]["conditions"][0]["status"] != "True" or (node.get("spec") or {}).get("unschedulable"):
            return False
        wanted = pod["spec"].get("nodeSelector") or {}
        if not label_selector(",".join(f"{key}={value}" for key, value in wanted.items()))(node):
            return False
        left = {name: amount(text) for name, text in node["status"]["allocatable"].items()}
        for other in self.store.all(
            "pods", match=lambda one: one["spec"].get("nodeName") == node["metadata"]["name"]
        ):
            if other["status"]["phase"] not in ("Succeeded", "Failed"):
                for name, value in requests_of(other).items():
                    left[name] = left.get(name, 0.0) - value
        return all(left.get(name, 0.0) >= value - 1e-9 for name, value in requests_of(pod).items())

    def _count_quotas(self) -> None:
        for quota in self.store.all("resourcequotas"):
            metadata, hard = quota["metadata"], quota.get("spec", {}).get("hard") or {}
            used = self.store.quota_used(metadata["namespace"])
            told = {name: f"{used.get(name.removeprefix('requests.'), 0.0):g}" for name in hard}
            found = {**copy.deepcopy(quota), "status": {"hard": hard, "used": told}}
            self.store.replace(
                KINDS["resourcequotas"], metadata["namespace"], metadata["name"], found, "controller", part="status"
            )

    def _resolve(self) -> None:
        """Stands in for DNS and the proxy of Services: a host's name leads to the pod behind it."""
        lines = ["127.0.0.1 localhost"]
        for service in self.store.all("services"):
            metadata, wanted = service["metadata"], service["spec"].get("selector") or {}
            selected = label_selector(",".join(f"{key}={value}" for key, value in wanted.items()))
            running = [
                pod["status"]["podIP"]
                for pod in self.store.all("pods", metadata["namespace"], selected)
                if pod["status"].get("podIP") and pod["status"]["phase"] in ("Pending", "Running")
            ]
            if running:
                name = f"{metadata['name']}.{metadata['namespace']}"
                # A Service that is to lead to pods before they are ready leads to those of lost nodes as well.
                lines.append(f"{running[0]} {name}.svc {name}.svc.cluster.local")
        with self._hosts.open("r+b" if self._hosts.exists() else "wb") as file:
            file.write("\n".join(lines).encode() + b"\n")
            file.truncate()

    def _logs(self, namespace: str, name: str, query: dict[str, str]) -> asyncio.Queue[bytes | None]:
        """What a pod printed; with ``follow`` also what it goes on to print."""
        queue: asyncio.Queue[bytes | None] = asyncio.Queue()
        pod = self.store.get(PODS, namespace, name)
        kubelet = self.kubelets[pod["spec"]["nodeName"]]
        pieces, key = kubelet.output.get((namespace, name), []), (namespace, name)
        if since := query.get("sinceTime"):
            from datetime import datetime

            pieces = [piece for piece in pieces if piece[0] >= datetime.fromisoformat(since).timestamp()]
        data = b"".join(piece for _, piece in pieces)
        if lines := query.get("tailLines"):
            data = b"".join(data.splitlines(keepends=True)[-int(lines) :]) if int(lines) else b""
        if query.get("limitBytes"):
            data = data[: int(query["limitBytes"])]
        if data:
            queue.put_nowait(data)
        seen, uid = len(kubelet.output.get(key, [])), pod["metadata"]["uid"]

        def more() -> None:
            nonlocal seen
            known = kubelet.output.get(key, [])
            for _, piece in known[seen:]:
                queue.put_nowait(piece)
            seen = len(known)
            if uid not in kubelet.processes:
                kubelet.listeners.remove(more)
                queue.put_nowait(None)

        if query.get("follow") in ("true", "1") and uid in kubelet.processes:
            kubelet.listeners.append(more)
        else:
            queue.put_nowait(None)
        return queue


__all__ = ["FakeKubernetes", "Rule", "now"]

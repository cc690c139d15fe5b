"""A node: its kubelet runs pods as processes, each in a mount namespace of its own."""

from __future__ import annotations

import asyncio
import base64
import copy
import os
import re
import secrets
import shutil
import signal
import time
from collections.abc import Callable
from pathlib import Path

from tests.fakes.kubernetes.objects import KINDS, Object, Refusal, now
from tests.fakes.kubernetes.store import Store

PODS = KINDS["pods"]
_DEATH_S = 15.0
"""Seconds in which what was killed is gone, on the most loaded machine."""
_UNSHARE = ("unshare", "-m" if os.geteuid() == 0 else "-Urm")
_MOUNTS = """set -e
mount -t tmpfs none /mnt
mkdir /mnt/.sources
n=0
while [ "$1" != -- ]; do
    mkdir /mnt/.sources/$n; mount --bind "$1" /mnt/.sources/$n; n=$((n+1)); shift
done
shift
while [ "$1" != -- ]; do
    source=/mnt/.sources/$1/$2
    if [ -d "$source" ]; then mkdir -p "$3"; fi
    mount --bind "$source" "$3"
    if [ "$4" = ro ]; then mount -o remount,bind,ro "$3"; fi
    shift 4
done
shift
cd "$1"
shift
exec "$@"
"""
"""What volumes come from, then mounts (number of the volume, path in it, place, mode), then the command."""


class Kubelet:
    """Runs the pods of a node.

    Args:
        store: the API server's objects.
        name: of the node.
        folder: for files of its pods.
        images: what can be pulled: names, each with variables that its containers begin with.
        claims: by name, the folders of volumes that last.
        hosts: a file of host names, which all pods see as theirs.

    Attributes:
        powered: whether there is power.
        has_read: whether it has read what it needs of the cluster; no container can be made before.
    """

    def __init__(
        self,
        store: Store,
        name: str,
        folder: Path,
        images: dict[str, dict[str, str]],
        claims: dict[str, Path],
        hosts: Path,
    ) -> None:
        self.store, self.name, self.folder, self.images = store, name, folder, images
        self.claims, self.hosts = claims, hosts
        self.powered, self.has_read = True, True
        self.pods: dict[str, asyncio.Task[None]] = {}
        self.processes: dict[str, asyncio.subprocess.Process] = {}
        self._kills: dict[str, tuple[int, asyncio.TimerHandle]] = {}
        self.output: dict[tuple[str, str], list[tuple[float, bytes]]] = {}
        self.listeners: list[Callable[[], None]] = []

    def look(self, pod: Object) -> None:
        """Does for a pod of this node what is to be done now."""
        uid = pod["metadata"]["uid"]
        if not self.powered:
            return
        if "deletionTimestamp" in pod["metadata"]:
            self._end(pod)
        elif uid not in self.pods and not _ended(pod):
            self.pods[uid] = asyncio.ensure_future(self._run(pod))
        for secret_volume in [one for one in pod["spec"].get("volumes") or [] if "secret" in one]:
            if uid in self.processes:
                self._project(pod, secret_volume)

    def gone(self, uid: str) -> None:
        """The object of a pod was removed: nothing of it may run."""
        if self.powered and (process := self.processes.get(uid)) is not None:
            _kill(process)

    def power_off(self) -> None:
        """All of it dies at once and tells nobody."""
        self.powered = False
        for process in self.processes.values():
            _kill(process)

    def power_on(self) -> None:
        """It begins anew: what ran here has ended, nobody saw how."""
        self.powered = True
        for pod in self.store.all("pods", match=lambda one: one["spec"].get("nodeName") == self.name):
            running = pod["status"]["phase"] in ("Pending", "Running")
            if running and pod["metadata"]["uid"] in self.pods and "deletionTimestamp" not in pod["metadata"]:
                self._tell(pod, {"terminated": {"exitCode": 255, "reason": "Unknown"}}, phase="Failed")
            self.look(pod)

    def read(self) -> None:
        """It has read what it needs, and tries again to make the containers that it could not."""
        self.has_read = True
        for pod in self.store.all("pods", match=lambda one: one["spec"].get("nodeName") == self.name):
            if (task := self.pods.get(pod["metadata"]["uid"])) is not None and task.done():
                del self.pods[pod["metadata"]["uid"]]
            self.look(pod)

    async def close(self) -> None:
        self.power_off()
        if self.pods:  # until all have been waited for: who leaves sooner leaves open pipes to the collector
            await asyncio.wait(self.pods.values(), timeout=_DEATH_S)
        for task in self.pods.values():
            task.cancel()
        await asyncio.gather(*self.pods.values(), return_exceptions=True)

    # -- a pod's life ----------------------------------------------------------------------------------------------

    async def _run(self, pod: Object) -> None:
        metadata, container = pod["metadata"], pod["spec"]["containers"][0]
        key, uid = (metadata["namespace"], metadata["name"]), metadata["uid"]
        address = f"127.{1 + secrets.randbelow(254)}.{secrets.randbelow(256)}.{1 + secrets.randbelow(254)}"
        waiting = {"waiting": {"reason": "ContainerCreating"}}
        self._tell(pod, waiting, podIP=address, startTime=now())
        if container["image"] not in self.images:
            for reason in ("ErrImagePull", "ImagePullBackOff"):
                told = {"reason": reason, "message": f'failed to pull image "{container["image"]}"'}
                self._tell(pod, {"waiting": told})
            return
        if not self.has_read:
            message = "services have not yet been read at least once, cannot construct envvars"
            self._tell(pod, {"waiting": {"reason": "CreateContainerConfigError", "message": message}})
            return
        try:
            command, environment = self._command(pod, address)
        except FileNotFoundError:
            del self.pods[uid]  # a volume is not there yet: it is looked at again when it comes
            return
        except Refusal as error:
            self._tell(pod, {"waiting": {"reason": "CreateContainerConfigError", "message": str(error)}})
            return
        started = now()
        process = await asyncio.create_subprocess_exec(
            *command,
            env=environment,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.STDOUT,
            start_new_session=True,
        )
        self.processes[uid] = process
        if not self.powered:
            _kill(process)  # the power went while it was started
        output = self.output.setdefault(key, [])
        output.clear()
        self._tell(pod, {"running": {"startedAt": started}}, phase="Running")
        assert process.stdout is not None
        while piece := await process.stdout.read(1 << 16):
            output.append((time.time(), piece))
            self._heard()
        code = await process.wait()
        _kill(process)
        del self.processes[uid]
        if uid in self._kills:
            self._kills.pop(uid)[1].cancel()  # its number may be another's by then
        code = 128 - code if code < 0 else code
        reason = "Completed" if code == 0 else "Error"
        ended = {"exitCode": code, "reason": reason, "startedAt": started, "finishedAt": now()}
        self._tell(pod, {"terminated": ended}, phase="Succeeded" if code == 0 else "Failed")
        self._heard()
        try:
            if "deletionTimestamp" in self.store.get(PODS, *key)["metadata"]:
                self._remove(pod)
        except Refusal:
            pass

    def _end(self, pod: Object) -> None:
        uid, grace = pod["metadata"]["uid"], pod["metadata"].get("deletionGracePeriodSeconds", 0)
        process = self.processes.get(uid)
        if process is None:
            if uid not in self.pods or self.pods[uid].done():
                self.pods.setdefault(uid, asyncio.ensure_future(asyncio.sleep(0)))
                if not _ended(pod):
                    self._tell(
                        pod, {"terminated": {"exitCode": 137, "reason": "ContainerStatusUnknown"}}, phase="Failed"
                    )
                self._remove(pod)
            return
        known = self._kills.get(uid)
        if known is not None and known[0] <= grace:
            return
        if known is not None:
            known[1].cancel()
        else:
            process.send_signal(signal.SIGTERM)
        self._kills[uid] = grace, asyncio.get_running_loop().call_later(grace, _kill, process)

    def _remove(self, pod: Object) -> None:
        metadata = pod["metadata"]
        if not self.powered:
            return
        try:
            present = self.store.get(PODS, metadata["namespace"], metadata["name"])
            if present["metadata"]["uid"] == metadata["uid"] and present["metadata"]["deletionGracePeriodSeconds"]:
                self.store.delete(PODS, metadata["namespace"], metadata["name"], {"gracePeriodSeconds": 0})
        except Refusal:
            pass

    def _tell(self, pod: Object, state: Object, **fields: str) -> None:
        metadata = pod["metadata"]
        try:
            present = self.store.get(PODS, metadata["namespace"], metadata["name"])
        except Refusal:
            return
        if present["metadata"]["uid"] != metadata["uid"] or not self.powered:
            return
        found, container = copy.deepcopy(present), pod["spec"]["containers"][0]
        found["status"].update(fields)
        about = {"name": container["name"], "image": container["image"], "state": state, "ready": "running" in state}
        found["status"]["containerStatuses"] = [{**about, "restartCount": 0}]
        self.store.replace(PODS, metadata["namespace"], metadata["name"], found, "kubelet", part="status")

    def _heard(self) -> None:
        for listener in list(self.listeners):
            listener()

    # -- what a container sees -------------------------------------------------------------------------------------

    def _command(self, pod: Object, address: str) -> tuple[list[str], dict[str, str]]:
        container, namespace = pod["spec"]["containers"][0], pod["metadata"]["namespace"]
        environment = dict(self.images[container["image"]])
        for variable in container.get("env") or []:
            environment[variable["name"]] = self._value(variable, environment, namespace, address)
        volumes = pod["spec"].get("volumes") or []
        sources = [str(self._source(pod, volume)) for volume in volumes] + [str(self.hosts.parent)]
        mounts = [(str(len(volumes)), self.hosts.name, "/etc/hosts", "ro")]
        for mount in sorted(container.get("volumeMounts") or [], key=lambda one: one["mountPath"]):
            number = next(n for n, volume in enumerate(volumes) if volume["name"] == mount["name"])
            mode = "ro" if mount.get("readOnly") else "rw"
            mounts.append((str(number), mount.get("subPath", "."), mount["mountPath"], mode))
        # They end with the test that made them, however that ends.
        own = ["setpriv", "--pdeathsig", "KILL", *_UNSHARE]
        argv = [_expanded(word, environment) for word in [*container.get("command", []), *container.get("args", [])]]
        flat = [word for mount in mounts for word in mount]
        place = container.get("workingDir", "/")
        return [*own, "sh", "-c", _MOUNTS, "sh", *sources, "--", *flat, "--", place, *argv], environment

    def _value(self, variable: Object, environment: dict[str, str], namespace: str, address: str) -> str:
        source = variable.get("valueFrom") or {}
        if "fieldRef" in source:
            known = {"status.podIP": address, "spec.nodeName": self.name, "metadata.namespace": namespace}
            return known[source["fieldRef"]["fieldPath"]]
        if "secretKeyRef" in source:
            data = self.store.get(KINDS["secrets"], namespace, source["secretKeyRef"]["name"])["data"]
            return base64.b64decode(data[source["secretKeyRef"]["key"]]).decode()
        return _expanded(variable.get("value", ""), environment)

    def _source(self, pod: Object, volume: Object) -> Path:
        if "persistentVolumeClaim" in volume:
            name = volume["persistentVolumeClaim"]["claimName"]
            if name not in self.claims:
                raise Refusal(404, "NotFound", f'persistentvolumeclaim "{name}" not found')
            return self.claims[name]
        if "hostPath" in volume:
            return Path(volume["hostPath"]["path"])
        if "secret" in volume:
            return self._project(pod, volume)
        return self._folder(pod, volume)

    def _project(self, pod: Object, volume: Object) -> Path:
        """Writes a Secret's files, each whole."""
        folder = self._folder(pod, volume)
        try:
            secret = self.store.get(KINDS["secrets"], pod["metadata"]["namespace"], volume["secret"]["secretName"])
        except Refusal:
            if pod["metadata"]["uid"] in self.processes:
                return folder  # what was mounted stays
            raise FileNotFoundError from None
        for item in volume["secret"].get("items") or [{"key": key, "path": key} for key in secret["data"]]:
            data, target = base64.b64decode(secret["data"][item["key"]]), folder / item["path"]
            if not target.exists() or target.read_bytes() != data:
                new = target.with_suffix(".new")
                new.write_bytes(data)
                new.rename(target)
        return folder

    def _folder(self, pod: Object, volume: Object) -> Path:
        folder = self.folder / pod["metadata"]["uid"] / volume["name"]
        folder.mkdir(parents=True, exist_ok=True)
        return folder


def _expanded(text: str, environment: dict[str, str]) -> str:
    return re.sub(r"\$\(([-._a-zA-Z0-9]+)\)", lambda match: environment.get(match[1], match[0]), text)


def _ended(pod: Object) -> bool:
    return (pod.get("status") or {}).get("phase") in ("Succeeded", "Failed")


def _kill(process: asyncio.subprocess.Process) -> None:
    try:
        os.killpg(process.pid, signal.SIGKILL)
    except ProcessLookupError:
        pass


def can_run() -> bool:
    """Whether this machine lets us make mount namespaces."""
    if shutil.which("unshare") is None or shutil.which("setpriv") is None:
        return False
    return os.system(f"{' '.join(_UNSHARE)} mount -t tmpfs none /mnt 2>/dev/null") == 0

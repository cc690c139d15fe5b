"""The deployment of ElasticDL's services in a cluster: set up and removed through the API server alone."""

from __future__ import annotations

import asyncio
import base64
import secrets
from collections.abc import AsyncIterator, Callable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import yaml

from elasticdl_agent.kubernetes.client import KubernetesClient, Manifest
from elasticdl_agent.kubernetes.manifests import MANAGED, SELECTOR
from elasticdl_agent.kubernetes.ownership import mark_path, require_own
from elasticdl_core.errors import ConflictError, InvalidInputError, NotFoundError, UnavailableError
from elasticdl_core.pods import image_problem

NAMESPACE = "elasticdl"
"""The one that the manifests are written for."""
SECRET = "elasticdl"
_NODE_SECRET = "elasticdl-node"
_PART_OF = "app.kubernetes.io/part-of=elasticdl"
_CLUSTER_WIDE = ("elasticdl-jobs", "elasticdl-capacity")
"""Names that are not of a namespace, and so are told apart by it."""
_GROUPS = {"": "api"}
_NOT_IN_NAMESPACES = {"Namespace", "PriorityClass", "ClusterRole", "ClusterRoleBinding"}
_WORKLOADS = ("Deployment", "StatefulSet")
_DEPLOY = Path(__file__).with_name("deploy")
"""The manifests, to which ``deploy/k8s`` leads in a checkout."""
_LOOK_S = 1.0
_LEAVE_S = 120.0
Tell = Callable[[str], None]


@dataclass(frozen=True, slots=True)
class DeploymentOptions:
    """The options that a deployment is made with.

    Attributes:
        namespace: where it is.
        image: of the agent and of all processes of jobs.
        services_image: of the API and the scheduler.
        storage_class: of the volume that all pods share; empty for the cluster's default.
        database_url: a Postgres; empty to bring one along.
        redis_url: a Redis; the same.
    """

    namespace: str = NAMESPACE
    image: str = ""
    services_image: str = ""
    storage_class: str = ""
    database_url: str = ""
    redis_url: str = ""

    def check(self) -> None:
        """Refuses what cannot work.

        Raises:
            InvalidInputError: says which option is wrong and what to give.
        """
        for name, image in (("--image", self.image), ("--services-image", self.services_image)):
            if wrong := image_problem(image):
                raise InvalidInputError(f"{name}: {wrong}", fix="write registry/name:tag")
        if not self.image:
            raise InvalidInputError(
                "a cluster has to know where its images are",
                fix="build one from the repository's Dockerfile, push it, and give --image registry/name:tag",
            )
        if bool(self.database_url) != bool(self.redis_url):
            raise InvalidInputError(
                "a Postgres without a Redis, or the other way round", fix="give both --database-url and --redis-url"
            )

    @property
    def has_stores(self) -> bool:
        """Whether Postgres and Redis come along."""
        return not self.database_url


class KubernetesDeployment:
    """ElasticDL's services in one namespace of a cluster.

    Args:
        client: of the API server; it stays the caller's.
        options: what it is made with; to remove it, the namespace alone counts.
        tell: takes a line of progress.
    """

    def __init__(self, client: KubernetesClient, options: DeploymentOptions, tell: Tell) -> None:
        self._client, self._options, self._tell = client, options, tell

    @property
    def address(self) -> str:
        """The URL of the API within the cluster."""
        return f"http://elasticdl-api.{self._options.namespace}.svc:8850"

    async def set_up(self, timeout_s: float) -> None:
        """Makes it, or makes it what the options say, and waits until all of it is ready.

        What holds data is made once, and then left as it is.

        Raises:
            InvalidInputError: the cluster would not have it.
            ConflictError: the namespace is somebody else's, or there is a deployment with other stores.
            PermissionDeniedError: who asks may not make it.
            UnavailableError: it is not ready in that time; says what it waits for.
        """
        self._options.check()
        await self._require_own()
        workloads = []
        for manifest in manifests(self._options):
            kind, name = manifest["kind"], manifest["metadata"]["name"]
            if kind == "PersistentVolumeClaim" and await self._find(manifest) is not None:
                self._tell(f"{kind} {name} is there")
                continue
            await self._client.apply(path_of(manifest), manifest)
            self._tell(f"{kind} {name}")
            if kind == "Namespace":
                await self._keep_secret()
            elif kind in _WORKLOADS:
                workloads.append(manifest)
        await self._wait(workloads, timeout_s)

    async def take_down(self, *, delete_data: bool) -> list[str]:
        """Removes it, and the pods of jobs, which go on from their last checkpoints when it is set up again.

        Args:
            delete_data: whether what holds data goes as well, for ever.

        Returns:
            What is left in the namespace, as ``kind/name``.

        Raises:
            NotFoundError: there is none in that namespace.
            ElasticDLError: the API server is away, or refuses.
        """
        made = [one for one in manifests(DeploymentOptions(self._options.namespace)) if one["kind"] != "Namespace"]
        data = [one for one in made if one["kind"] == "PersistentVolumeClaim"]
        data += [self._object("PersistentVolumeClaim", name) for name in _claims_of(made)]
        data.append(self._object("Secret", SECRET))
        known = [one for one in (*made, data[-1]) if one["kind"] in ("Secret", *_WORKLOADS)]
        if not [one for one in known if await self._find(one) is not None]:
            space = self._options.namespace
            raise NotFoundError(
                f"there is no ElasticDL in the namespace {space}", fix="name its own with --namespace"
            )
        services = [one for one in made if one["kind"] in _WORKLOADS]
        # Who launches goes first, so that nobody launches again what is removed; policies stay while pods do.
        await self._remove(services)
        await self._until_gone(_PART_OF)
        await self._remove_jobs()
        await self._remove([one for one in made if one not in data and one not in services])
        for path in (path_of(self._object("Secret", _NODE_SECRET)), mark_path(self._options.namespace)):
            await self._client.delete(path)
        kept = []
        for manifest in data:
            name = f"{manifest['kind']}/{manifest['metadata']['name']}"
            if delete_data:
                await self._client.delete(path_of(manifest))
                self._tell(f"- {name}")
            elif await self._find(manifest) is not None:
                kept.append(name)
        return kept

    # -- parts -----------------------------------------------------------------------------------------------------

    async def _require_own(self) -> None:
        """Refuses a namespace of somebody else: its policies let nobody in who is not ours."""
        space = self._options.namespace
        namespace: Manifest = {"apiVersion": "v1", "kind": "Namespace", "metadata": {"name": space}}
        if await self._find(namespace) is None:
            return
        secret = await self._find(self._object("Secret", SECRET))
        known = base64.b64decode((secret or {}).get("data", {}).get("cluster_secret", "")).decode()
        await require_own(self._client, space, known)
        if secret is not None:
            return
        async for page, _ in self._client.pages(self._path("pods")):
            if page:
                raise ConflictError(
                    f"other pods run in the namespace {space}", fix="give ElasticDL one of its own with --namespace"
                )

    async def _keep_secret(self) -> None:
        """Makes the Secret once: what is there stays, and has to be what was asked for."""
        options = self._options
        wanted = _secrets(options)
        present = await self._find(self._object("Secret", SECRET))
        if present is None:
            body = {**self._object("Secret", SECRET), "stringData": wanted}
            await self._client.call("POST", path_of(body).rpartition("/")[0], body)
            self._tell(f"Secret {SECRET}")
            return
        for name in ("database_url", "redis_url"):
            given, known = getattr(options, name), base64.b64decode(present.get("data", {}).get(name, "")).decode()
            if (given or not known) and given != known:
                raise ConflictError(
                    f"the Secret {SECRET} of namespace {options.namespace} has another {name}",
                    fix=f"change it there: kubectl -n {options.namespace} edit secret {SECRET}",
                )
        self._tell(f"Secret {SECRET} is there")

    async def _wait(self, workloads: list[Manifest], timeout_s: float) -> None:
        told: set[str] = set()
        waiting = {path_of(one): f"{one['kind']} {one['metadata']['name']}" for one in workloads}
        try:
            async with asyncio.timeout(timeout_s):
                while waiting:
                    try:
                        for path in list(waiting):
                            if _is_ready(await self._client.call("GET", path)):
                                self._tell(f"* {waiting.pop(path)} is ready")
                        if waiting:
                            for trouble in [one async for one in self._troubles() if one not in told]:
                                told.add(trouble)
                                self._tell(f"! {trouble}")
                    except UnavailableError as error:
                        if error.message not in told:
                            told.add(error.message)
                            self._tell(f"! {error.message}")
                    if waiting:
                        await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            raise UnavailableError(
                f"not ready after {timeout_s:.0f} s: {', '.join(waiting.values())}"
                + "".join(f"\n  {one}" for one in sorted(told)),
                fix="mend what it waits for and give the same command again, which goes on; "
                "`elasticdl down --kubernetes` removes it",
            ) from None

    async def _troubles(self) -> AsyncIterator[str]:
        """Yields what keeps pods of the services from running, in the cluster's words."""
        async for page, _ in self._client.pages(self._path("pods"), {"labelSelector": _PART_OF}):
            for pod in page:
                name, status = pod["metadata"]["name"], pod.get("status", {})
                for condition in status.get("conditions") or []:
                    if condition["type"] == "PodScheduled" and condition["status"] == "False":
                        yield f"{name} waits for a node: {condition.get('message', condition.get('reason', ''))}"
                for container in status.get("containerStatuses") or []:
                    waits = (container.get("state") or {}).get("waiting") or {}
                    if waits.get("reason") not in (None, "ContainerCreating", "PodInitializing"):
                        yield f"{name}: {waits['reason']}: {waits.get('message', '')}".rstrip(": ")

    async def _remove(self, gone: list[Manifest]) -> None:
        for manifest in gone:
            await self._client.delete(path_of(manifest))
            self._tell(f"- {manifest['kind']} {manifest['metadata']['name']}")

    async def _until_gone(self, selector: str) -> None:
        """Waits until pods have left, for as long as they are given to."""
        try:
            async with asyncio.timeout(_LEAVE_S):
                while [pod async for pod in self._pods(selector)]:  # noqa: ASYNC110 - nobody here is told of it
                    await asyncio.sleep(_LOOK_S)
        except TimeoutError:
            self._tell(f"! pods are still there after {_LEAVE_S:.0f} s; their nodes may be lost")

    async def _remove_jobs(self) -> None:
        """Removes what jobs have in the cluster: their anchors own all of it, and pods are let go of."""
        async for page, _ in self._client.pages(self._path("configmaps"), {"labelSelector": SELECTOR}):
            for anchor in page:
                await self._client.delete(f"{self._path('configmaps')}/{anchor['metadata']['name']}")
                self._tell(f"- {anchor['metadata']['name'].replace('-', ' ', 1)}")
        async for pod in self._pods(SELECTOR):
            path = f"{self._path('pods')}/{pod['metadata']['name']}"
            await self._client.delete(path)
            patch = {"metadata": {"uid": pod["metadata"]["uid"], "finalizers": None}}
            try:
                await self._client.call("PATCH", path, patch, kind="application/merge-patch+json")
            except (NotFoundError, ConflictError):
                pass
        await self._until_gone(SELECTOR)

    async def _pods(self, selector: str) -> AsyncIterator[Manifest]:
        async for page, _ in self._client.pages(self._path("pods"), {"labelSelector": selector}):
            for pod in page:
                yield pod

    async def _find(self, manifest: Manifest) -> Manifest | None:
        try:
            return await self._client.call("GET", path_of(manifest))
        except NotFoundError:
            return None

    def _object(self, kind: str, name: str) -> Manifest:
        metadata = {"name": name, "namespace": self._options.namespace, "labels": {MANAGED: "elasticdl-up"}}
        return {"apiVersion": "v1", "kind": kind, "metadata": metadata}

    def _path(self, plural: str) -> str:
        return f"/api/v1/namespaces/{self._options.namespace}/{plural}"


def manifests(options: DeploymentOptions) -> list[Manifest]:
    """All objects of a deployment but its Secret, the namespace first."""
    overlay = _DEPLOY / "overlays" / ("trial" if options.has_stores else "external")
    found = [_adapted(one, options) for file in _files(overlay) for one in yaml.safe_load_all(file.read_text())]
    return sorted(found, key=lambda one: one["kind"] != "Namespace")


def path_of(manifest: Manifest) -> str:
    """The path of an object."""
    version, kind, metadata = manifest["apiVersion"], manifest["kind"], manifest["metadata"]
    lower = kind.lower()
    plural = f"{lower[:-1]}ies" if lower.endswith("y") else f"{lower}es" if lower.endswith("s") else f"{lower}s"
    where = "" if kind in _NOT_IN_NAMESPACES else f"namespaces/{metadata['namespace']}/"
    return f"/{'apis' if '/' in version else 'api'}/{version}/{where}{plural}/{metadata['name']}"


def _files(folder: Path) -> Iterator[Path]:
    for name in yaml.safe_load((folder / "kustomization.yaml").read_text())["resources"]:
        path = folder / name
        if path.is_dir():
            yield from _files(path)
        else:
            yield path


def _adapted(found: Any, options: DeploymentOptions) -> Any:
    """An object of the base as the options want it."""
    space, suffix = options.namespace, "" if options.namespace == NAMESPACE else f"-{options.namespace}"
    images = {"elasticdl-node": options.image, "elasticdl-services": options.services_image or options.image}

    def walk(value: Any) -> Any:
        if isinstance(value, dict):
            changed = {name: walk(inner) for name, inner in value.items()}
            if value.get("namespace") == NAMESPACE:
                changed["namespace"] = space
            if value.get("name") == "ELASTICDL_KUBERNETES_IMAGE":
                changed["value"] = options.image
            if value.get("image") in images:
                changed["image"] = images[value["image"]]
            return changed
        if isinstance(value, list):
            return [walk(inner) for inner in value]
        if isinstance(value, str):
            return value + suffix if value in _CLUSTER_WIDE else value.replace(f".{NAMESPACE}.svc", f".{space}.svc")
        return value

    manifest = walk(found)
    if manifest["kind"] == "Namespace":
        manifest["metadata"]["name"] = space
    if manifest["kind"] == "PersistentVolumeClaim" and options.storage_class:
        manifest["spec"]["storageClassName"] = options.storage_class
    return manifest


def _claims_of(made: list[Manifest]) -> Iterator[str]:
    """Names of the claims that stateful sets make."""
    for one in made:
        for claim in one.get("spec", {}).get("volumeClaimTemplates", []) if one["kind"] == "StatefulSet" else []:
            yield f"{claim['metadata']['name']}-{one['metadata']['name']}-0"


def _secrets(options: DeploymentOptions) -> dict[str, str]:
    made = {
        name: secrets.token_hex(32)
        for name in ("admin_token", "cluster_secret", "node_token", "postgres_password", "redis_password")
    }
    where = f"{options.namespace}.svc"
    postgres = f"postgresql://elasticdl:{made['postgres_password']}@elasticdl-postgres.{where}:5432/elasticdl"
    redis = f"redis://elasticdl:{made['redis_password']}@elasticdl-redis.{where}:6379/0"
    return {
        **made,
        "database_url": options.database_url or postgres,
        "redis_url": options.redis_url or redis,
    }


def _is_ready(workload: Manifest) -> bool:
    """Whether all replicas of a Deployment or a StatefulSet are those that were asked for, and ready."""
    wanted, status = int(workload["spec"].get("replicas", 1)), workload.get("status", {})
    seen = int(status.get("observedGeneration", 0)) >= int(workload["metadata"].get("generation", 0))
    return seen and all(int(status.get(name, 0)) >= wanted for name in ("updatedReplicas", "readyReplicas"))

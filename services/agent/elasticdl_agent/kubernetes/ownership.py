"""A namespace is one ElasticDL's: two would end each other's jobs, which neither finds in its own database."""

from __future__ import annotations

from elasticdl_agent.kubernetes.client import KubernetesClient
from elasticdl_agent.kubernetes.manifests import MANAGED
from elasticdl_core.errors import ConflictError, NotFoundError
from elasticdl_runtime.cluster.secrets import derive

MARK = "elasticdl-cluster"
"""The ConfigMap that says whose a namespace is."""


async def require_own(client: KubernetesClient, namespace: str, cluster_secret: str) -> None:
    """Refuses a namespace that another ElasticDL makes its pods in.

    Args:
        client: of the API server.
        namespace: where pods are made.
        cluster_secret: of ours; empty where there is none yet.

    Raises:
        ConflictError: it is another's; says how to go on.
        ElasticDLError: the API server is away, or refuses.
    """
    try:
        found = await client.call("GET", mark_path(namespace))
    except NotFoundError:
        return
    if not cluster_secret or found.get("data", {}).get("cluster") != _identity(cluster_secret):
        raise ConflictError(
            f"another ElasticDL makes its pods in the namespace {namespace}",
            fix=f"give this one a namespace of its own; where that one is gone for good, or its cluster secret was "
            f"changed, end its pods and `kubectl -n {namespace} delete configmap {MARK}`",
        )


async def take_namespace(client: KubernetesClient, namespace: str, cluster_secret: str) -> None:
    """Makes a namespace ours; raises as ``require_own``."""
    metadata = {"name": MARK, "namespace": namespace, "labels": {MANAGED: "elasticdl"}}
    mark = {"apiVersion": "v1", "kind": "ConfigMap", "metadata": metadata}
    try:
        await client.call(
            "POST",
            mark_path(namespace).rpartition("/")[0],
            {**mark, "data": {"cluster": _identity(cluster_secret)}},
        )
    except ConflictError:
        await require_own(client, namespace, cluster_secret)


def mark_path(namespace: str) -> str:
    """The path of a namespace's mark."""
    return f"/api/v1/namespaces/{namespace}/configmaps/{MARK}"


def _identity(cluster_secret: str) -> str:
    return derive(cluster_secret, "identity")[:16]

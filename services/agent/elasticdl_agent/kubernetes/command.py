"""``elasticdl up --kubernetes`` and ``down --kubernetes``."""

from __future__ import annotations

import asyncio
import os
from collections.abc import Awaitable, Callable
from pathlib import Path
from typing import TypeVar

import typer

from elasticdl_agent.kubernetes.access import KubernetesAccess
from elasticdl_agent.kubernetes.client import KubernetesClient
from elasticdl_agent.kubernetes.deployment import SECRET, DeploymentOptions, KubernetesDeployment

_T = TypeVar("_T")


def set_up(options: DeploymentOptions, context: str, timeout_s: float) -> None:
    """Sets ElasticDL up in the cluster of a kubeconfig, shows the steps, and says where it is.

    Raises:
        ElasticDLError: it cannot be, or it is not ready in that time.
    """
    options.check()

    async def work(deployment: KubernetesDeployment) -> str:
        await deployment.set_up(timeout_s)
        return deployment.address

    address, space = _within(options, context, work), options.namespace
    typer.echo(f"ElasticDL is up at {address} within the cluster. From here, through kubectl:")
    typer.echo(f"  kubectl -n {space} port-forward service/elasticdl-api 8850 &")
    typer.echo("  export ELASTICDL_API_URL=http://127.0.0.1:8850")
    secret = f"kubectl -n {space} get secret {SECRET} -o jsonpath='{{.data.admin_token}}' | base64 -d"
    typer.echo(f"  export ELASTICDL_TOKEN=$({secret})")


def take_down(namespace: str, context: str, *, delete_data: bool) -> None:
    """Takes it down, and names what is left of it.

    Raises:
        ElasticDLError: there is none, or the cluster cannot be asked.
    """
    options = DeploymentOptions(namespace)
    kept = _within(options, context, lambda deployment: deployment.take_down(delete_data=delete_data))
    typer.echo(f"ElasticDL is down; the namespace {namespace} is left.")
    if kept:
        typer.echo(f"Kept with the data of all jobs: {', '.join(kept)}. Jobs that ran go on after the next `up`;")
        typer.echo("`elasticdl down --kubernetes --delete-data` removes them for ever.")


def _within(options: DeploymentOptions, context: str, work: Callable[[KubernetesDeployment], Awaitable[_T]]) -> _T:
    async def run() -> _T:
        file = os.environ.get("KUBECONFIG") or str(Path.home() / ".kube" / "config")
        async with KubernetesClient(KubernetesAccess.find(file, context)) as client:
            return await work(KubernetesDeployment(client, options, typer.echo))

    return asyncio.run(run())

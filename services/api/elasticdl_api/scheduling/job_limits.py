"""Limits of namespaces and of the cluster's pods on the jobs that are submitted to them."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any

from elasticdl_api.scheduling.cluster_view import most_priority
from elasticdl_api.settings import ApiSettings
from elasticdl_api.store.namespaces import NamespaceStore
from elasticdl_core.errors import Problem, SpecError, UnavailableError
from elasticdl_core.job import JobSpec
from elasticdl_core.job.ways import refuse_pods
from elasticdl_core.ports.launcher import Launcher, Role


async def check_limits(namespaces: NamespaceStore, settings: ApiSettings, namespace: str, spec: JobSpec) -> None:
    """Refuses a job that is above the limits of its namespace.

    Args:
        namespaces: knows the limits.
        settings: those of namespaces without limits of their own.
        namespace: the one that it will belong to.
        spec: the job.

    Raises:
        SpecError: its priority, or its number of parameter servers, is too high.
    """
    limits = await namespaces.get_limits(namespace)
    check_priority(namespace, limits, spec.priority)
    most = limits.get("max_ps") or settings.most_ps
    if spec.num_ps > most:
        fix = f"give {most} or fewer; an administrator can raise max_ps of the namespace, or ELASTICDL_MAX_PS"
        raise SpecError([Problem("num_ps", f"a job of {namespace} may have {most} parameter servers", fix)])


def check_priority(namespace: str, limits: Mapping[str, Any], priority: int) -> None:
    """Refuses a priority above the highest of a namespace.

    Raises:
        SpecError: it is too high.
    """
    most = most_priority(limits)
    if priority > most:
        fix = f"give {most} or less; an administrator can raise max_priority of the namespace"
        raise SpecError([Problem("priority", f"a job of {namespace} may have priority {most} at most", fix)])


async def check_pods(launcher: Launcher | None, spec: JobSpec) -> None:
    """Refuses what the cluster's pods may not have, or no process has; a launcher that is away refuses it later.

    Args:
        launcher: knows what pods may have.
        spec: the job.

    Raises:
        SpecError: its image, volumes, requests or labels of nodes are none that it may have.
    """
    asked = {role: (spec.pod_of(role), spec.memory_of(role)) for role in Role}
    if launcher is None or not any(pod.asked or memory for pod, memory in asked.values()):
        return
    try:
        rules = (await launcher.capacity()).pods
    except UnavailableError:
        return
    if rules is None:
        refuse_pods(spec)
    elif problems := [one for role, (pod, memory) in asked.items() for one in rules.problems(pod, role, memory)]:
        raise SpecError(list(dict.fromkeys(problems)))

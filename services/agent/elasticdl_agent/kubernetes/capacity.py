"""The capacity of a cluster's nodes for jobs: what they can give, less what other pods request, within quotas."""

from __future__ import annotations

import math
from collections import defaultdict
from collections.abc import Iterable, Mapping

from elasticdl_agent.kubernetes.client import Manifest
from elasticdl_agent.kubernetes.pod_states import JOB, ROLE
from elasticdl_core.pods import quantity
from elasticdl_core.ports.launcher import DeviceInfo, Role

GPU = "nvidia.com/gpu"
_BAD = {"NoSchedule", "NoExecute"}


def slots_of(
    nodes: Iterable[Manifest],
    pods: Iterable[Manifest],
    quotas: Iterable[Manifest],
    request: Mapping[str, float],
    selector: Mapping[str, str],
    waiting: Iterable[Manifest] = (),
) -> int:
    """The number of workers that fit, those that run among them, once the servers of jobs have room.

    Args:
        nodes: all of the cluster.
        pods: all that have not ended, of all namespaces.
        quotas: of the namespace of jobs.
        request: what a worker requests, by resource: cores, bytes.
        selector: labels of the nodes that run jobs.
        waiting: servers of jobs that a quota has no room for.
    """
    servers = [requests_of(pod) for pod in waiting]
    over_quota = [{**asked, "pods": 1.0} for asked in servers]
    taken: dict[str, dict[str, float]] = defaultdict(lambda: defaultdict(float))
    pods_on: dict[str, int] = defaultdict(int)
    workers: dict[str, float] = defaultdict(float)
    for pod in pods:
        where = str(pod["spec"].get("nodeName") or "")
        asked = requests_of(pod)
        if is_worker(pod):
            for name, amount in asked.items():
                workers[name] += amount
            workers["pods"] += 1
            for name, usual in request.items():  # what it takes beyond a slot is taken from the others
                taken[where][name] += max(0.0, asked.get(name, 0.0) - usual) if where else 0.0
        elif where:
            pods_on[where] += 1
            for name, amount in asked.items():
                taken[where][name] += amount
        elif JOB in (pod["metadata"].get("labels") or {}):
            servers.append(asked)
    rooms: list[dict[str, float]] = []
    for node in nodes:
        if not usable(node, selector):
            continue
        name, can = str(node["metadata"]["name"]), node.get("status", {}).get("allocatable") or {}
        room = {kind: quantity(can.get(kind, 0)) - taken[name][kind] for kind in request}
        rooms.append({**room, "pods": quantity(can.get("pods", 110)) - pods_on[name]})
    asked_by = {**request, "pods": 1.0}
    for asked in servers if rooms else ():
        most = max(rooms, key=lambda room: _times_in(asked_by, room))
        for kind in most:
            most[kind] -= 1.0 if kind == "pods" else asked.get(kind, 0.0)
    fit = sum(_times_in(asked_by, room) for room in rooms)
    for quota in quotas:
        hard, used = quota.get("status", {}).get("hard") or {}, quota.get("status", {}).get("used") or {}
        for kind, amount in asked_by.items():
            for spelled in (kind, f"requests.{kind}"):
                if spelled in hard and amount:
                    others = max(0.0, quantity(used.get(spelled, 0)) - workers[kind])
                    others += sum(asked.get(kind, 0.0) for asked in over_quota)
                    fit = min(fit, _times_in({kind: amount}, {kind: quantity(hard[spelled]) - others}))
    return fit


def devices_of(nodes: Iterable[Manifest], selector: Mapping[str, str]) -> tuple[DeviceInfo, ...]:
    """The GPUs of the nodes that run jobs, numbered through."""
    count = sum(
        int(quantity((node.get("status", {}).get("allocatable") or {}).get(GPU, 0)))
        for node in nodes
        if usable(node, selector)
    )
    return tuple(DeviceInfo(f"gpu{number}", model=GPU) for number in range(count))


def is_worker(pod: Manifest) -> bool:
    """Whether a pod is a worker of ours."""
    labels = pod["metadata"].get("labels") or {}
    return JOB in labels and labels.get(ROLE) == Role.WORKER


def requests_of(pod: Manifest) -> dict[str, float]:
    """The requests of a pod, by resource: the sum of its containers, or more where an initial one needs more."""
    spec = pod["spec"]
    found: dict[str, float] = defaultdict(float)
    for container in spec.get("containers") or []:
        for name, amount in _requests(container).items():
            found[name] += amount
    for container in spec.get("initContainers") or []:
        for name, amount in _requests(container).items():
            found[name] = max(found[name], amount)
    for name, amount in (spec.get("overhead") or {}).items():
        found[name] += quantity(amount)
    return dict(found)


def usable(node: Manifest, selector: Mapping[str, str]) -> bool:
    """Whether pods of jobs can go to a node: it is ready, open, without taints, and has the labels."""
    spec, labels = node.get("spec") or {}, node["metadata"].get("labels") or {}
    if spec.get("unschedulable") or any(taint.get("effect") in _BAD for taint in spec.get("taints") or []):
        return False
    if any(labels.get(name) != value for name, value in selector.items()):
        return False
    conditions = {one["type"]: one["status"] for one in node.get("status", {}).get("conditions") or []}
    return conditions.get("Ready") == "True"


def _times_in(request: Mapping[str, float], room: Mapping[str, float]) -> int:
    """The number of times a request fits; a hair's breadth less room is rounding."""
    return max(0, math.floor(min(room[kind] / amount for kind, amount in request.items() if amount) + 1e-9))


def _requests(container: Manifest) -> dict[str, float]:
    resources = container.get("resources") or {}
    asked = {**(resources.get("limits") or {}), **(resources.get("requests") or {})}
    return {name: quantity(amount) for name, amount in asked.items()}

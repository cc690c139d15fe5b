"""What each state of a pod means: the table, row by row."""

from __future__ import annotations

from signal import SIGKILL, SIGTERM

import pytest

from elasticdl_agent.kubernetes.pod_states import GATE, INCARNATION, INDEX, JOB, ROLE, facts_of
from elasticdl_core.ports.launcher import ProcessState
from elasticdl_core.process_life import EndCause, cause_of_exit

PENDING, RUNNING, EXITED = ProcessState


def pod(status: dict, *, deleted: bool = False, node: str = "node-0", **spec: object) -> dict:
    labels = {JOB: "digits-1", ROLE: "worker", INDEX: "0", INCARNATION: "1"}
    metadata = {"name": "p", "uid": "u", "labels": labels} | ({"deletionTimestamp": "now"} if deleted else {})
    return {
        "metadata": metadata,
        "spec": {"nodeName": node, "containers": [{"image": "x:1"}], **spec},
        "status": status,
    }


def container(**state: object) -> dict:
    return {"containerStatuses": [{"image": "x:1", "state": state}]}


def ended(code: int, reason: str = "Error", **status: object) -> dict:
    return {"phase": "Failed", **container(terminated={"exitCode": code, "reason": reason}), **status}


def disrupted(reason: str) -> dict:
    return {"conditions": [{"type": "DisruptionTarget", "status": "True", "reason": reason}]}


WAITS, WORKS = (PENDING, None, ""), (RUNNING, None, "")
LOST = EXITED, None, "launcher_lost"
LEFT = EXITED, 0, "terminated"
KILLED = EXITED, -SIGTERM, "terminated"
OUT_OF_MEMORY = EXITED, -SIGKILL, "oom_killed"
CANNOT_START = EXITED, 127, "cannot_start"
UNSCHEDULABLE = {"type": "PodScheduled", "status": "False", "message": "Insufficient cpu"}
LOW = "The node was low on resource: "

ROWS = {
    "just made": (pod({"phase": "Pending"}), WAITS),
    "its image is being pulled": (pod(container(waiting={"reason": "ContainerCreating"})), WAITS),
    "runs": (pod({"phase": "Running", **container(running={})}), WORKS),
    "terminating is not dead": (pod(container(running={}), deleted=True), WORKS),
    "succeeded": (pod(ended(0, "Completed")), (EXITED, 0, "")),
    "exit code": (pod(ended(3)), (EXITED, 3, "")),
    "signal": (pod(ended(137)), (EXITED, -SIGKILL, "")),
    "deleted and left": (pod(ended(0), deleted=True), LEFT),
    "deleted before it had a node": (pod({"phase": "Pending"}, deleted=True, node=""), KILLED),
    "out of memory": (pod(ended(137, "OOMKilled")), OUT_OF_MEMORY),
    "evicted for memory": (pod({**ended(137), "reason": "Evicted", "message": f"{LOW}memory"}), OUT_OF_MEMORY),
    "evicted for disk": (
        pod({"phase": "Failed", "reason": "Evicted", "message": f"{LOW}ephemeral-storage"}),
        (EXITED, None, "too_much_disk"),
    ),
    "preempted": (pod(ended(143, **disrupted("PreemptionByScheduler"))), KILLED),
    "drained": (pod(ended(0, **disrupted("EvictionByEvictionAPI"))), LEFT),
    "node is being shut down": (pod({"phase": "Failed", "reason": "Terminated"}), KILLED),
    "node lost, the pod still said to run": (
        pod({"phase": "Running", **container(running={}), **disrupted("DeletionByTaintManager")}, deleted=True),
        LOST,
    ),
    "node gone": (pod({"phase": "Failed", **disrupted("DeletionByPodGC")}), LOST),
    "node would not have it": (pod({"phase": "Failed", "reason": "OutOfcpu"}), LOST),
    "no such image": (
        pod(container(waiting={"reason": "ImagePullBackOff", "message": "x:1: not found"})),
        CANNOT_START,
    ),
    "the registry is away": (
        pod(container(waiting={"reason": "ImagePullBackOff", "message": "no such host"})),
        WAITS,
    ),
    "the node has begun anew": (
        pod(
            container(waiting={"reason": "CreateContainerConfigError", "message": "services have not yet been read"})
        ),
        WAITS,
    ),
    "the node has too much to do": (pod(container(waiting={"reason": "CreateContainerError"})), WAITS),
    "its end was not seen by containerd": (pod(ended(255, "Unknown")), LOST),
    "its end was not seen by the kubelet": (pod(ended(137, "ContainerStatusUnknown")), LOST),
    "no image at the first try": (pod(container(waiting={"reason": "ErrImagePull"})), WAITS),
    "Secret deleted": (
        pod(container(waiting={"reason": "CreateContainerConfigError", "message": 'secret "p" not found'})),
        CANNOT_START,
    ),
    "malformed image": (pod(container(waiting={"reason": "InvalidImageName"})), CANNOT_START),
    "no such command": (pod(ended(128, "StartError")), (EXITED, 128, "cannot_start")),
    "no room": (pod({"phase": "Pending", "conditions": [UNSCHEDULABLE]}), WAITS),
}
CAUSES = {
    "launcher_lost": EndCause.LOST,
    "terminated": EndCause.PREEMPTED,
    "oom_killed": EndCause.OUT_OF_MEMORY,
    "cannot_start": EndCause.CRASHED,
}


@pytest.mark.parametrize("row", ROWS)
def test_state(row: str) -> None:
    given, (state, code, reason) = ROWS[row]
    status = facts_of(given).status
    assert (status.state, status.exit_code, status.reason) == (state, code, reason)
    assert reason not in CAUSES or cause_of_exit(status) is CAUSES[reason]


def test_what_nobody_can_wait_for_is_told_with_what_to_do() -> None:
    facts = facts_of(ROWS["no such image"][0])
    assert facts.hopeless
    assert "the image x:1 cannot be pulled" in facts.status.message and "x:1: not found" in facts.status.message
    facts = facts_of(ROWS["the registry is away"][0])
    assert facts.troubled and not facts.hopeless
    assert "the image x:1 cannot be pulled" in facts.status.message and "no such host" in facts.status.message
    assert facts_of(ROWS["no room"][0]).status.message == "waits for a node: Insufficient cpu"


def test_a_gate_is_seen() -> None:
    assert facts_of(pod({"phase": "Pending"}, schedulingGates=[{"name": GATE}])).gated
    assert not facts_of(pod({"phase": "Pending"}, schedulingGates=[{"name": "kueue"}])).gated

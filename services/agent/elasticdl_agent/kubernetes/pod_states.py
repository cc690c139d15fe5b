"""A table: what the state of a pod means for the process in it, and how that is told."""

from __future__ import annotations

from dataclasses import dataclass, replace
from signal import SIGTERM
from typing import Any

from elasticdl_agent.kubernetes.client import Manifest
from elasticdl_core.ports.launcher import ProcessId, ProcessState, ProcessStatus, Role

JOB, ROLE, INDEX, INCARNATION = (f"elasticdl.org/{name}" for name in ("job", "role", "index", "incarnation"))
FINALIZER = "elasticdl.org/told"
"""Keeps the record of a pod until its job has ended: also what others delete is seen to the end."""
GATE = "elasticdl.org/older-incarnation"
CONTAINER = "elasticdl"
CANNOT_START = 127
_HOPELESS = {
    "InvalidImageName": "the name of the image {image} is malformed: mend --image",
    "ErrImageNeverPull": "the image {image} is not on the node and must not be pulled: change --image_pull_policy",
    "StartError": "its command cannot be started: the image needs python and elasticdl-train",
    "ContainerCannotRun": "its command cannot be started: the image needs python and elasticdl-train",
}
"""Reasons of containers that wait or ended which no waiting mends, with what to do."""
_NO_IMAGE = (
    "the image {image} cannot be pulled: mend its name, push it, or give the namespace's service account an "
    "imagePullSecret"
)
_TROUBLES = {
    "ErrImagePull": _NO_IMAGE,
    "ImagePullBackOff": _NO_IMAGE,
    "CreateContainerConfigError": "what its container is made of cannot be read; where a Secret is gone, submit the "
    "job again",
    "CreateContainerError": "its container cannot be made: see the message",
    "RunContainerError": "its container cannot be run: see the message",
}
"""Reasons of containers that wait which may pass: a registry is away for a while, and a kubelet that has just begun,
or has too much to do, says so until it has read what it needs. It tries again for ever; the launcher gives up."""
_ABSENT = ("not found", "not exist", "manifest unknown")
"""Words of a message that tell of something that is not there, which no trying again brings."""
_UNSEEN = {"ContainerStatusUnknown", "Unknown"}
"""Reasons of containers whose end nobody saw: their node went down with them, and is back."""
_LOST = {"NodeLost", "DeletionByTaintManager", "DeletionByPodGC"}
_PLANNED = {"Preempting", "Preempted", "PreemptionByScheduler", "EvictionByEvictionAPI", "Shutdown", "Terminated"}
_REJECTED = {
    "OutOfcpu",
    "OutOfmemory",
    "OutOfpods",
    "OutOfephemeral-storage",
    "NodeAffinity",
    "NodeShutdown",
    "UnexpectedAdmissionError",
    "TerminationByKubelet",
}
"""A node would not have it, or no longer: another one may."""


@dataclass(frozen=True, slots=True)
class PodFacts:
    """The facts that are kept of a pod.

    Attributes:
        status: of its process.
        uid: of the pod.
        created: when, as the API says it.
        deleting: whether it was deleted.
        gated: whether it waits for an older incarnation to end.
        hopeless: whether it waits for what never comes, and is to be deleted.
        troubled: whether it waits for what may never come.
    """

    status: ProcessStatus
    uid: str
    created: str
    deleting: bool
    gated: bool
    hopeless: bool
    troubled: bool

    @property
    def ended(self) -> bool:
        """Whether its process has ended."""
        return self.status.state is ProcessState.EXITED


def process_of(pod: Manifest) -> ProcessId:
    """The process that a pod of ours is for, by its labels."""
    labels = pod["metadata"]["labels"]
    return ProcessId(labels[JOB], Role(labels[ROLE]), int(labels[INDEX]), int(labels[INCARNATION]))


def facts_of(pod: Manifest) -> PodFacts:
    """Reads a pod of ours."""
    metadata, status = pod["metadata"], pod.get("status") or {}
    process = process_of(pod)
    container: Manifest = next(iter(status.get("containerStatuses") or []), {})
    state = container.get("state") or {}
    reason = str(status.get("reason") or "") or _disruption(status)
    said = str(status.get("message") or "")
    image = str(container.get("image") or pod["spec"]["containers"][0].get("image", ""))
    deleting = bool(metadata.get("deletionTimestamp"))
    explanation, hopeless, troubled = "", False, False
    if ended := state.get("terminated"):
        how = str(ended.get("reason") or "")
        code, why = None if how in _UNSEEN else _exit(ended), _why(reason, said, how, deleting)
        found = ProcessStatus(process, ProcessState.EXITED, code, why)
        explanation = _told(
            _HOPELESS.get(str(ended.get("reason")), ""), image, said or str(ended.get("message") or "")
        )
        explanation = explanation or (f"{reason}: {said}".strip(": ") if why else "")
    elif status.get("phase") in ("Succeeded", "Failed"):
        why = _why(reason, said, "", deleting) or "launcher_lost"
        found = ProcessStatus(process, ProcessState.EXITED, -SIGTERM if why == "terminated" else None, why)
        explanation = f"{reason}: {said}".strip(": ")
    elif deleting and not pod["spec"].get("nodeName"):
        found = ProcessStatus(process, ProcessState.EXITED, -SIGTERM, "terminated")
    elif reason in _LOST:
        # Its node may still run it: that it can do no harm is seen to by leases and tokens, as for any lost process.
        found = ProcessStatus(process, ProcessState.EXITED, None, "launcher_lost")
        explanation = f"its node is lost ({reason})"
    else:
        waits = state.get("waiting") or {}
        trouble, message = str(waits.get("reason")), str(waits.get("message") or "")
        troubled = trouble in _TROUBLES
        hopeless = trouble in _HOPELESS or (troubled and any(words in message for words in _ABSENT))
        explanation = _told((_HOPELESS | _TROUBLES).get(trouble, ""), image, message) or _unschedulable(status)
        if hopeless:
            found = cannot_start(process)
        elif "running" in state:
            found = ProcessStatus(process, ProcessState.RUNNING, pid=1)
        else:
            found = ProcessStatus(process, ProcessState.PENDING)
    return PodFacts(
        replace(found, message=explanation),
        str(metadata.get("uid", "")),
        str(metadata.get("creationTimestamp", "")),
        deleting,
        any(gate.get("name") == GATE for gate in pod["spec"].get("schedulingGates") or []),
        hopeless,
        troubled,
    )


def cannot_start(process: ProcessId, message: str = "") -> ProcessStatus:
    """The end of a process that never began, with what kept it from that."""
    return ProcessStatus(process, ProcessState.EXITED, CANNOT_START, "cannot_start", message=message)


def _exit(ended: dict[str, Any]) -> int:
    """Exit codes above 128 are signals, as runtimes of containers tell them."""
    code = int(ended.get("exitCode", 0))
    return 128 - code if 128 < code <= 128 + 64 else code


def _why(reason: str, said: str, of_container: str, deleting: bool) -> str:
    if of_container == "OOMKilled":
        return "oom_killed"
    if of_container in _HOPELESS:
        return "cannot_start"
    if reason == "Evicted":
        lacking = said.lower()
        if "ephemeral" in lacking or "disk" in lacking or "emptydir" in lacking:
            return "too_much_disk"
        return "oom_killed" if "memory" in lacking else "terminated"
    if reason in _LOST or reason in _REJECTED or (of_container in _UNSEEN and not deleting):
        return "launcher_lost"
    return "terminated" if deleting or reason in _PLANNED else ""


def _disruption(status: Manifest) -> str:
    for condition in status.get("conditions") or []:
        if condition.get("type") == "DisruptionTarget" and condition.get("status") == "True":
            return str(condition.get("reason", ""))
    return ""


def _unschedulable(status: Manifest) -> str:
    for condition in status.get("conditions") or []:
        if condition.get("type") == "PodScheduled" and condition.get("status") == "False":
            if condition.get("reason") == "SchedulingGated":
                return "waits until the one before it has ended"
            return f"waits for a node: {condition.get('message') or condition.get('reason')}"
    return ""


def _told(advice: str, image: str, said: str) -> str:
    return advice.format(image=image) + (f" ({said})" if said else "") if advice else ""

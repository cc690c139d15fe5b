"""Between the launcher port's values and the agent's messages."""

from __future__ import annotations

import dataclasses

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.pods import PodRequest, PodRules
from elasticdl_core.ports.launcher import (
    CapacityInfo,
    DeviceInfo,
    DeviceUse,
    InspectedProcess,
    ProcessId,
    ProcessSpec,
    ProcessState,
    ProcessStatus,
    Role,
    SlotReservation,
    SystemThread,
    Tenant,
)
from elasticdl_proto.v1 import agent_pb2


def role_from_text(text: str) -> Role:
    """The role that a message names.

    Raises:
        InvalidInputError: there is no such role.
    """
    try:
        return Role(text)
    except ValueError:
        raise InvalidInputError(f"{text!r} is not a role", fix="use master, ps or worker") from None


def id_from_message(message: agent_pb2.ProcessId) -> ProcessId:
    """The process that a message names.

    Raises:
        InvalidInputError: there is no such role.
    """
    return ProcessId(message.job_id, role_from_text(message.role), message.index, message.incarnation)


def id_to_message(process: ProcessId) -> agent_pb2.ProcessId:
    """The message that names a process."""
    return agent_pb2.ProcessId(
        job_id=process.job_id, role=str(process.role), index=process.index, incarnation=process.incarnation
    )


def spec_from_message(message: agent_pb2.LaunchRequest) -> ProcessSpec:
    """Reads the specification of a launch from a message.

    Raises:
        InvalidInputError: there is no such role.
    """
    return ProcessSpec(
        id_from_message(message.id),
        dict(message.environment),
        int(message.memory_mib),
        int(message.slots),
        Tenant(message.namespace, message.restricted, tuple(message.readable), tuple(message.writable)),
        int(message.device_share),
        PodRequest(
            message.pod.image,
            message.pod.image_pull_policy,
            message.pod.cpu,
            message.pod.disk,
            message.pod.volume,
            dict(message.pod.node_selector),
        ),
    )


def spec_to_message(spec: ProcessSpec) -> agent_pb2.LaunchRequest:
    """The message that asks to launch."""
    return agent_pb2.LaunchRequest(
        id=id_to_message(spec.id),
        environment=dict(spec.environment),
        memory_mib=spec.memory_mib,
        slots=spec.slots,
        namespace=spec.tenant.namespace,
        restricted=spec.tenant.restricted,
        readable=spec.tenant.readable,
        writable=spec.tenant.writable,
        device_share=spec.device_share,
        pod=agent_pb2.PodRequest(**spec.pod.asked) if spec.pod.asked else None,
    )


def status_from_message(message: agent_pb2.ProcessStatus) -> ProcessStatus:
    """The status that a message carries."""
    return ProcessStatus(
        id_from_message(message.id),
        ProcessState(message.state),
        int(message.exit_code) if message.has_exit_code else None,
        message.reason,
        int(message.pid),
        message.message,
    )


def status_to_message(status: ProcessStatus) -> agent_pb2.ProcessStatus:
    """The message that carries a status."""
    return agent_pb2.ProcessStatus(
        id=id_to_message(status.id),
        state=str(status.state),
        has_exit_code=status.exit_code is not None,
        exit_code=status.exit_code or 0,
        reason=status.reason,
        pid=status.pid,
        message=status.message,
    )


def capacity_from_message(message: agent_pb2.CapacityResponse) -> CapacityInfo:
    """The capacity that a message carries."""
    return CapacityInfo(
        int(message.slots),
        {job: int(slots) for job, slots in message.used.items()},
        tuple(
            SlotReservation(
                one.name,
                int(one.slots),
                int(one.granted),
                one.grace_s,
                one.changed_at,
                one.granted_at if one.has_granted_at else None,
            )
            for one in message.reservations
        ),
        int(message.headroom),
        bool(message.closing),
        message.isolation,
        tuple(DeviceInfo(one.name, one.declared, int(one.memory_mib), one.model) for one in message.devices),
        tuple(
            DeviceUse(one.job_id, int(one.index), tuple(map(int, one.devices)), int(one.share))
            for one in message.device_uses
        ),
        int(message.job_revision),
        _rules_from_message(message.pods) if message.HasField("pods") else None,
        int(message.memory_mib),
    )


def _rules_from_message(rules: agent_pb2.PodRules) -> PodRules:
    return PodRules(
        tuple(rules.images),
        tuple(rules.claims),
        rules.cluster_claim,
        rules.data_dir,
        rules.most_cpu,
        rules.most_memory,
        dict(rules.node_selector),
    )


def capacity_to_message(capacity: CapacityInfo) -> agent_pb2.CapacityResponse:
    """The message that carries the capacity."""
    reservations = [
        agent_pb2.SlotReservation(
            name=one.name,
            slots=one.slots,
            granted=one.granted,
            grace_s=one.grace_s,
            changed_at=one.changed_at,
            has_granted_at=one.granted_at is not None,
            granted_at=one.granted_at or 0.0,
        )
        for one in capacity.reservations
    ]
    return agent_pb2.CapacityResponse(
        slots=capacity.slots,
        used=dict(capacity.used),
        reservations=reservations,
        headroom=capacity.headroom,
        closing=capacity.closing,
        isolation=capacity.isolation,
        devices=[
            agent_pb2.Device(name=one.name, declared=one.declared, memory_mib=one.memory_mib, model=one.model)
            for one in capacity.devices
        ],
        device_uses=[
            agent_pb2.DeviceUse(job_id=one.job_id, index=one.index, devices=one.devices, share=one.share)
            for one in capacity.device_uses
        ],
        job_revision=capacity.job_revision,
        pods=None if capacity.pods is None else agent_pb2.PodRules(**dataclasses.asdict(capacity.pods)),
        memory_mib=capacity.memory_mib,
    )


def inspected_from_message(message: agent_pb2.InspectedProcess) -> InspectedProcess:
    """Reads the answer of a process from a message."""
    threads = tuple(SystemThread(one.name, one.state, one.waits_in) for one in message.threads)
    return InspectedProcess(id_from_message(message.id), message.state, message.answer, message.dump, threads)


def inspected_to_message(found: InspectedProcess) -> agent_pb2.InspectedProcess:
    """The message that carries what a process answered."""
    threads = [agent_pb2.SystemThread(name=one.name, state=one.state, waits_in=one.waits_in) for one in found.threads]
    return agent_pb2.InspectedProcess(
        id=id_to_message(found.id), state=found.state, answer=found.answer, dump=found.dump, threads=threads
    )

from google.protobuf.internal import containers as _containers
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class ProcessId(_message.Message):
    __slots__ = ("job_id", "role", "index", "incarnation")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    role: str
    index: int
    incarnation: int
    def __init__(self, job_id: _Optional[str] = ..., role: _Optional[str] = ..., index: _Optional[int] = ..., incarnation: _Optional[int] = ...) -> None: ...

class ProcessStatus(_message.Message):
    __slots__ = ("id", "state", "has_exit_code", "exit_code", "reason", "pid", "message")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    HAS_EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    EXIT_CODE_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    id: ProcessId
    state: str
    has_exit_code: bool
    exit_code: int
    reason: str
    pid: int
    message: str
    def __init__(self, id: _Optional[_Union[ProcessId, _Mapping]] = ..., state: _Optional[str] = ..., has_exit_code: bool = ..., exit_code: _Optional[int] = ..., reason: _Optional[str] = ..., pid: _Optional[int] = ..., message: _Optional[str] = ...) -> None: ...

class LaunchRequest(_message.Message):
    __slots__ = ("id", "environment", "memory_mib", "slots", "namespace", "restricted", "readable", "writable", "device_share", "pod")
    class EnvironmentEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    ENVIRONMENT_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    NAMESPACE_FIELD_NUMBER: _ClassVar[int]
    RESTRICTED_FIELD_NUMBER: _ClassVar[int]
    READABLE_FIELD_NUMBER: _ClassVar[int]
    WRITABLE_FIELD_NUMBER: _ClassVar[int]
    DEVICE_SHARE_FIELD_NUMBER: _ClassVar[int]
    POD_FIELD_NUMBER: _ClassVar[int]
    id: ProcessId
    environment: _containers.ScalarMap[str, str]
    memory_mib: int
    slots: int
    namespace: str
    restricted: bool
    readable: _containers.RepeatedScalarFieldContainer[str]
    writable: _containers.RepeatedScalarFieldContainer[str]
    device_share: int
    pod: PodRequest
    def __init__(self, id: _Optional[_Union[ProcessId, _Mapping]] = ..., environment: _Optional[_Mapping[str, str]] = ..., memory_mib: _Optional[int] = ..., slots: _Optional[int] = ..., namespace: _Optional[str] = ..., restricted: bool = ..., readable: _Optional[_Iterable[str]] = ..., writable: _Optional[_Iterable[str]] = ..., device_share: _Optional[int] = ..., pod: _Optional[_Union[PodRequest, _Mapping]] = ...) -> None: ...

class PodRequest(_message.Message):
    __slots__ = ("image", "image_pull_policy", "cpu", "disk", "volume", "node_selector")
    class NodeSelectorEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    IMAGE_FIELD_NUMBER: _ClassVar[int]
    IMAGE_PULL_POLICY_FIELD_NUMBER: _ClassVar[int]
    CPU_FIELD_NUMBER: _ClassVar[int]
    DISK_FIELD_NUMBER: _ClassVar[int]
    VOLUME_FIELD_NUMBER: _ClassVar[int]
    NODE_SELECTOR_FIELD_NUMBER: _ClassVar[int]
    image: str
    image_pull_policy: str
    cpu: str
    disk: str
    volume: str
    node_selector: _containers.ScalarMap[str, str]
    def __init__(self, image: _Optional[str] = ..., image_pull_policy: _Optional[str] = ..., cpu: _Optional[str] = ..., disk: _Optional[str] = ..., volume: _Optional[str] = ..., node_selector: _Optional[_Mapping[str, str]] = ...) -> None: ...

class LaunchResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TerminateRequest(_message.Message):
    __slots__ = ("id", "grace_s")
    ID_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    id: ProcessId
    grace_s: float
    def __init__(self, id: _Optional[_Union[ProcessId, _Mapping]] = ..., grace_s: _Optional[float] = ...) -> None: ...

class TerminateJobRequest(_message.Message):
    __slots__ = ("job_id", "grace_s")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    grace_s: float
    def __init__(self, job_id: _Optional[str] = ..., grace_s: _Optional[float] = ...) -> None: ...

class TerminateResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ListRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class ListResponse(_message.Message):
    __slots__ = ("processes",)
    PROCESSES_FIELD_NUMBER: _ClassVar[int]
    processes: _containers.RepeatedCompositeFieldContainer[ProcessStatus]
    def __init__(self, processes: _Optional[_Iterable[_Union[ProcessStatus, _Mapping]]] = ...) -> None: ...

class WatchRequest(_message.Message):
    __slots__ = ("job_id",)
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    def __init__(self, job_id: _Optional[str] = ...) -> None: ...

class CapacityRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CapacityResponse(_message.Message):
    __slots__ = ("slots", "used", "reservations", "headroom", "closing", "isolation", "devices", "device_uses", "job_revision", "pods", "memory_mib")
    class UsedEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: int
        def __init__(self, key: _Optional[str] = ..., value: _Optional[int] = ...) -> None: ...
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    USED_FIELD_NUMBER: _ClassVar[int]
    RESERVATIONS_FIELD_NUMBER: _ClassVar[int]
    HEADROOM_FIELD_NUMBER: _ClassVar[int]
    CLOSING_FIELD_NUMBER: _ClassVar[int]
    ISOLATION_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    DEVICE_USES_FIELD_NUMBER: _ClassVar[int]
    JOB_REVISION_FIELD_NUMBER: _ClassVar[int]
    PODS_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    slots: int
    used: _containers.ScalarMap[str, int]
    reservations: _containers.RepeatedCompositeFieldContainer[SlotReservation]
    headroom: int
    closing: bool
    isolation: str
    devices: _containers.RepeatedCompositeFieldContainer[Device]
    device_uses: _containers.RepeatedCompositeFieldContainer[DeviceUse]
    job_revision: int
    pods: PodRules
    memory_mib: int
    def __init__(self, slots: _Optional[int] = ..., used: _Optional[_Mapping[str, int]] = ..., reservations: _Optional[_Iterable[_Union[SlotReservation, _Mapping]]] = ..., headroom: _Optional[int] = ..., closing: bool = ..., isolation: _Optional[str] = ..., devices: _Optional[_Iterable[_Union[Device, _Mapping]]] = ..., device_uses: _Optional[_Iterable[_Union[DeviceUse, _Mapping]]] = ..., job_revision: _Optional[int] = ..., pods: _Optional[_Union[PodRules, _Mapping]] = ..., memory_mib: _Optional[int] = ...) -> None: ...

class PodRules(_message.Message):
    __slots__ = ("images", "claims", "cluster_claim", "data_dir", "most_cpu", "most_memory", "node_selector")
    class NodeSelectorEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    IMAGES_FIELD_NUMBER: _ClassVar[int]
    CLAIMS_FIELD_NUMBER: _ClassVar[int]
    CLUSTER_CLAIM_FIELD_NUMBER: _ClassVar[int]
    DATA_DIR_FIELD_NUMBER: _ClassVar[int]
    MOST_CPU_FIELD_NUMBER: _ClassVar[int]
    MOST_MEMORY_FIELD_NUMBER: _ClassVar[int]
    NODE_SELECTOR_FIELD_NUMBER: _ClassVar[int]
    images: _containers.RepeatedScalarFieldContainer[str]
    claims: _containers.RepeatedScalarFieldContainer[str]
    cluster_claim: str
    data_dir: str
    most_cpu: str
    most_memory: str
    node_selector: _containers.ScalarMap[str, str]
    def __init__(self, images: _Optional[_Iterable[str]] = ..., claims: _Optional[_Iterable[str]] = ..., cluster_claim: _Optional[str] = ..., data_dir: _Optional[str] = ..., most_cpu: _Optional[str] = ..., most_memory: _Optional[str] = ..., node_selector: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Device(_message.Message):
    __slots__ = ("name", "declared", "memory_mib", "model")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DECLARED_FIELD_NUMBER: _ClassVar[int]
    MEMORY_MIB_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    name: str
    declared: bool
    memory_mib: int
    model: str
    def __init__(self, name: _Optional[str] = ..., declared: bool = ..., memory_mib: _Optional[int] = ..., model: _Optional[str] = ...) -> None: ...

class DeviceUse(_message.Message):
    __slots__ = ("job_id", "index", "devices", "share")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    DEVICES_FIELD_NUMBER: _ClassVar[int]
    SHARE_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    index: int
    devices: _containers.RepeatedScalarFieldContainer[int]
    share: int
    def __init__(self, job_id: _Optional[str] = ..., index: _Optional[int] = ..., devices: _Optional[_Iterable[int]] = ..., share: _Optional[int] = ...) -> None: ...

class SlotReservation(_message.Message):
    __slots__ = ("name", "slots", "granted", "grace_s", "changed_at", "has_granted_at", "granted_at")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    GRANTED_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    CHANGED_AT_FIELD_NUMBER: _ClassVar[int]
    HAS_GRANTED_AT_FIELD_NUMBER: _ClassVar[int]
    GRANTED_AT_FIELD_NUMBER: _ClassVar[int]
    name: str
    slots: int
    granted: int
    grace_s: float
    changed_at: float
    has_granted_at: bool
    granted_at: float
    def __init__(self, name: _Optional[str] = ..., slots: _Optional[int] = ..., granted: _Optional[int] = ..., grace_s: _Optional[float] = ..., changed_at: _Optional[float] = ..., has_granted_at: bool = ..., granted_at: _Optional[float] = ...) -> None: ...

class ReserveRequest(_message.Message):
    __slots__ = ("name", "slots", "grace_s")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SLOTS_FIELD_NUMBER: _ClassVar[int]
    GRACE_S_FIELD_NUMBER: _ClassVar[int]
    name: str
    slots: int
    grace_s: float
    def __init__(self, name: _Optional[str] = ..., slots: _Optional[int] = ..., grace_s: _Optional[float] = ...) -> None: ...

class ReleaseRequest(_message.Message):
    __slots__ = ("name",)
    NAME_FIELD_NUMBER: _ClassVar[int]
    name: str
    def __init__(self, name: _Optional[str] = ...) -> None: ...

class ReserveResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LogsRequest(_message.Message):
    __slots__ = ("job_id", "role", "index", "tail", "follow", "since_ms", "lines")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ROLE_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    TAIL_FIELD_NUMBER: _ClassVar[int]
    FOLLOW_FIELD_NUMBER: _ClassVar[int]
    SINCE_MS_FIELD_NUMBER: _ClassVar[int]
    LINES_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    role: str
    index: int
    tail: int
    follow: bool
    since_ms: int
    lines: int
    def __init__(self, job_id: _Optional[str] = ..., role: _Optional[str] = ..., index: _Optional[int] = ..., tail: _Optional[int] = ..., follow: bool = ..., since_ms: _Optional[int] = ..., lines: _Optional[int] = ...) -> None: ...

class LogsChunk(_message.Message):
    __slots__ = ("data",)
    DATA_FIELD_NUMBER: _ClassVar[int]
    data: bytes
    def __init__(self, data: _Optional[bytes] = ...) -> None: ...

class InspectRequest(_message.Message):
    __slots__ = ("job_id", "ask", "seconds")
    JOB_ID_FIELD_NUMBER: _ClassVar[int]
    ASK_FIELD_NUMBER: _ClassVar[int]
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    job_id: str
    ask: str
    seconds: float
    def __init__(self, job_id: _Optional[str] = ..., ask: _Optional[str] = ..., seconds: _Optional[float] = ...) -> None: ...

class InspectedProcess(_message.Message):
    __slots__ = ("id", "state", "answer", "dump", "threads")
    ID_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    ANSWER_FIELD_NUMBER: _ClassVar[int]
    DUMP_FIELD_NUMBER: _ClassVar[int]
    THREADS_FIELD_NUMBER: _ClassVar[int]
    id: ProcessId
    state: str
    answer: bytes
    dump: bytes
    threads: _containers.RepeatedCompositeFieldContainer[SystemThread]
    def __init__(self, id: _Optional[_Union[ProcessId, _Mapping]] = ..., state: _Optional[str] = ..., answer: _Optional[bytes] = ..., dump: _Optional[bytes] = ..., threads: _Optional[_Iterable[_Union[SystemThread, _Mapping]]] = ...) -> None: ...

class SystemThread(_message.Message):
    __slots__ = ("name", "state", "waits_in")
    NAME_FIELD_NUMBER: _ClassVar[int]
    STATE_FIELD_NUMBER: _ClassVar[int]
    WAITS_IN_FIELD_NUMBER: _ClassVar[int]
    name: str
    state: str
    waits_in: str
    def __init__(self, name: _Optional[str] = ..., state: _Optional[str] = ..., waits_in: _Optional[str] = ...) -> None: ...

class MetersRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class MetersResponse(_message.Message):
    __slots__ = ("values",)
    VALUES_FIELD_NUMBER: _ClassVar[int]
    values: _containers.RepeatedCompositeFieldContainer[MeterValue]
    def __init__(self, values: _Optional[_Iterable[_Union[MeterValue, _Mapping]]] = ...) -> None: ...

class MeterValue(_message.Message):
    __slots__ = ("name", "label", "value")
    NAME_FIELD_NUMBER: _ClassVar[int]
    LABEL_FIELD_NUMBER: _ClassVar[int]
    VALUE_FIELD_NUMBER: _ClassVar[int]
    name: str
    label: str
    value: float
    def __init__(self, name: _Optional[str] = ..., label: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...

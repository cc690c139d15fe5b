from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Directive(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    DIRECTIVE_UNSPECIFIED: _ClassVar[Directive]
    DIRECTIVE_CONTINUE: _ClassVar[Directive]
    DIRECTIVE_WAIT: _ClassVar[Directive]
    DIRECTIVE_DRAIN: _ClassVar[Directive]
    DIRECTIVE_FINISHED: _ClassVar[Directive]
DIRECTIVE_UNSPECIFIED: Directive
DIRECTIVE_CONTINUE: Directive
DIRECTIVE_WAIT: Directive
DIRECTIVE_DRAIN: Directive
DIRECTIVE_FINISHED: Directive

class Shard(_message.Message):
    __slots__ = ("name", "start", "end")
    NAME_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    END_FIELD_NUMBER: _ClassVar[int]
    name: str
    start: int
    end: int
    def __init__(self, name: _Optional[str] = ..., start: _Optional[int] = ..., end: _Optional[int] = ...) -> None: ...

class Task(_message.Message):
    __slots__ = ("id", "type", "shard", "model_version", "payload", "token", "lease_s", "reading", "fingerprints")
    class FingerprintsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: str
        def __init__(self, key: _Optional[str] = ..., value: _Optional[str] = ...) -> None: ...
    ID_FIELD_NUMBER: _ClassVar[int]
    TYPE_FIELD_NUMBER: _ClassVar[int]
    SHARD_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    PAYLOAD_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    LEASE_S_FIELD_NUMBER: _ClassVar[int]
    READING_FIELD_NUMBER: _ClassVar[int]
    FINGERPRINTS_FIELD_NUMBER: _ClassVar[int]
    id: str
    type: str
    shard: Shard
    model_version: int
    payload: str
    token: str
    lease_s: float
    reading: Reading
    fingerprints: _containers.ScalarMap[str, str]
    def __init__(self, id: _Optional[str] = ..., type: _Optional[str] = ..., shard: _Optional[_Union[Shard, _Mapping]] = ..., model_version: _Optional[int] = ..., payload: _Optional[str] = ..., token: _Optional[str] = ..., lease_s: _Optional[float] = ..., reading: _Optional[_Union[Reading, _Mapping]] = ..., fingerprints: _Optional[_Mapping[str, str]] = ...) -> None: ...

class Reading(_message.Message):
    __slots__ = ("first", "key", "names", "ranges", "block", "bases", "numbers", "readers")
    FIRST_FIELD_NUMBER: _ClassVar[int]
    KEY_FIELD_NUMBER: _ClassVar[int]
    NAMES_FIELD_NUMBER: _ClassVar[int]
    RANGES_FIELD_NUMBER: _ClassVar[int]
    BLOCK_FIELD_NUMBER: _ClassVar[int]
    BASES_FIELD_NUMBER: _ClassVar[int]
    NUMBERS_FIELD_NUMBER: _ClassVar[int]
    READERS_FIELD_NUMBER: _ClassVar[int]
    first: int
    key: str
    names: _containers.RepeatedScalarFieldContainer[str]
    ranges: _containers.RepeatedScalarFieldContainer[int]
    block: int
    bases: _containers.RepeatedScalarFieldContainer[int]
    numbers: _containers.RepeatedScalarFieldContainer[int]
    readers: int
    def __init__(self, first: _Optional[int] = ..., key: _Optional[str] = ..., names: _Optional[_Iterable[str]] = ..., ranges: _Optional[_Iterable[int]] = ..., block: _Optional[int] = ..., bases: _Optional[_Iterable[int]] = ..., numbers: _Optional[_Iterable[int]] = ..., readers: _Optional[int] = ...) -> None: ...

class ParameterServers(_message.Message):
    __slots__ = ("addresses", "generation")
    ADDRESSES_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    addresses: _containers.RepeatedScalarFieldContainer[str]
    generation: int
    def __init__(self, addresses: _Optional[_Iterable[str]] = ..., generation: _Optional[int] = ...) -> None: ...

class RegisterRequest(_message.Message):
    __slots__ = ("index", "incarnation", "pid")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    INCARNATION_FIELD_NUMBER: _ClassVar[int]
    PID_FIELD_NUMBER: _ClassVar[int]
    index: int
    incarnation: int
    pid: int
    def __init__(self, index: _Optional[int] = ..., incarnation: _Optional[int] = ..., pid: _Optional[int] = ...) -> None: ...

class RegisterResponse(_message.Message):
    __slots__ = ("spec", "model_zoo", "job_dir", "parameter_servers", "heartbeat_s", "master_epoch", "start_version", "inspects")
    SPEC_FIELD_NUMBER: _ClassVar[int]
    MODEL_ZOO_FIELD_NUMBER: _ClassVar[int]
    JOB_DIR_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_SERVERS_FIELD_NUMBER: _ClassVar[int]
    HEARTBEAT_S_FIELD_NUMBER: _ClassVar[int]
    MASTER_EPOCH_FIELD_NUMBER: _ClassVar[int]
    START_VERSION_FIELD_NUMBER: _ClassVar[int]
    INSPECTS_FIELD_NUMBER: _ClassVar[int]
    spec: str
    model_zoo: str
    job_dir: str
    parameter_servers: ParameterServers
    heartbeat_s: float
    master_epoch: int
    start_version: int
    inspects: bool
    def __init__(self, spec: _Optional[str] = ..., model_zoo: _Optional[str] = ..., job_dir: _Optional[str] = ..., parameter_servers: _Optional[_Union[ParameterServers, _Mapping]] = ..., heartbeat_s: _Optional[float] = ..., master_epoch: _Optional[int] = ..., start_version: _Optional[int] = ..., inspects: bool = ...) -> None: ...

class DescribeSightRequest(_message.Message):
    __slots__ = ("sight",)
    SIGHT_FIELD_NUMBER: _ClassVar[int]
    sight: str
    def __init__(self, sight: _Optional[str] = ...) -> None: ...

class DescribeSightResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class DescribeModelRequest(_message.Message):
    __slots__ = ("description",)
    DESCRIPTION_FIELD_NUMBER: _ClassVar[int]
    description: str
    def __init__(self, description: _Optional[str] = ...) -> None: ...

class DescribeModelResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class LeaseRequest(_message.Message):
    __slots__ = ("max_tasks",)
    MAX_TASKS_FIELD_NUMBER: _ClassVar[int]
    max_tasks: int
    def __init__(self, max_tasks: _Optional[int] = ...) -> None: ...

class LeaseResponse(_message.Message):
    __slots__ = ("tasks", "directive", "wait_s")
    TASKS_FIELD_NUMBER: _ClassVar[int]
    DIRECTIVE_FIELD_NUMBER: _ClassVar[int]
    WAIT_S_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    directive: Directive
    wait_s: float
    def __init__(self, tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ..., directive: _Optional[_Union[Directive, str]] = ..., wait_s: _Optional[float] = ...) -> None: ...

class TaskProgress(_message.Message):
    __slots__ = ("token", "position")
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    token: str
    position: int
    def __init__(self, token: _Optional[str] = ..., position: _Optional[int] = ...) -> None: ...

class HeartbeatRequest(_message.Message):
    __slots__ = ("tasks", "records", "steps", "samples_per_second", "model_version", "losses", "phase", "step_p95_s", "loss", "last_loss", "learning_rate", "training_metrics", "step", "training_metrics_version")
    class TrainingMetricsEntry(_message.Message):
        __slots__ = ("key", "value")
        KEY_FIELD_NUMBER: _ClassVar[int]
        VALUE_FIELD_NUMBER: _ClassVar[int]
        key: str
        value: float
        def __init__(self, key: _Optional[str] = ..., value: _Optional[float] = ...) -> None: ...
    TASKS_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    SAMPLES_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    LOSSES_FIELD_NUMBER: _ClassVar[int]
    PHASE_FIELD_NUMBER: _ClassVar[int]
    STEP_P95_S_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    LAST_LOSS_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATE_FIELD_NUMBER: _ClassVar[int]
    TRAINING_METRICS_FIELD_NUMBER: _ClassVar[int]
    STEP_FIELD_NUMBER: _ClassVar[int]
    TRAINING_METRICS_VERSION_FIELD_NUMBER: _ClassVar[int]
    tasks: _containers.RepeatedCompositeFieldContainer[TaskProgress]
    records: int
    steps: int
    samples_per_second: float
    model_version: int
    losses: _containers.RepeatedCompositeFieldContainer[LossPoint]
    phase: str
    step_p95_s: float
    loss: float
    last_loss: float
    learning_rate: float
    training_metrics: _containers.ScalarMap[str, float]
    step: StepParts
    training_metrics_version: int
    def __init__(self, tasks: _Optional[_Iterable[_Union[TaskProgress, _Mapping]]] = ..., records: _Optional[int] = ..., steps: _Optional[int] = ..., samples_per_second: _Optional[float] = ..., model_version: _Optional[int] = ..., losses: _Optional[_Iterable[_Union[LossPoint, _Mapping]]] = ..., phase: _Optional[str] = ..., step_p95_s: _Optional[float] = ..., loss: _Optional[float] = ..., last_loss: _Optional[float] = ..., learning_rate: _Optional[float] = ..., training_metrics: _Optional[_Mapping[str, float]] = ..., step: _Optional[_Union[StepParts, _Mapping]] = ..., training_metrics_version: _Optional[int] = ...) -> None: ...

class StepParts(_message.Message):
    __slots__ = ("data", "pull", "compute", "push", "wait")
    DATA_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    COMPUTE_FIELD_NUMBER: _ClassVar[int]
    PUSH_FIELD_NUMBER: _ClassVar[int]
    WAIT_FIELD_NUMBER: _ClassVar[int]
    data: float
    pull: float
    compute: float
    push: float
    wait: float
    def __init__(self, data: _Optional[float] = ..., pull: _Optional[float] = ..., compute: _Optional[float] = ..., push: _Optional[float] = ..., wait: _Optional[float] = ...) -> None: ...

class LossPoint(_message.Message):
    __slots__ = ("model_version", "loss")
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    LOSS_FIELD_NUMBER: _ClassVar[int]
    model_version: int
    loss: float
    def __init__(self, model_version: _Optional[int] = ..., loss: _Optional[float] = ...) -> None: ...

class HeartbeatResponse(_message.Message):
    __slots__ = ("directive", "lost", "parameter_servers", "token")
    DIRECTIVE_FIELD_NUMBER: _ClassVar[int]
    LOST_FIELD_NUMBER: _ClassVar[int]
    PARAMETER_SERVERS_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    directive: Directive
    lost: _containers.RepeatedScalarFieldContainer[str]
    parameter_servers: ParameterServers
    token: str
    def __init__(self, directive: _Optional[_Union[Directive, str]] = ..., lost: _Optional[_Iterable[str]] = ..., parameter_servers: _Optional[_Union[ParameterServers, _Mapping]] = ..., token: _Optional[str] = ...) -> None: ...

class Skip(_message.Message):
    __slots__ = ("reason", "records", "example")
    REASON_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    EXAMPLE_FIELD_NUMBER: _ClassVar[int]
    reason: str
    records: int
    example: str
    def __init__(self, reason: _Optional[str] = ..., records: _Optional[int] = ..., example: _Optional[str] = ...) -> None: ...

class Account(_message.Message):
    __slots__ = ("fed", "applied", "skipped")
    FED_FIELD_NUMBER: _ClassVar[int]
    APPLIED_FIELD_NUMBER: _ClassVar[int]
    SKIPPED_FIELD_NUMBER: _ClassVar[int]
    fed: int
    applied: int
    skipped: _containers.RepeatedCompositeFieldContainer[Skip]
    def __init__(self, fed: _Optional[int] = ..., applied: _Optional[int] = ..., skipped: _Optional[_Iterable[_Union[Skip, _Mapping]]] = ...) -> None: ...

class ReportRequest(_message.Message):
    __slots__ = ("task_id", "token", "records", "result", "model_version", "max_tasks", "account", "trace_trouble")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    RESULT_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    MAX_TASKS_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    TRACE_TROUBLE_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    token: str
    records: int
    result: bytes
    model_version: int
    max_tasks: int
    account: Account
    trace_trouble: str
    def __init__(self, task_id: _Optional[str] = ..., token: _Optional[str] = ..., records: _Optional[int] = ..., result: _Optional[bytes] = ..., model_version: _Optional[int] = ..., max_tasks: _Optional[int] = ..., account: _Optional[_Union[Account, _Mapping]] = ..., trace_trouble: _Optional[str] = ...) -> None: ...

class ReportResponse(_message.Message):
    __slots__ = ("accepted", "replay", "tasks")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    replay: bool
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    def __init__(self, accepted: bool = ..., replay: bool = ..., tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ...) -> None: ...

class ReturnRequest(_message.Message):
    __slots__ = ("task_id", "token", "position", "account", "model_version")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    token: str
    position: int
    account: Account
    model_version: int
    def __init__(self, task_id: _Optional[str] = ..., token: _Optional[str] = ..., position: _Optional[int] = ..., account: _Optional[_Union[Account, _Mapping]] = ..., model_version: _Optional[int] = ...) -> None: ...

class ReturnResponse(_message.Message):
    __slots__ = ("accepted",)
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    def __init__(self, accepted: bool = ...) -> None: ...

class FailRequest(_message.Message):
    __slots__ = ("task_id", "token", "kind", "message", "fix", "traceback")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    MESSAGE_FIELD_NUMBER: _ClassVar[int]
    FIX_FIELD_NUMBER: _ClassVar[int]
    TRACEBACK_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    token: str
    kind: str
    message: str
    fix: str
    traceback: str
    def __init__(self, task_id: _Optional[str] = ..., token: _Optional[str] = ..., kind: _Optional[str] = ..., message: _Optional[str] = ..., fix: _Optional[str] = ..., traceback: _Optional[str] = ...) -> None: ...

class FailResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReportShardsRequest(_message.Message):
    __slots__ = ("task_id", "token", "shards", "last", "first")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    SHARDS_FIELD_NUMBER: _ClassVar[int]
    LAST_FIELD_NUMBER: _ClassVar[int]
    FIRST_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    token: str
    shards: _containers.RepeatedCompositeFieldContainer[Shard]
    last: bool
    first: int
    def __init__(self, task_id: _Optional[str] = ..., token: _Optional[str] = ..., shards: _Optional[_Iterable[_Union[Shard, _Mapping]]] = ..., last: bool = ..., first: _Optional[int] = ...) -> None: ...

class ReportShardsResponse(_message.Message):
    __slots__ = ("accepted",)
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    def __init__(self, accepted: bool = ...) -> None: ...

class TaskEnd(_message.Message):
    __slots__ = ("task_id", "token", "position", "account", "model_version")
    TASK_ID_FIELD_NUMBER: _ClassVar[int]
    TOKEN_FIELD_NUMBER: _ClassVar[int]
    POSITION_FIELD_NUMBER: _ClassVar[int]
    ACCOUNT_FIELD_NUMBER: _ClassVar[int]
    MODEL_VERSION_FIELD_NUMBER: _ClassVar[int]
    task_id: str
    token: str
    position: int
    account: Account
    model_version: int
    def __init__(self, task_id: _Optional[str] = ..., token: _Optional[str] = ..., position: _Optional[int] = ..., account: _Optional[_Union[Account, _Mapping]] = ..., model_version: _Optional[int] = ...) -> None: ...

class GroupReport(_message.Message):
    __slots__ = ("version", "steps", "bytes", "last_token", "ended", "pinned", "tally", "tallied", "records_per_second", "left")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    LAST_TOKEN_FIELD_NUMBER: _ClassVar[int]
    ENDED_FIELD_NUMBER: _ClassVar[int]
    PINNED_FIELD_NUMBER: _ClassVar[int]
    TALLY_FIELD_NUMBER: _ClassVar[int]
    TALLIED_FIELD_NUMBER: _ClassVar[int]
    RECORDS_PER_SECOND_FIELD_NUMBER: _ClassVar[int]
    LEFT_FIELD_NUMBER: _ClassVar[int]
    version: int
    steps: int
    bytes: int
    last_token: str
    ended: _containers.RepeatedCompositeFieldContainer[TaskEnd]
    pinned: int
    tally: _containers.RepeatedScalarFieldContainer[int]
    tallied: bool
    records_per_second: float
    left: int
    def __init__(self, version: _Optional[int] = ..., steps: _Optional[int] = ..., bytes: _Optional[int] = ..., last_token: _Optional[str] = ..., ended: _Optional[_Iterable[_Union[TaskEnd, _Mapping]]] = ..., pinned: _Optional[int] = ..., tally: _Optional[_Iterable[int]] = ..., tallied: bool = ..., records_per_second: _Optional[float] = ..., left: _Optional[int] = ...) -> None: ...

class CheckpointShare(_message.Message):
    __slots__ = ("order", "rank", "size", "version", "name", "bytes", "sha256", "model", "book", "trouble")
    ORDER_FIELD_NUMBER: _ClassVar[int]
    RANK_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    NAME_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    BOOK_FIELD_NUMBER: _ClassVar[int]
    TROUBLE_FIELD_NUMBER: _ClassVar[int]
    order: int
    rank: int
    size: int
    version: int
    name: str
    bytes: int
    sha256: str
    model: str
    book: str
    trouble: str
    def __init__(self, order: _Optional[int] = ..., rank: _Optional[int] = ..., size: _Optional[int] = ..., version: _Optional[int] = ..., name: _Optional[str] = ..., bytes: _Optional[int] = ..., sha256: _Optional[str] = ..., model: _Optional[str] = ..., book: _Optional[str] = ..., trouble: _Optional[str] = ...) -> None: ...

class MeetRequest(_message.Message):
    __slots__ = ("endpoint", "finished", "generation", "holds", "leaving", "suspects", "busy_s", "seen", "report", "shares", "refused", "refused_fix")
    ENDPOINT_FIELD_NUMBER: _ClassVar[int]
    FINISHED_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    HOLDS_FIELD_NUMBER: _ClassVar[int]
    LEAVING_FIELD_NUMBER: _ClassVar[int]
    SUSPECTS_FIELD_NUMBER: _ClassVar[int]
    BUSY_S_FIELD_NUMBER: _ClassVar[int]
    SEEN_FIELD_NUMBER: _ClassVar[int]
    REPORT_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIX_FIELD_NUMBER: _ClassVar[int]
    endpoint: bytes
    finished: int
    generation: int
    holds: bool
    leaving: bool
    suspects: _containers.RepeatedScalarFieldContainer[str]
    busy_s: float
    seen: int
    report: GroupReport
    shares: _containers.RepeatedCompositeFieldContainer[CheckpointShare]
    refused: str
    refused_fix: str
    def __init__(self, endpoint: _Optional[bytes] = ..., finished: _Optional[int] = ..., generation: _Optional[int] = ..., holds: bool = ..., leaving: bool = ..., suspects: _Optional[_Iterable[str]] = ..., busy_s: _Optional[float] = ..., seen: _Optional[int] = ..., report: _Optional[_Union[GroupReport, _Mapping]] = ..., shares: _Optional[_Iterable[_Union[CheckpointShare, _Mapping]]] = ..., refused: _Optional[str] = ..., refused_fix: _Optional[str] = ...) -> None: ...

class MeetResponse(_message.Message):
    __slots__ = ("revision", "generation", "members", "endpoints", "base", "is_over", "regroup", "dismissed", "secret", "foundation", "tasks", "solo", "acknowledged", "drop", "pin", "save", "tally", "limit", "directive", "shares", "pause_at")
    REVISION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    ENDPOINTS_FIELD_NUMBER: _ClassVar[int]
    BASE_FIELD_NUMBER: _ClassVar[int]
    IS_OVER_FIELD_NUMBER: _ClassVar[int]
    REGROUP_FIELD_NUMBER: _ClassVar[int]
    DISMISSED_FIELD_NUMBER: _ClassVar[int]
    SECRET_FIELD_NUMBER: _ClassVar[int]
    FOUNDATION_FIELD_NUMBER: _ClassVar[int]
    TASKS_FIELD_NUMBER: _ClassVar[int]
    SOLO_FIELD_NUMBER: _ClassVar[int]
    ACKNOWLEDGED_FIELD_NUMBER: _ClassVar[int]
    DROP_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    SAVE_FIELD_NUMBER: _ClassVar[int]
    TALLY_FIELD_NUMBER: _ClassVar[int]
    LIMIT_FIELD_NUMBER: _ClassVar[int]
    DIRECTIVE_FIELD_NUMBER: _ClassVar[int]
    SHARES_FIELD_NUMBER: _ClassVar[int]
    PAUSE_AT_FIELD_NUMBER: _ClassVar[int]
    revision: int
    generation: int
    members: _containers.RepeatedScalarFieldContainer[str]
    endpoints: _containers.RepeatedScalarFieldContainer[bytes]
    base: int
    is_over: bool
    regroup: bool
    dismissed: bool
    secret: bytes
    foundation: str
    tasks: _containers.RepeatedCompositeFieldContainer[Task]
    solo: _containers.RepeatedCompositeFieldContainer[Task]
    acknowledged: _containers.RepeatedScalarFieldContainer[str]
    drop: bool
    pin: int
    save: str
    tally: bool
    limit: int
    directive: Directive
    shares: _containers.RepeatedScalarFieldContainer[int]
    pause_at: int
    def __init__(self, revision: _Optional[int] = ..., generation: _Optional[int] = ..., members: _Optional[_Iterable[str]] = ..., endpoints: _Optional[_Iterable[bytes]] = ..., base: _Optional[int] = ..., is_over: bool = ..., regroup: bool = ..., dismissed: bool = ..., secret: _Optional[bytes] = ..., foundation: _Optional[str] = ..., tasks: _Optional[_Iterable[_Union[Task, _Mapping]]] = ..., solo: _Optional[_Iterable[_Union[Task, _Mapping]]] = ..., acknowledged: _Optional[_Iterable[str]] = ..., drop: bool = ..., pin: _Optional[int] = ..., save: _Optional[str] = ..., tally: bool = ..., limit: _Optional[int] = ..., directive: _Optional[_Union[Directive, str]] = ..., shares: _Optional[_Iterable[int]] = ..., pause_at: _Optional[int] = ...) -> None: ...

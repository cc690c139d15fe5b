from google.protobuf.internal import containers as _containers
from google.protobuf.internal import enum_type_wrapper as _enum_type_wrapper
from google.protobuf import descriptor as _descriptor
from google.protobuf import message as _message
from collections.abc import Iterable as _Iterable, Mapping as _Mapping
from typing import ClassVar as _ClassVar, Optional as _Optional, Union as _Union

DESCRIPTOR: _descriptor.FileDescriptor

class Step(int, metaclass=_enum_type_wrapper.EnumTypeWrapper):
    __slots__ = ()
    STEP_NONE: _ClassVar[Step]
    STEP_PULL: _ClassVar[Step]
    STEP_PUSH: _ClassVar[Step]
    STEP_PUSH_PULL: _ClassVar[Step]
STEP_NONE: Step
STEP_PULL: Step
STEP_PUSH: Step
STEP_PUSH_PULL: Step

class Chunk(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class StatusRequest(_message.Message):
    __slots__ = ("model",)
    MODEL_FIELD_NUMBER: _ClassVar[int]
    model: bool
    def __init__(self, model: bool = ...) -> None: ...

class StatusResponse(_message.Message):
    __slots__ = ("index", "num_ps", "initialized", "version", "generation", "rows", "bytes", "tables", "updates", "rejected", "mode", "records", "model", "cpu_s")
    INDEX_FIELD_NUMBER: _ClassVar[int]
    NUM_PS_FIELD_NUMBER: _ClassVar[int]
    INITIALIZED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    UPDATES_FIELD_NUMBER: _ClassVar[int]
    REJECTED_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    CPU_S_FIELD_NUMBER: _ClassVar[int]
    index: int
    num_ps: int
    initialized: bool
    version: int
    generation: str
    rows: int
    bytes: int
    tables: _containers.RepeatedCompositeFieldContainer[TableStatus]
    updates: int
    rejected: int
    mode: str
    records: int
    model: str
    cpu_s: float
    def __init__(self, index: _Optional[int] = ..., num_ps: _Optional[int] = ..., initialized: bool = ..., version: _Optional[int] = ..., generation: _Optional[str] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., tables: _Optional[_Iterable[_Union[TableStatus, _Mapping]]] = ..., updates: _Optional[int] = ..., rejected: _Optional[int] = ..., mode: _Optional[str] = ..., records: _Optional[int] = ..., model: _Optional[str] = ..., cpu_s: _Optional[float] = ...) -> None: ...

class TableStatus(_message.Message):
    __slots__ = ("name", "rows", "bytes", "admitted", "evicted", "refused")
    NAME_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    BYTES_FIELD_NUMBER: _ClassVar[int]
    ADMITTED_FIELD_NUMBER: _ClassVar[int]
    EVICTED_FIELD_NUMBER: _ClassVar[int]
    REFUSED_FIELD_NUMBER: _ClassVar[int]
    name: str
    rows: int
    bytes: int
    admitted: int
    evicted: int
    refused: int
    def __init__(self, name: _Optional[str] = ..., rows: _Optional[int] = ..., bytes: _Optional[int] = ..., admitted: _Optional[int] = ..., evicted: _Optional[int] = ..., refused: _Optional[int] = ...) -> None: ...

class Dense(_message.Message):
    __slots__ = ("name", "dtype", "shape", "kind", "weight_decay", "start", "stop", "buffer", "version", "constraint", "keep", "pulled", "group")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    SHAPE_FIELD_NUMBER: _ClassVar[int]
    KIND_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_DECAY_FIELD_NUMBER: _ClassVar[int]
    START_FIELD_NUMBER: _ClassVar[int]
    STOP_FIELD_NUMBER: _ClassVar[int]
    BUFFER_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CONSTRAINT_FIELD_NUMBER: _ClassVar[int]
    KEEP_FIELD_NUMBER: _ClassVar[int]
    PULLED_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    name: str
    dtype: str
    shape: _containers.RepeatedScalarFieldContainer[int]
    kind: str
    weight_decay: bool
    start: int
    stop: int
    buffer: int
    version: int
    constraint: str
    keep: float
    pulled: int
    group: int
    def __init__(self, name: _Optional[str] = ..., dtype: _Optional[str] = ..., shape: _Optional[_Iterable[int]] = ..., kind: _Optional[str] = ..., weight_decay: bool = ..., start: _Optional[int] = ..., stop: _Optional[int] = ..., buffer: _Optional[int] = ..., version: _Optional[int] = ..., constraint: _Optional[str] = ..., keep: _Optional[float] = ..., pulled: _Optional[int] = ..., group: _Optional[int] = ...) -> None: ...

class Table(_message.Message):
    __slots__ = ("name", "dim", "initializer", "input_dim", "undecayed", "group")
    NAME_FIELD_NUMBER: _ClassVar[int]
    DIM_FIELD_NUMBER: _ClassVar[int]
    INITIALIZER_FIELD_NUMBER: _ClassVar[int]
    INPUT_DIM_FIELD_NUMBER: _ClassVar[int]
    UNDECAYED_FIELD_NUMBER: _ClassVar[int]
    GROUP_FIELD_NUMBER: _ClassVar[int]
    name: str
    dim: int
    initializer: str
    input_dim: int
    undecayed: bool
    group: int
    def __init__(self, name: _Optional[str] = ..., dim: _Optional[int] = ..., initializer: _Optional[str] = ..., input_dim: _Optional[int] = ..., undecayed: bool = ..., group: _Optional[int] = ...) -> None: ...

class Rows(_message.Message):
    __slots__ = ("table", "ids", "values", "dtype", "pulled")
    TABLE_FIELD_NUMBER: _ClassVar[int]
    IDS_FIELD_NUMBER: _ClassVar[int]
    VALUES_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    PULLED_FIELD_NUMBER: _ClassVar[int]
    table: str
    ids: int
    values: int
    dtype: str
    pulled: int
    def __init__(self, table: _Optional[str] = ..., ids: _Optional[int] = ..., values: _Optional[int] = ..., dtype: _Optional[str] = ..., pulled: _Optional[int] = ...) -> None: ...

class PushModelRequest(_message.Message):
    __slots__ = ("dense", "tables", "optimizer", "mode", "parameters")
    DENSE_FIELD_NUMBER: _ClassVar[int]
    TABLES_FIELD_NUMBER: _ClassVar[int]
    OPTIMIZER_FIELD_NUMBER: _ClassVar[int]
    MODE_FIELD_NUMBER: _ClassVar[int]
    PARAMETERS_FIELD_NUMBER: _ClassVar[int]
    dense: _containers.RepeatedCompositeFieldContainer[Dense]
    tables: _containers.RepeatedCompositeFieldContainer[Table]
    optimizer: str
    mode: str
    parameters: _containers.RepeatedScalarFieldContainer[str]
    def __init__(self, dense: _Optional[_Iterable[_Union[Dense, _Mapping]]] = ..., tables: _Optional[_Iterable[_Union[Table, _Mapping]]] = ..., optimizer: _Optional[str] = ..., mode: _Optional[str] = ..., parameters: _Optional[_Iterable[str]] = ...) -> None: ...

class PushModelResponse(_message.Message):
    __slots__ = ("initialized", "version")
    INITIALIZED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    initialized: bool
    version: int
    def __init__(self, initialized: bool = ..., version: _Optional[int] = ...) -> None: ...

class PullRequest(_message.Message):
    __slots__ = ("dense_version", "rows", "pin", "dtype", "generation", "wait_for", "apply")
    DENSE_VERSION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    PIN_FIELD_NUMBER: _ClassVar[int]
    DTYPE_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    WAIT_FOR_FIELD_NUMBER: _ClassVar[int]
    APPLY_FIELD_NUMBER: _ClassVar[int]
    dense_version: int
    rows: _containers.RepeatedCompositeFieldContainer[Rows]
    pin: int
    dtype: str
    generation: str
    wait_for: int
    apply: RoundMembers
    def __init__(self, dense_version: _Optional[int] = ..., rows: _Optional[_Iterable[_Union[Rows, _Mapping]]] = ..., pin: _Optional[int] = ..., dtype: _Optional[str] = ..., generation: _Optional[str] = ..., wait_for: _Optional[int] = ..., apply: _Optional[_Union[RoundMembers, _Mapping]] = ...) -> None: ...

class PullResponse(_message.Message):
    __slots__ = ("version", "dense", "rows", "generation", "initialized", "round", "pending", "undeclared")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    INITIALIZED_FIELD_NUMBER: _ClassVar[int]
    ROUND_FIELD_NUMBER: _ClassVar[int]
    PENDING_FIELD_NUMBER: _ClassVar[int]
    UNDECLARED_FIELD_NUMBER: _ClassVar[int]
    version: int
    dense: _containers.RepeatedCompositeFieldContainer[Dense]
    rows: _containers.RepeatedCompositeFieldContainer[Rows]
    generation: str
    initialized: bool
    round: RoundMembers
    pending: bool
    undeclared: bool
    def __init__(self, version: _Optional[int] = ..., dense: _Optional[_Iterable[_Union[Dense, _Mapping]]] = ..., rows: _Optional[_Iterable[_Union[Rows, _Mapping]]] = ..., generation: _Optional[str] = ..., initialized: bool = ..., round: _Optional[_Union[RoundMembers, _Mapping]] = ..., pending: bool = ..., undeclared: bool = ...) -> None: ...

class TaskName(_message.Message):
    __slots__ = ("round", "index")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    INDEX_FIELD_NUMBER: _ClassVar[int]
    round: int
    index: int
    def __init__(self, round: _Optional[int] = ..., index: _Optional[int] = ...) -> None: ...

class PushGradientsRequest(_message.Message):
    __slots__ = ("worker", "sequence", "version", "dense", "rows", "generation", "records", "task", "steps", "learning_rates", "weight")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    DENSE_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    GENERATION_FIELD_NUMBER: _ClassVar[int]
    RECORDS_FIELD_NUMBER: _ClassVar[int]
    TASK_FIELD_NUMBER: _ClassVar[int]
    STEPS_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATES_FIELD_NUMBER: _ClassVar[int]
    WEIGHT_FIELD_NUMBER: _ClassVar[int]
    worker: str
    sequence: int
    version: int
    dense: _containers.RepeatedCompositeFieldContainer[Dense]
    rows: _containers.RepeatedCompositeFieldContainer[Rows]
    generation: str
    records: int
    task: TaskName
    steps: int
    learning_rates: _containers.RepeatedScalarFieldContainer[float]
    weight: float
    def __init__(self, worker: _Optional[str] = ..., sequence: _Optional[int] = ..., version: _Optional[int] = ..., dense: _Optional[_Iterable[_Union[Dense, _Mapping]]] = ..., rows: _Optional[_Iterable[_Union[Rows, _Mapping]]] = ..., generation: _Optional[str] = ..., records: _Optional[int] = ..., task: _Optional[_Union[TaskName, _Mapping]] = ..., steps: _Optional[int] = ..., learning_rates: _Optional[_Iterable[float]] = ..., weight: _Optional[float] = ...) -> None: ...

class PushGradientsResponse(_message.Message):
    __slots__ = ("accepted", "version", "replay", "reason", "closed")
    ACCEPTED_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    REPLAY_FIELD_NUMBER: _ClassVar[int]
    REASON_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    accepted: bool
    version: int
    replay: bool
    reason: str
    closed: RoundMembers
    def __init__(self, accepted: bool = ..., version: _Optional[int] = ..., replay: bool = ..., reason: _Optional[str] = ..., closed: _Optional[_Union[RoundMembers, _Mapping]] = ...) -> None: ...

class PushPullRequest(_message.Message):
    __slots__ = ("push", "pull", "pull_from")
    PUSH_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    PULL_FROM_FIELD_NUMBER: _ClassVar[int]
    push: PushGradientsRequest
    pull: PullRequest
    pull_from: int
    def __init__(self, push: _Optional[_Union[PushGradientsRequest, _Mapping]] = ..., pull: _Optional[_Union[PullRequest, _Mapping]] = ..., pull_from: _Optional[int] = ...) -> None: ...

class PushPullResponse(_message.Message):
    __slots__ = ("push", "pull", "failed")
    PUSH_FIELD_NUMBER: _ClassVar[int]
    PULL_FIELD_NUMBER: _ClassVar[int]
    FAILED_FIELD_NUMBER: _ClassVar[int]
    push: PushGradientsResponse
    pull: PullResponse
    failed: PullFailure
    def __init__(self, push: _Optional[_Union[PushGradientsResponse, _Mapping]] = ..., pull: _Optional[_Union[PullResponse, _Mapping]] = ..., failed: _Optional[_Union[PullFailure, _Mapping]] = ...) -> None: ...

class PullFailure(_message.Message):
    __slots__ = ("code", "details")
    CODE_FIELD_NUMBER: _ClassVar[int]
    DETAILS_FIELD_NUMBER: _ClassVar[int]
    code: int
    details: str
    def __init__(self, code: _Optional[int] = ..., details: _Optional[str] = ...) -> None: ...

class Member(_message.Message):
    __slots__ = ("worker", "sequence")
    WORKER_FIELD_NUMBER: _ClassVar[int]
    SEQUENCE_FIELD_NUMBER: _ClassVar[int]
    worker: str
    sequence: int
    def __init__(self, worker: _Optional[str] = ..., sequence: _Optional[int] = ...) -> None: ...

class RoundMembers(_message.Message):
    __slots__ = ("round", "members", "learning_rates")
    ROUND_FIELD_NUMBER: _ClassVar[int]
    MEMBERS_FIELD_NUMBER: _ClassVar[int]
    LEARNING_RATES_FIELD_NUMBER: _ClassVar[int]
    round: int
    members: _containers.RepeatedCompositeFieldContainer[Member]
    learning_rates: _containers.RepeatedScalarFieldContainer[float]
    def __init__(self, round: _Optional[int] = ..., members: _Optional[_Iterable[_Union[Member, _Mapping]]] = ..., learning_rates: _Optional[_Iterable[float]] = ...) -> None: ...

class ApplyRoundRequest(_message.Message):
    __slots__ = ("round",)
    ROUND_FIELD_NUMBER: _ClassVar[int]
    round: RoundMembers
    def __init__(self, round: _Optional[_Union[RoundMembers, _Mapping]] = ...) -> None: ...

class ApplyRoundResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class ClosedRoundsRequest(_message.Message):
    __slots__ = ("since",)
    SINCE_FIELD_NUMBER: _ClassVar[int]
    since: int
    def __init__(self, since: _Optional[int] = ...) -> None: ...

class ClosedRoundsResponse(_message.Message):
    __slots__ = ("rounds",)
    ROUNDS_FIELD_NUMBER: _ClassVar[int]
    rounds: _containers.RepeatedCompositeFieldContainer[RoundMembers]
    def __init__(self, rounds: _Optional[_Iterable[_Union[RoundMembers, _Mapping]]] = ...) -> None: ...

class FlushRoundRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class FlushRoundResponse(_message.Message):
    __slots__ = ("version", "closed")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    CLOSED_FIELD_NUMBER: _ClassVar[int]
    version: int
    closed: RoundMembers
    def __init__(self, version: _Optional[int] = ..., closed: _Optional[_Union[RoundMembers, _Mapping]] = ...) -> None: ...

class HoldRoundsRequest(_message.Message):
    __slots__ = ("seconds", "between_rounds")
    SECONDS_FIELD_NUMBER: _ClassVar[int]
    BETWEEN_ROUNDS_FIELD_NUMBER: _ClassVar[int]
    seconds: float
    between_rounds: bool
    def __init__(self, seconds: _Optional[float] = ..., between_rounds: bool = ...) -> None: ...

class HoldRoundsResponse(_message.Message):
    __slots__ = ("version", "open", "expected")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    OPEN_FIELD_NUMBER: _ClassVar[int]
    EXPECTED_FIELD_NUMBER: _ClassVar[int]
    version: int
    open: bool
    expected: bool
    def __init__(self, version: _Optional[int] = ..., open: bool = ..., expected: bool = ...) -> None: ...

class ReleaseRoundsRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class ReleaseRoundsResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class CutRequest(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class CutResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class PinRequest(_message.Message):
    __slots__ = ("pin", "version")
    PIN_FIELD_NUMBER: _ClassVar[int]
    VERSION_FIELD_NUMBER: _ClassVar[int]
    pin: int
    version: int
    def __init__(self, pin: _Optional[int] = ..., version: _Optional[int] = ...) -> None: ...

class PinResponse(_message.Message):
    __slots__ = ("version",)
    VERSION_FIELD_NUMBER: _ClassVar[int]
    version: int
    def __init__(self, version: _Optional[int] = ...) -> None: ...

class UnpinRequest(_message.Message):
    __slots__ = ("pin",)
    PIN_FIELD_NUMBER: _ClassVar[int]
    pin: int
    def __init__(self, pin: _Optional[int] = ...) -> None: ...

class UnpinResponse(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class SaveRequest(_message.Message):
    __slots__ = ("directory", "cut")
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    CUT_FIELD_NUMBER: _ClassVar[int]
    directory: str
    cut: bool
    def __init__(self, directory: _Optional[str] = ..., cut: bool = ...) -> None: ...

class SavedFile(_message.Message):
    __slots__ = ("name", "size", "sha256")
    NAME_FIELD_NUMBER: _ClassVar[int]
    SIZE_FIELD_NUMBER: _ClassVar[int]
    SHA256_FIELD_NUMBER: _ClassVar[int]
    name: str
    size: int
    sha256: str
    def __init__(self, name: _Optional[str] = ..., size: _Optional[int] = ..., sha256: _Optional[str] = ...) -> None: ...

class SaveResponse(_message.Message):
    __slots__ = ("version", "files", "model")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    MODEL_FIELD_NUMBER: _ClassVar[int]
    version: int
    files: _containers.RepeatedCompositeFieldContainer[SavedFile]
    model: str
    def __init__(self, version: _Optional[int] = ..., files: _Optional[_Iterable[_Union[SavedFile, _Mapping]]] = ..., model: _Optional[str] = ...) -> None: ...

class RestoreRequest(_message.Message):
    __slots__ = ("directory", "files", "other_job", "stop_at")
    DIRECTORY_FIELD_NUMBER: _ClassVar[int]
    FILES_FIELD_NUMBER: _ClassVar[int]
    OTHER_JOB_FIELD_NUMBER: _ClassVar[int]
    STOP_AT_FIELD_NUMBER: _ClassVar[int]
    directory: str
    files: _containers.RepeatedCompositeFieldContainer[SavedFile]
    other_job: bool
    stop_at: int
    def __init__(self, directory: _Optional[str] = ..., files: _Optional[_Iterable[_Union[SavedFile, _Mapping]]] = ..., other_job: bool = ..., stop_at: _Optional[int] = ...) -> None: ...

class TallyRequest(_message.Message):
    __slots__ = ()
    def __init__(self) -> None: ...

class TallyResponse(_message.Message):
    __slots__ = ("complete", "counts")
    COMPLETE_FIELD_NUMBER: _ClassVar[int]
    COUNTS_FIELD_NUMBER: _ClassVar[int]
    complete: bool
    counts: _containers.RepeatedScalarFieldContainer[int]
    def __init__(self, complete: bool = ..., counts: _Optional[_Iterable[int]] = ...) -> None: ...

class RestoreResponse(_message.Message):
    __slots__ = ("version", "rows")
    VERSION_FIELD_NUMBER: _ClassVar[int]
    ROWS_FIELD_NUMBER: _ClassVar[int]
    version: int
    rows: int
    def __init__(self, version: _Optional[int] = ..., rows: _Optional[int] = ...) -> None: ...

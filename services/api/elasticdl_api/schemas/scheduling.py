"""Schemas of the routes that explain the scheduler, for validation and for OpenAPI."""

from __future__ import annotations

from typing import Annotated, Any

from pydantic import BaseModel, BeforeValidator, ConfigDict, Field

from elasticdl_api.schemas.field_rules import GPU_PATTERN
from elasticdl_api.schemas.jobs import EXAMPLE_ID
from elasticdl_api.schemas.moments import Moment
from elasticdl_api.schemas.numbers import Whole, WholeNumbers
from elasticdl_api.schemas.paging import NEXT_PAGE
from elasticdl_core.devices import MOST_DEVICES
from elasticdl_core.json_numbers import whole

_REASON = "it has 1 of at most 4 workers; 1 more would speed it up by 90%, and the slots do more for other jobs"
Count = Annotated[Whole, Field(ge=1, le=10_000)]
Storable = Annotated[str, Field(pattern=r"^[^\x00]*$")]
_BY_JOB: dict[str, Any] = {"propertyNames": {"pattern": r"^[^\x00]*$"}}
Rank = Annotated[Whole, Field(ge=-1000, le=1000)]


class ReasonResponse(BaseModel):
    """Why a job has the workers that it has."""

    code: str = Field(description="The kind of reason, for programs.", examples=["cluster_full"])
    text: str = Field(description="One sentence with the numbers.", examples=[_REASON])
    data: dict[str, Any] = Field(default_factory=dict, description="The numbers.", examples=[{"workers": 1}])


class Blocker(BaseModel):
    """A job that holds what another lacks."""

    job_id: str = Field(examples=["wide-x2k9d4"])
    priority: int
    workers: int = Field(description="The number that it holds now.")
    min_workers: int
    ends_at: Moment | None = Field(description="When it is expected to end; null if that cannot be told.")


class Hidden(BaseModel):
    """Jobs that hold what this one lacks, and that the caller may not see."""

    jobs: int
    workers: int = Field(description="The number that they hold together.")


class Workers(BaseModel):
    """A job's workers."""

    present: int = Field(description="Whose slots are taken now, starting and draining ones included.")
    target: int = Field(description="The number that the scheduler grants now.")
    min: int
    max: int


class Expected(BaseModel):
    """When a job is expected to start and to end, if nothing new is submitted."""

    starts_at: Moment | None = Field(description="Null if that cannot be told.")
    ends_at: Moment | None
    seconds: float | None = Field(description="Until the end.", examples=[840.0])
    seconds_low: float | None = Field(description="Four of five ends are not sooner...", examples=[700.0])
    seconds_high: float | None = Field(description="...and not later than this.", examples=[1008.0])
    basis: str = Field(
        description="The source of its speed: measured, similar (from jobs like it), estimated or assumed.",
        examples=["measured"],
    )
    why_unknown: str = Field(default="", description="The missing knowledge when there is no end.")


class Rate(BaseModel):
    """A job's speed at one number of workers."""

    workers: int
    records_per_second: float | None = Field(description="Null while nothing is known of the job's speed.")
    relative: float = Field(description="As a multiple of the speed at its minimum.")
    basis: str = Field(examples=["measured"])


class Remedy(BaseModel):
    """Something that would give the job more workers; it was tried on the policy."""

    text: str = Field(examples=["with priority 1: it would have 2 workers instead of 1"])
    workers: int = Field(description="The number that it would have, once others have left.")
    change: dict[str, Any] = Field(
        description="The same for POST /scheduler/what-if.", examples=[{"priorities": {EXAMPLE_ID: 1}}]
    )
    command: str = Field(default="", examples=[f"elasticdl jobs scale {EXAMPLE_ID} --priority 1"])


class QuotaUse(BaseModel):
    """The limits and use of the job's team, in slots."""

    team: str
    used: float
    weight: float
    guaranteed: float | None
    limit: float | None


class JobChange(BaseModel):
    """The effect of a decision on a job."""

    sequence: int = Field(description="Number of the decision.")
    at: Moment
    job_id: str
    before: int = Field(description="Workers before.")
    after: int = Field(description="Workers after.")
    code: str
    text: str
    blockers: list[str] = Field(description="Jobs for whose sake it was, as far as the caller may see them.")


class SlotUse(BaseModel):
    """Worker slots of the cluster."""

    total: int = Field(description="The slots that jobs may have together.")
    used: int = Field(description="Taken by processes of jobs.")
    free: int
    leaving: int = Field(description="Still taken by jobs that are over.")


class WorkerDevices(BaseModel):
    """The accelerators that one worker holds, or holds a share of."""

    worker: int = Field(description="The worker's index.")
    devices: list[str] = Field(examples=[["gpu0"]])


class DeviceNeed(BaseModel):
    """The accelerators that a job's workers ask for, and those they have."""

    share: float = Field(description="The share of each worker: a part of one device, or whole ones.", examples=[0.5])
    total: int = Field(description="Devices of the cluster.")
    used: float = Field(description="The part of them that is given out, all jobs together.", examples=[1.5])
    held: list[WorkerDevices] = Field(description="The devices of the job's workers, in the order of their indices.")


class Explanation(BaseModel):
    """Why a job has the workers that it has, and what comes next."""

    job_id: str = Field(examples=[EXAMPLE_ID])
    state: str = Field(examples=["RUNNING"])
    desired: str = Field(examples=["run"])
    priority: int
    workers: Workers
    reason: ReasonResponse = Field(description="The one primary reason that is in force.")
    blockers: list[Blocker] = Field(description="The holders of what it lacks, most important first.")
    hidden_blockers: Hidden
    next: ReasonResponse | None = Field(
        description="The reason after the scheduler's next pass, if that changes something."
    )
    remedies: list[Remedy] = Field(description="Changes that would help, the least first.")
    slots: SlotUse
    devices: DeviceNeed | None = Field(
        default=None, description="Null for a job that asks for none, and for one that is over."
    )
    quota: QuotaUse | None
    remaining_records: float | None
    speed: list[Rate] = Field(description="At each number of workers, or some of them if there are many.")
    expected: Expected
    decisions: list[JobChange] = Field(description="The latest on this job, the last first.")


class NodeSlots(BaseModel):
    """The slots of one machine for jobs."""

    name: str = Field(examples=["local"])
    slots: float


class PlannedJob(BaseModel):
    """One job of the plan."""

    job_id: str
    name: str
    namespace: str
    state: str
    priority: int
    workers: Workers
    reason: ReasonResponse
    blockers: list[str]
    records_per_second: float | None = Field(description="Its present speed.")
    progress: float | None = Field(
        description="Fraction of its records that is done; null while they are not counted."
    )
    expected: Expected


class PresentPlan(BaseModel):
    """The plan in force."""

    alive: bool = Field(description="Whether a scheduler leads now.")
    policy: str = Field(examples=["goodput"])
    epoch: int | None = Field(description="Grows with each change of the leading scheduler.")
    sequence: int | None = Field(description="Number of the last decision that changed something.")
    input_hash: str | None = Field(description="Hash of what that decision was made on.")
    decided_at: Moment | None = Field(description="When the scheduler looked last.")
    age_s: float | None
    seconds: float | None = Field(description="The seconds that it took.")
    passes: int | None = Field(description="The number of its passes.")
    slots: SlotUse
    nodes: list[NodeSlots]
    others: Hidden = Field(description="Jobs that hold slots, and that the caller may not see.")
    jobs: list[PlannedJob] = Field(description="In the order in which they go first.")


class Decision(BaseModel):
    """One decision of the scheduler that changed something."""

    sequence: int
    at: Moment
    epoch: int
    policy: str
    input_hash: str = Field(description="SHA-256 of the snapshot.")
    changes: list[JobChange]
    snapshot: dict[str, Any] | None = Field(default=None, description="All that it was made on; with full=true.")
    plan: dict[str, Any] | None = Field(default=None, description="The whole plan; with full=true.")


class DecisionPage(BaseModel):
    """One page of decisions, the latest first."""

    decisions: list[Decision]
    next_page_token: str | None = NEXT_PAGE
    next_cursor: str | None = Field(description="Give it as cursor to get the next page; null at the end.")


class _Strict(WholeNumbers):
    model_config = ConfigDict(extra="forbid", strict=True, allow_inf_nan=False)


class HypotheticalJob(_Strict):
    """A job that does not exist. Its speed is that of ``like``, else of past jobs of its model, else as given."""

    name: Storable = Field(default="new", min_length=1, max_length=60, description="Its name in the answer.")
    min_workers: Count = 1
    max_workers: Count = 1
    priority: Rank = 0
    records: float | None = Field(default=None, gt=0, le=1e15, description="Records over all epochs.")
    like: Storable | None = Field(default=None, max_length=100, description="A job that it resembles.")
    model_def: Storable | None = Field(default=None, max_length=300)
    minibatch_size: Whole | None = Field(default=None, ge=1, le=2**31)
    num_ps: Whole | None = Field(default=None, ge=0, le=10_000)
    use_async: bool | None = None
    worker_resource_request: Annotated[str, Field(json_schema_extra={"pattern": GPU_PATTERN})] | None = Field(
        default=None, max_length=100, description="The share of an accelerator for a worker.", examples=["gpu=0.5"]
    )
    records_per_second: float | None = Field(
        default=None,
        ge=1e-6,
        le=1e12,
        description="Speed of one worker; twice the workers are taken as nearly twice that.",
    )


class Bounds(_Strict):
    """Other bounds of a job's workers; what is left out stays."""

    min_workers: Count | None = None
    max_workers: Count | None = None


class NewNode(_Strict):
    """A machine that is not there."""

    slots: Annotated[Whole, Field(ge=1, le=10_000)]


class WhatIf(_Strict):
    """A question: what would happen with these changes, all together? Nothing is changed."""

    model_config = ConfigDict(
        extra="forbid",
        strict=True,
        allow_inf_nan=False,
        json_schema_extra={"example": {"add": [{"min_workers": 1, "max_workers": 4, "priority": 5}], "add_slots": 2}},
    )

    add: list[HypotheticalJob] = Field(default_factory=list, max_length=100)
    cancel: list[Storable] = Field(default_factory=list, max_length=1000, description="Ids of jobs to leave out.")
    priorities: dict[str, Annotated[Rank, BeforeValidator(whole)]] = Field(
        default_factory=dict, max_length=1000, description="Other priorities, by job.", json_schema_extra=_BY_JOB
    )
    sizes: dict[str, Bounds] = Field(
        default_factory=dict, max_length=1000, description="Other bounds, by job.", json_schema_extra=_BY_JOB
    )
    slots: Whole | None = Field(default=None, ge=0, le=1_000_000, description="Slots of the whole cluster.")
    add_slots: Whole = Field(default=0, ge=-1_000_000, le=1_000_000, description="Slots more, or fewer if negative.")
    devices: Whole | None = Field(
        default=None, ge=0, le=MOST_DEVICES, description="Accelerators of the whole cluster."
    )
    add_nodes: list[NewNode] = Field(default_factory=list, max_length=10_000)
    remove_nodes: list[Storable] = Field(default_factory=list, max_length=10_000, description="Names of machines.")


class Course(BaseModel):
    """The expected course of a job."""

    workers: int = Field(description="The number that the policy gives it now, once others have left.")
    starts_at: Moment | None
    ends_at: Moment | None
    earliest: Moment | None = Field(description="Four of five ends lie between this and ``latest``.")
    latest: Moment | None
    reason: ReasonResponse


class Effect(BaseModel):
    """The effect of the changes on a job."""

    job_id: str = Field(description="Of a hypothetical job: its name in the question.")
    hypothetical: bool
    priority: int
    before: Course | None = Field(description="Null for a job that does not exist.")
    after: Course | None = Field(description="Null for a job that is left out.")
    delay_s: float | None = Field(
        description="The seconds by which it ends later; negative is sooner. Null if that cannot be told."
    )


class EffectOnOthers(BaseModel):
    """The effect of the changes on jobs that the caller may not see."""

    jobs: int
    sooner: int
    later: int
    workers_before: int
    workers_after: int


class WhatIfAnswer(BaseModel):
    """The same cluster without and with the changes."""

    policy: str
    at: Moment
    slots_before: int
    slots_after: int
    jobs: list[Effect]
    others: EffectOnOthers

"""Schemas of observations of a job's processes: stacks, traces, logs."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, ConfigDict, Field

from elasticdl_api.schemas.moments import Moment
from elasticdl_core.ports.launcher import Role


class FrameResponse(BaseModel):
    """One call."""

    file: str
    line: int = Field(description="0 if it is not known.")
    function: str


class ThreadResponse(BaseModel):
    """A thread, or a task of an event loop."""

    name: str
    waits_for: str = Field(examples=["reading data"])
    frames: list[FrameResponse] = Field(description="The innermost call first.")


class ProcessStacksResponse(BaseModel):
    """The stacks of a process."""

    role: Role
    index: int
    incarnation: int
    state: str = Field(description="Its state, as the system says it.", examples=["sleeping", "stopped"])
    waits_for: str = Field(
        description="Its wait, or its work.",
        examples=["reading data", "waiting for a lease", "pull from PS 1", "computing", "stopped (SIGSTOP)"],
    )
    error: str = Field(description="Why there are no frames; empty if there are.")
    threads: list[ThreadResponse]


class StacksResponse(BaseModel):
    """The stacks of a job's processes at one moment."""

    took_s: float = Field(description="Seconds that it took to ask them.")
    processes: list[ProcessStacksResponse]


class AuditedCounts(BaseModel):
    """Records; the last four add up to the first."""

    planned: int
    committed: int
    leased: int
    todo: int
    skipped: int


class AuditedEpoch(AuditedCounts):
    """Records of an epoch."""

    epoch: int = Field(description="From 1.")


class AuditedWorker(BaseModel):
    """The records that one incarnation of a worker wrote that it processed."""

    owner: str = Field(examples=["worker-3.1"])
    records: int = Field(description="With repetitions.")
    tasks: int = Field(description="Leases that it worked on.")
    first_version: int | None = Field(description="The model's when it noted its first work; null if it did not say.")
    last_version: int | None


class RecordAuditResponse(BaseModel):
    """The audit of a job's records, from outside."""

    verdict: Literal["held", "broken", "running"]
    findings: list[str] = Field(description="Findings: what is wrong, and what is worth knowing.")
    epochs: list[AuditedEpoch] = Field(description="At most 1,000.")
    total: AuditedCounts
    workers: list[AuditedWorker]
    duplicates: int = Field(description="Records that are in the model too often, by the audit at the job's end.")
    redone: int = Field(description="Records that were processed once more, because a worker or a server was lost.")
    skipped: list[dict[str, Any]] = Field(description="The records that were passed over, and why.")


class LogFileResponse(BaseModel):
    """The log of one incarnation of a process."""

    role: Role
    index: int
    incarnation: int
    size: int = Field(description="Bytes that are kept of it.")
    modified_at: Moment = Field(description="When something was last printed.")


class LogFilesResponse(BaseModel):
    """The logs of a job's processes."""

    files: list[LogFileResponse]


class TraceRequest(BaseModel):
    """The trace to record."""

    model_config = ConfigDict(extra="forbid", strict=True)

    seconds: float = Field(default=5.0, gt=0, le=30, description="For how long.")


class TraceResponse(BaseModel):
    """A Chrome trace, as Perfetto and chrome://tracing read it."""

    traceEvents: list[dict[str, Any]]  # noqa: N815 - the format's name
    displayTimeUnit: str = Field(examples=["ms"])  # noqa: N815 - the format's name
    otherData: dict[str, Any] = Field(description="The job, and spans that were left out.")  # noqa: N815 - as above

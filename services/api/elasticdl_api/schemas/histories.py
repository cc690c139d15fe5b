"""Schemas of histories of jobs and the cluster: lives of processes, series of numbers, the ledger of records."""

from __future__ import annotations

from typing import Any, Literal

from pydantic import BaseModel, Field
from typing_extensions import TypedDict

from elasticdl_api.schemas.moments import Moment
from elasticdl_api.schemas.paging import NEXT_PAGE
from elasticdl_core.epoch_records import EpochRecords, LedgerSums
from elasticdl_core.json_numbers import Spelled
from elasticdl_core.ports.launcher import Role
from elasticdl_core.process_life import EndCause


class ProcessResponse(BaseModel):
    """The life of a process of a job."""

    role: Role
    index: int = Field(description="Its index in its role.")
    incarnation: int = Field(description="The number of its launch.")
    state: str = Field(description="starting, ready, leaving or ended.", examples=["ended"])
    launched_at: Moment
    ready_at: Moment | None = Field(description="When it could work: a worker had registered, a PS answered.")
    drained_at: Moment | None = Field(description="When it was told to leave.")
    ended_at: Moment | None
    exit_code: int | None = Field(description="Or minus the signal that ended it; null where nobody knows.")
    cause: EndCause | None = Field(description="Why it ended; null while it lives.", examples=["preempted"])
    message: str = Field(examples=["was ended by SIGTERM"])


class ProcessPageResponse(BaseModel):
    """One page of the processes of a job, by role, index and incarnation."""

    processes: list[ProcessResponse]
    next_page_token: str | None = NEXT_PAGE


class SeriesResponse(BaseModel):
    """Numbers over time, or along the model's versions."""

    name: str = Field(examples=["samples_per_second"])
    unit: str = Field(description="Empty for plain numbers.", examples=["records/s"])
    points: list[list[float | Spelled]] = Field(
        description="The position of each (seconds since the epoch, or a version), mean, least, largest.",
        examples=[[[1769860802.5, 812.5, 790.0, 840.0]]],
    )


class SeriesListResponse(BaseModel):
    """Series of a stretch of time or of versions."""

    by: Literal["time", "version"]
    begin: float = Field(alias="from", description="As the points lie.")
    end: float = Field(alias="to", description="As the points lie.")
    resolution_s: int = Field(description="Seconds that a point stands for; older ones may stand for more.")
    series: list[SeriesResponse]


class LedgerTasks(TypedDict):
    """Tasks of all epochs; the last three add up to the first."""

    planned: int
    committed: int
    leased: int
    todo: int


class LedgerResponse(BaseModel):
    """The records of a job's plan that are done, in work, to do and passed over; they add up to the plan, always."""

    unit: str = Field(examples=["records"])
    epochs: list[EpochRecords] = Field(
        description="At most 1,000: those around the present one.",
        examples=[[{"epoch": 1, "planned": 100, "committed": 60, "leased": 30, "todo": 10, "skipped": 0}]],
    )
    total: LedgerSums = Field(description="Of all epochs.")
    tasks: LedgerTasks = Field(description="Of all epochs.")
    audit: dict[str, Any] | None = Field(description="The findings of the audit at the end; null before it.")

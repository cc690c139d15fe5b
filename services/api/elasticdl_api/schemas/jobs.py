"""Schemas of jobs, for validation and for OpenAPI."""

from __future__ import annotations

import dataclasses
import enum
import inspect
import re
from typing import Annotated, Any

from fastapi import Header
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter

from elasticdl_api.schemas.field_rules import rules_of
from elasticdl_api.schemas.histories import LedgerResponse
from elasticdl_api.schemas.moments import Moment
from elasticdl_api.schemas.paging import NEXT_PAGE
from elasticdl_core.job import JobSpec, JobState, JobType
from elasticdl_core.job.field_groups import OF_THE_MODEL, group_of, types_of
from elasticdl_core.job.fields import JobFields
from elasticdl_core.json_numbers import Spelled

EXAMPLE_SPEC: dict[str, Any] = {
    "name": "digits",
    "model_def": "digits.custom_model",
    "model_bundle": "sha256:" + "0f" * 32,
    "training_data": "/data/digits/train",
    "validation_data": "/data/digits/test",
    "num_epochs": 2,
    "min_workers": 1,
    "max_workers": 4,
}
EXAMPLE_ID = "digits-x7k2p9"


class FailureResponse(BaseModel):
    """Why a job failed."""

    message: str = ""
    fix: str = ""
    traceback: str = ""


class CheckpointResponse(BaseModel):
    """A committed checkpoint."""

    version: int = Field(description="Model version.", examples=[400])
    committed_at: Moment
    manifest: dict[str, Any] = Field(description="Files with sha256 and size, versions, tasks that it contains.")


class EvaluationResponse(BaseModel):
    """Metrics of the model at one version."""

    number: int
    model_version: int
    training_epoch: int = Field(description="Epochs that were complete when it began.")
    metrics: dict[str, Any] = Field(examples=[{"accuracy": 0.97}])
    at: Moment


class ArtifactResponse(BaseModel):
    """Something that the job made."""

    name: str = Field(examples=["model.keras"])
    size: int = Field(description="Bytes.")
    sha256: str
    at: Moment
    url: str = Field(description="Path to fetch it from.", examples=[f"/jobs/{EXAMPLE_ID}/artifacts/model.keras"])


class JobStateResponse(BaseModel):
    """A job as it stands, without its specification: what streams tell."""

    id: str = Field(examples=[EXAMPLE_ID])
    name: str = Field(examples=["digits"])
    namespace: str = Field(examples=["default"])
    owner: str = Field(description="The user who submitted it; empty for jobs of earlier versions.", examples=["ada"])
    type: JobType
    state: JobState
    reason: str = Field(description="Why it stands there.", examples=["2 of 2 workers fit"])
    desired: str = Field(description="The state asked of it: run, suspend, cancel or evict.", examples=["run"])
    priority: int
    min_workers: int
    max_workers: int
    target_workers: int = Field(description="The number of workers that the scheduler grants now.")
    target_reason: str
    status: dict[str, Any] = Field(
        description="The last report of its master: progress, speed, ETA, workers, PS, metrics.",
        examples=[{"progress": {"records_done": 1200, "records_total": 3000}, "samples_per_second": 812.5}],
    )
    created_at: Moment
    updated_at: Moment
    started_at: Moment | None
    finished_at: Moment | None
    error: FailureResponse | None


class JobLiveResponse(JobStateResponse):
    """A job as its own stream tells it."""

    ledger: LedgerResponse = Field(description="The ledger of its records; only the epochs around the present one.")


class JobSummaryResponse(JobStateResponse):
    """A job, as lists show it."""

    spec: dict[str, Any] = Field(description="The specification, with defaults.", examples=[EXAMPLE_SPEC])


class JobResponse(JobSummaryResponse):
    """A job with all that belongs to it."""

    checkpoints: list[CheckpointResponse]
    evaluations: list[EvaluationResponse]
    artifacts: list[ArtifactResponse]


class ListedView(enum.StrEnum):
    """The detail of a view in a list of jobs."""

    FULL = "full"
    SUMMARY = "summary"


class JobPageResponse(BaseModel):
    """One page of jobs, newest first."""

    jobs: list[JobSummaryResponse | JobStateResponse] = Field(
        description="With `view=summary` without `spec`, and of `status` the numbers alone: progress, speed, "
        "expected end, loss, model version, and `workers_present` instead of the workers."
    )
    next_page_token: str | None = NEXT_PAGE
    total: int | None = Field(default=None, description="The number of matches on all pages; null unless asked for.")


_LABELS = rules_of("labels", "object")
_LABEL_CHANGES: dict[str, Any] = {
    **_LABELS,
    "additionalProperties": {"anyOf": [_LABELS["additionalProperties"], {"type": "null"}]},
}


def _without_defaults(schema: dict[str, Any]) -> None:
    """Drops the defaults: what is left out stays, and clients that are generated would send them."""
    for field in schema["properties"].values():
        field.pop("default")
    schema["example"] = {"max_workers": 3}


class JobChanges(BaseModel):
    """The fields of a job that can be changed."""

    model_config = ConfigDict(extra="forbid", strict=True, json_schema_extra=_without_defaults)

    priority: int = Field(default=0, ge=-1000, le=1000, description="Higher goes first.")
    min_workers: int = Field(default=1, ge=1, le=10_000)
    max_workers: int = Field(default=1, ge=1, le=10_000)
    labels: dict[str, str | None] = Field(
        default={},
        description="Merged into those that there are; null removes one.",
        examples=[{"team": "a", "old": None}],
        json_schema_extra=_LABEL_CHANGES,
    )


class EventResponse(BaseModel):
    """Something that happened to a job."""

    id: int
    at: Moment
    kind: str = Field(examples=["state"])
    message: str = Field(examples=["2 of 2 workers fit"])
    detail: dict[str, Any] = Field(examples=[{"from": "QUEUED", "to": "STARTING"}])


class EventPageResponse(BaseModel):
    """One page of events, oldest first."""

    events: list[EventResponse]
    next_page_token: str | None = NEXT_PAGE


class ArtifactPageResponse(BaseModel):
    """One page of artifacts, by name."""

    artifacts: list[ArtifactResponse]
    next_page_token: str | None = NEXT_PAGE


class CheckpointPageResponse(BaseModel):
    """One page of checkpoints, by version."""

    checkpoints: list[CheckpointResponse]
    next_page_token: str | None = NEXT_PAGE


class EvaluationPageResponse(BaseModel):
    """One page of evaluations, oldest first."""

    evaluations: list[EvaluationResponse]
    next_page_token: str | None = NEXT_PAGE


class LossPoint(BaseModel):
    """The training loss at one model version."""

    model_version: int
    loss: float | Spelled = Field(description="Strings for what JSON cannot write: NaN, Infinity, -Infinity.")
    at: Moment


class MetricsResponse(BaseModel):
    """Losses and evaluations of a job."""

    losses: list[LossPoint]
    evaluations: list[EvaluationResponse]


class BundleResponse(BaseModel):
    """An uploaded zip of model code."""

    digest: str = Field(examples=[EXAMPLE_SPEC["model_bundle"]])
    size: int = Field(description="Bytes.")


class ClusterSlots(BaseModel):
    """Worker slots."""

    total: int
    used: int = Field(description="Taken by workers, running or pending.")
    reserved: int = Field(default=0, description="Taken from jobs by reservations.")


class DeviceHolder(BaseModel):
    """A job whose workers hold shares of an accelerator."""

    job_id: str = Field(examples=[EXAMPLE_ID])
    workers: int = Field(description="The number of its workers that hold a share.")
    used: float = Field(description="The part of the accelerator that they hold together.", examples=[0.5])


class ClusterDevice(BaseModel):
    """An accelerator, of which workers take shares."""

    name: str = Field(examples=["gpu0"])
    declared: bool = Field(description="Whether it was declared, and not found.")
    memory_mib: int = Field(description="0 if that is not known.")
    model: str = Field(description="Its description, in words.", examples=["NVIDIA H100 80GB HBM3"])
    used: float = Field(description="The part of it that is given out, from 0 to 1.", examples=[0.5])
    workers: int = Field(description="The number of workers that hold a share of it.")
    jobs: list[DeviceHolder] = Field(
        default_factory=list,
        description="Whose they are, as far as the caller may see these jobs; those that hold most first.",
    )


class ClusterResponse(BaseModel):
    """The cluster at a glance."""

    slots: ClusterSlots
    devices: list[ClusterDevice] = Field(default_factory=list, description="The accelerators, by number.")
    jobs: dict[str, int] = Field(description="Number of jobs by state.", examples=[{"RUNNING": 1, "SUCCEEDED": 4}])
    components: dict[str, str] = Field(
        description="The state of each component: ok, or what is wrong.",
        examples=[{"database": "ok", "scheduler": "ok", "agent": "ok"}],
    )
    keeps_days: dict[str, float] = Field(
        description="The number of days that things are kept; 0 is for ever.",
        examples=[{"jobs": 0, "events": 90, "logs": 30, "bundles": 30}],
    )


class Health(BaseModel):
    """Whether the api lives, or is ready."""

    status: str = Field(examples=["ok"])
    components: dict[str, str] = Field(default_factory=dict)


JobId = Annotated[str, Field(description="The job's id.", examples=[EXAMPLE_ID])]
IdempotencyKey = Annotated[
    str | None,
    Header(
        description="Names the request: the same key and body give the same job, however often it is sent.",
        min_length=1,
        max_length=200,
        pattern=r"^[\x21-\x7e]+$",
    ),
]


def spec_schema() -> dict[str, Any]:
    """The JSON schema of a job specification, with the descriptions of the class's docstring.

    ``x-group`` is the group that a field is shown in, ``x-types`` the types of jobs that it means something to,
    ``x-of-model`` whether a job that evaluates or predicts shares it with the one that trained the model.
    """
    schema = TypeAdapter(JobSpec).json_schema(ref_template="#/components/schemas/{model}")
    schema.pop("$defs", None)
    descriptions = _attribute_docs(JobFields)
    for field in dataclasses.fields(JobSpec):
        schema["properties"][field.name] |= {
            "description": descriptions[field.name],
            "x-group": group_of(field.name),
            "x-types": [str(kind) for kind in types_of(field.name)],
            "x-of-model": field.name in OF_THE_MODEL,
            **rules_of(field.name, schema["properties"][field.name].get("type", "")),
        }
    schema["properties"]["type"] = {
        "type": "string",
        "enum": [str(kind) for kind in JobType],
        "default": "training",
        "description": descriptions["type"],
    }
    return {**schema, "description": (JobFields.__doc__ or "").splitlines()[0], "example": EXAMPLE_SPEC}


def _attribute_docs(documented: type) -> dict[str, str]:
    """Descriptions of the attributes in a Google-style docstring."""
    _, _, section = inspect.getdoc(documented).partition("Attributes:\n")  # type: ignore[union-attr]
    found = re.findall(r"^    (\w+): (.*(?:\n {8,}.*)*)", section, flags=re.MULTILINE)
    return {name: re.sub(r"\s+", " ", text) for name, text in found}

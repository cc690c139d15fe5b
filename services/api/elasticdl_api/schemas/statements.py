"""Schemas of statements, for validation and for OpenAPI."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from elasticdl_api.schemas.access import SOURCE_PATTERN
from elasticdl_api.schemas.jobs import EXAMPLE_ID
from elasticdl_core.job import JobState

_EXAMPLE = "SELECT age, city, income FROM people TO TRAIN DNNClassifier LABEL income INTO rich"


class StatementRequest(BaseModel):
    """The statement to run."""

    model_config = ConfigDict(extra="forbid")

    statement: str = Field(
        max_length=100_000,
        pattern=r"^[^\x00]*$",
        description="One statement: SELECT ... TO TRAIN, EVALUATE, EXPLAIN or PREDICT, or SHOW TRAIN.",
        examples=[_EXAMPLE],
    )
    source: str = Field(
        default="",
        pattern=rf"{SOURCE_PATTERN}|^$",
        description="The name of the database that has the rows; GET /namespaces/{name} lists those of a namespace.",
        examples=["shop"],
    )
    dry_run: StrictBool = Field(default=False, description="Only show the plan: no job is made.")


class StatementResponse(BaseModel):
    """A statement with its plan, and its job."""

    statement: str = Field(examples=[_EXAMPLE])
    verb: str = Field(description="TRAIN, EVALUATE, EXPLAIN, PREDICT or SHOW.", examples=["TRAIN"])
    model: str = Field(description="The model that it trains or uses.", examples=["rich"])
    source: str = Field(examples=["shop"])
    job_id: str | None = Field(description="Its job; null where only the plan was wanted.", examples=[EXAMPLE_ID])
    rows: int = Field(description="Rows that the SELECT gave.", examples=[600])
    columns: list[str] = Field(
        description="Columns that the model reads, the label last.", examples=[["age", "income"]]
    )
    classes: list[str] = Field(description="Labels that a classifier knows.", examples=[["high", "low"]])
    target: str = Field(
        description="The name of what comes out: a model, a column, an explanation.", examples=["rich"]
    )
    spec: dict[str, Any] = Field(description="The specification of its job.")
    module: str = Field(description="The Python module of its model, or of its explanation.")


class StatementResultResponse(BaseModel):
    """A statement that became a job, and its result as far as that is there."""

    statement: str = Field(examples=[_EXAMPLE])
    verb: str = Field(examples=["EVALUATE"])
    model: str = Field(examples=["rich"])
    source: str = Field(examples=["shop"])
    target: str = Field(description="The name of what comes out.", examples=["rich"])
    job_id: str = Field(examples=[EXAMPLE_ID])
    state: JobState
    columns: list[str] = Field(
        description="Of the result: metrics, importances of columns, or predictions beside their rows.",
        examples=[["metric", "value"]],
    )
    rows: list[list[Any]] = Field(description="The first 100 rows.", examples=[[["accuracy", 0.97]]])
    more: bool = Field(description="Whether there are more; the artifacts of the job have all predictions.")

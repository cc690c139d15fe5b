"""Schemas of statements, for validation and for OpenAPI."""

from __future__ import annotations

from typing import Any

from pydantic import BaseModel, ConfigDict, Field, StrictBool

from elasticdl_api.schemas.access import SOURCE_PATTERN
from elasticdl_api.schemas.jobs import EXAMPLE_ID
from elasticdl_core.job import JobState
from elasticdl_core.job.searches import SearchState

_EXAMPLE = "SELECT age, city, income FROM people TO TRAIN DNNClassifier LABEL income INTO rich"


class StatementRequest(BaseModel):
    """The statement to run."""

    model_config = ConfigDict(extra="forbid")

    statement: str = Field(
        max_length=100_000,
        pattern=r"^[^\x00]*$",
        description="One statement: SELECT ... TO TRAIN, EVALUATE, EXPLAIN or PREDICT, SHOW TRAIN, or SELECT ... "
        "LABEL column INTO model, which compares models.",
        examples=[_EXAMPLE],
    )
    source: str = Field(
        default="",
        pattern=rf"{SOURCE_PATTERN}|^$",
        description="The name of the database that has the rows; GET /namespaces/{name} lists those of a namespace.",
        examples=["shop"],
    )
    dry_run: StrictBool = Field(default=False, description="Only show the plan: no job is made.")


class SearchFailure(BaseModel):
    """The reason why a search found no model."""

    message: str
    fix: str


class ModelSearch(BaseModel):
    """A search for a model, of a statement that names none: jobs of the lowest priority are compared."""

    state: SearchState = Field(description="DONE when the job of the best model was made.")
    round: int = Field(description="The round that it is in; each leaves the better half.", examples=[1])
    epochs: list[int] = Field(description="Epochs of each round.", examples=[[8, 8, 16]])
    minibatch_size: int = Field(description="Records of an update.", examples=[16])
    trained_rows: int = Field(description="Rows that models are trained on.", examples=[480])
    held_rows: int = Field(description="Rows that they are compared by.", examples=[120])
    metric: str = Field(description="The measure.", examples=["auc"])
    features: list[tuple[str, str, str]] = Field(
        description="Of each column its name, what it holds, and the features that it becomes.",
        examples=[[["age", "numbers, 53 values", "NUMERIC(age)"]]],
    )
    statements: list[str] = Field(description="Of each model the statement of its first round.")
    jobs: list[list[str]] = Field(
        description="Of each model its jobs, one a round; they have the label search=JOB.", examples=[[[EXAMPLE_ID]]]
    )
    error: SearchFailure | None = Field(description="Why it failed.")


class StatementResponse(BaseModel):
    """A statement with its plan, and its job."""

    statement: str = Field(examples=[_EXAMPLE])
    verb: str = Field(description="TRAIN, EVALUATE, EXPLAIN, PREDICT or SHOW.", examples=["TRAIN"])
    model: str = Field(description="The model that it trains or uses.", examples=["rich"])
    source: str = Field(examples=["shop"])
    job_id: str | None = Field(
        description="Its job, which a search makes when it is over; null where only the plan was wanted.",
        examples=[EXAMPLE_ID],
    )
    rows: int = Field(description="Rows that the SELECT gave.", examples=[600])
    columns: list[str] = Field(
        description="Columns that the model reads, the label last.", examples=[["age", "income"]]
    )
    classes: list[str] = Field(description="Labels that a classifier knows.", examples=[["high", "low"]])
    target: str = Field(
        description="The name of what comes out: a model, a column, an explanation.", examples=["rich"]
    )
    spec: dict[str, Any] = Field(description="The specification of its job.")
    module: str = Field(
        description="The Python module of its model, or of its explanation. It is empty, as spec is, until a model "
        "is found."
    )
    search: ModelSearch | None = Field(default=None, description="The search, where no model is named.")


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
        description="Of the result: metrics, importances of columns, predictions beside rows, or what was tried.",
        examples=[["metric", "value"]],
    )
    rows: list[list[Any]] = Field(description="The first 100 rows.", examples=[[["accuracy", 0.97]]])
    more: bool = Field(description="Whether there are more; the artifacts of the job have all predictions.")
    search: ModelSearch | None = Field(default=None, description="The search, where no model was named.")

"""Reading JSON of others, workers and files: what does not have its form is refused before it changes anything."""

from __future__ import annotations

from typing import Any, NotRequired, TypeVar

from pydantic import TypeAdapter, ValidationError
from typing_extensions import TypedDict  # Pydantic does not read that of typing before Python 3.12

from elasticdl_core.errors import InvalidInputError
from elasticdl_core.model_description import ModelDescription
from elasticdl_runtime.stored_checkpoints import first_problem

T = TypeVar("T")


class ReportedFile(TypedDict):
    """A file that a task made."""

    name: str
    path: NotRequired[str]
    size: int
    sha256: str


class TaskResult(TypedDict, total=False):
    """The result of a task from a worker; each type of task has some of it.

    Attributes:
        files: of an export.
        states: of an evaluation, by metric.
        records: that were evaluated.
        metrics: of a summary; numbers that JSON does not have are spelled.
    """

    files: list[ReportedFile]
    states: dict[str, dict[str, Any]]
    records: int
    metrics: dict[str, Any]


_DESCRIPTION: TypeAdapter[ModelDescription] = TypeAdapter(ModelDescription)
_RESULT: TypeAdapter[TaskResult] = TypeAdapter(TaskResult)


def read_description(text: str) -> ModelDescription:
    """Reads a description of the model.

    Raises:
        InvalidInputError: it is no JSON of that form.
    """
    description = _read(_DESCRIPTION, text.encode(), "the description of the model")
    if description["callbacks"]["max_steps"] < 0:
        raise InvalidInputError("the description of the model has negative max_steps", fix="give 0 for no limit")
    return description


def check_result(result: bytes) -> None:
    """Refuses a result that nobody could use.

    Raises:
        InvalidInputError: it is not empty, and no JSON of the form of a result.
    """
    if result:
        _read(_RESULT, result, "the result of the task")


def _read(form: TypeAdapter[T], data: bytes, what: str) -> T:
    try:
        return form.validate_json(data, strict=True)
    except ValidationError as error:
        raise InvalidInputError(
            f"{what} does not have its form: {first_problem(error)}", fix="use this version's worker"
        ) from None

"""Statements as jobs of no place yet: what they do, with which module, on which rows."""

from __future__ import annotations

import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticdl.sql.explanations import shuffle_columns, write_explanation
from elasticdl.sql.grammar import Statement
from elasticdl.sql.lexing import refusal, suggest
from elasticdl.sql.modules import MODELS, options_of, write_module
from elasticdl.sql.source import Column, SelectedRows, reorder, rows_for_a_while, take_snapshot
from elasticdl_core.job import JobType, resolve_aliases
from elasticdl_core.job.field_groups import FIELD_GROUPS, NOT_FOR

MODULE, EXPLANATION = "model.py", "explanation.py"
_ALIASES: Mapping[str, str] = {"epoch": "num_epochs", "epochs": "num_epochs", "batch_size": "minibatch_size"}
_NOT_GIVEN = {
    "name",
    "type",
    "model_zoo",
    "model_bundle",
    "model_def",
    "training_data",
    "validation_data",
    "prediction_data",
    "output",
    "output_format",
    "checkpoint_dir",
    "checkpoint_dir_for_init",
    "data_reader_params",
    "envs",
}
"""Fields that statements decide, or that would reach beyond them."""


@dataclass(frozen=True)
class StatementModel:
    """Facts of a training for the statements that use its model.

    Attributes:
        name: the name behind INTO.
        columns: those that its module reads, the label's last.
        classes: the labels that a classifier knows, as text.
    """

    name: str
    columns: list[str]
    classes: list[str]


@dataclass(frozen=True)
class PlannedStatement:
    """A statement as a job, without the folders in which that finds and leaves things.

    Attributes:
        fields: of the job's specification.
        data: the field that the rows go into.
        file: the name of the module; empty where a model is used as it is.
        module: its text.
        columns: those of the rows, the label's last if it is there.
        snapshot: the rows.
        classes: the labels that a classifier knows, as text.
    """

    fields: dict[str, Any]
    data: str
    file: str
    module: str
    columns: list[str]
    snapshot: SelectedRows
    classes: list[str]


def plan_statement(
    statement: Statement, source: str, rows: Path, model: StatementModel | None = None
) -> PlannedStatement:
    """Reads the rows of a statement and plans its job.

    Args:
        statement: to train, evaluate, explain or predict.
        source: where the rows are: ``sqlite:///FILE`` or ``postgresql://USER@HOST/DATABASE``.
        rows: the folder that they go into.
        model: what ``model_of`` names.

    Raises:
        InvalidInputError: with the place in the statement and what to write instead.
        DataError: there are no rows, or the source cannot be read.
    """
    if model is None:
        return _training(statement, source, rows)
    explains = statement.verb == "EXPLAIN"
    evaluates = explains or statement.verb == "EVALUATE"
    if evaluates and not explains and statement.label != model.columns[-1]:
        raise refusal(statement.text, statement.text.upper().rfind("LABEL"),
                      f"{model.name} was trained on the label {model.columns[-1]}",
                      f"write LABEL {model.columns[-1]}")  # fmt: skip
    order = model.columns if evaluates else model.columns[:-1]
    kind = JobType.EVALUATION if evaluates else JobType.PREDICTION
    _, given = _attributes(statement, kind)
    if explains:
        with rows_for_a_while(source, statement.select, rows, order=order) as whole:
            snapshot = shuffle_columns(whole, rows)
    else:
        snapshot = take_snapshot(source, statement.select, rows, order=order)
    if evaluates and model.classes:
        _check_labels(statement, model.name, snapshot.columns[order[-1]], model.classes)
    fields = {**_common(model.name, MODULE), **given, "type": str(kind)}
    module = write_explanation(model.name) if explains else ""
    if explains:
        fields |= _common(model.name, EXPLANATION)
    elif not evaluates:
        fields |= {"output_format": "csv"}
    data = "validation_data" if evaluates else "prediction_data"
    return PlannedStatement(fields, data, EXPLANATION if explains else "", module, order, snapshot, model.classes)


def model_of(statement: Statement) -> str:
    """The model that a statement uses; empty for one that trains."""
    return "" if statement.verb == "TRAIN" else statement.using or statement.subject


def _training(statement: Statement, source: str, rows: Path) -> PlannedStatement:
    if statement.subject not in MODELS:
        raise refusal(statement.text, statement.offset, f"there is no model {statement.subject}",
                      suggest(statement.subject, list(MODELS)))  # fmt: skip
    with rows_for_a_while(source, statement.select, rows) as whole:
        return plan_training(statement, whole, rows)


def plan_training(statement: Statement, whole: SelectedRows, rows: Path) -> PlannedStatement:
    """Plans the job of a statement that trains on rows that were read already.

    Args:
        statement: one that names a premade model.
        whole: its rows.
        rows: the folder that those of the columns that are needed go into.

    Raises:
        InvalidInputError: with the place in the statement and what to write instead.
    """
    options, given = _attributes(statement, JobType.TRAINING)
    module, columns, classes = write_module(statement, whole.columns, options)
    snapshot = reorder(whole, columns, rows)
    fields = {**_common(statement.into, MODULE), **given}
    return PlannedStatement(fields, "training_data", MODULE, module, columns, snapshot, classes)


def _common(name: str, file: str) -> dict[str, Any]:
    return {
        "name": job_name(name),
        "model_def": f"{file.removesuffix('.py')}.forward",
        "data_reader_params": {"with_header": False, "sep": ","},
    }


def job_name(model: str) -> str:
    """The name of a model's jobs, which has neither capitals nor underscores."""
    return model.lower().replace("_", "-")[:40].strip("-") or "model"


def _check_labels(statement: Statement, name: str, label: Column, classes: list[str]) -> None:
    """Refuses labels that a classifier does not know, which would be counted as those of its first class."""
    unknown = sorted({*label.values} - {*classes})
    if label.nulls or unknown:
        held = f"{label.nulls} NULLs" if label.nulls else f"{unknown[0]!r}"
        raise refusal(statement.text, max(0, statement.text.upper().rfind("LABEL")),
                      f"{label.name} holds {held}, which {name} was not trained on",
                      f"select rows WHERE it is one of {', '.join(classes[:5])}")  # fmt: skip


def _attributes(statement: Statement, kind: JobType) -> tuple[dict[str, Any], dict[str, Any]]:
    """The attributes of WITH, of the model and of the job."""
    options, fields = place_attributes(statement, kind)
    return options, {name: value for name, (value, _) in fields.items()}


def place_attributes(statement: Statement, kind: JobType) -> tuple[dict[str, Any], dict[str, tuple[Any, int]]]:
    """The attributes of WITH: options of the model, and fields of the job with where they stand.

    Raises:
        InvalidInputError: there is no such attribute, or its value cannot be.
    """
    options: dict[str, Any] = {}
    fields: dict[str, tuple[Any, int]] = {}
    known = [name for names in FIELD_GROUPS.values() for name in names if name not in NOT_FOR[kind] | _NOT_GIVEN]
    of_model = options_of(statement.subject) if kind is JobType.TRAINING and statement.subject else ()
    for name, (value, offset) in statement.attributes.items():
        home, _, last = name.rpartition(".")
        short = _ALIASES.get(last, last)
        if home in ("", "model", "optimizer") and short in of_model:
            _check_option(statement, short, value, offset)
            options[short] = value
        elif home in ("", "train") and (field := next(iter(resolve_aliases({short: 0})))) in known:
            fields[field] = (value, offset)
        else:
            raise refusal(
                statement.text, offset, f"there is no attribute {name}", suggest(short, [*of_model, *known])
            )
    return options, fields


def _check_option(statement: Statement, name: str, value: Any, offset: int) -> None:
    def whole(one: Any) -> bool:
        return isinstance(one, int) and not isinstance(one, bool) and 1 <= one <= 1_000_000

    fits, example = {
        "hidden_units": (isinstance(value, list) and bool(value) and all(map(whole, value)), "[64, 32]"),
        "n_classes": (whole(value) and value > 1, "2"),
        "vector_size": (whole(value) and value <= 1_000, "8"),
        "cross_layers": (whole(value) and value <= 100, "3"),
        "learning_rate": (
            isinstance(value, int | float) and not isinstance(value, bool) and 0 < value < math.inf,
            "0.001",
        ),
    }[name]
    if not fits:
        raise refusal(statement.text, offset, f"{value!r} is no {name}", f"write {name} = {example}")

"""From a statement to a job: its data, its model module and its specification, files that a user may keep."""

from __future__ import annotations

import hashlib
import json
import math
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticdl.sql.databases import KNOWN
from elasticdl.sql.explanations import shuffle_columns, write_explanation
from elasticdl.sql.grammar import Statement
from elasticdl.sql.lexing import refusal, suggest
from elasticdl.sql.modules import MODELS, options_of, write_module
from elasticdl.sql.source import Column, SelectedRows, reorder, rows_for_a_while, take_snapshot
from elasticdl_core.errors import InvalidInputError, NotFoundError
from elasticdl_core.job import JobType, resolve_aliases
from elasticdl_core.job.field_groups import FIELD_GROUPS, NOT_FOR
from elasticdl_runtime import durable

MODULE, PLAN, EXPLANATION = "model.py", "plan.json", "explanation.py"
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
class StatementPlan:
    """A compiled statement.

    Attributes:
        spec: the job's specification.
        module: the text of the model module; empty where a model is used that is there.
        folder: the model's folder.
        columns: those that the module reads, the label's last.
        snapshot: the rows.
        classes: the labels that a classifier knows, as text.
    """

    spec: dict[str, Any]
    module: str
    folder: Path
    columns: list[str]
    snapshot: SelectedRows
    classes: list[str]

    def keep(self, statement: Statement) -> None:
        """Writes the module, and what made it, into the model's folder."""
        if self.module:
            self.folder.mkdir(parents=True, exist_ok=True)
            if statement.verb == "EXPLAIN":
                durable.write(self.folder / EXPLANATION, self.module)
                return
            durable.write(self.folder / MODULE, self.module)
            kept = {
                "statement": statement.text.strip(),
                "columns": self.columns,
                "classes": self.classes,
                "spec": self.spec,
            }
            durable.write(self.folder / PLAN, json.dumps(kept, indent=2) + "\n")


def compile_statement(
    statement: Statement, source: str, models: Path, *, scratch: Path | None = None
) -> StatementPlan:
    """Reads the rows of a statement and plans its job.

    Args:
        statement: to train, evaluate, explain or predict.
        source: where the rows are: ``sqlite:///FILE`` or ``postgresql://USER@HOST/DATABASE``.
        models: the folder of the models, one folder each.
        scratch: where the rows go, if the job is only to be shown; else they go into the model's folder.

    Raises:
        InvalidInputError: with the place in the statement and what to write instead.
    """
    if statement.verb == "TRAIN":
        return _training(statement, source, models, scratch)
    name = statement.using or statement.subject
    kept = kept_plan(models, name)
    columns, folder = list(kept["columns"]), models / name
    explains = statement.verb == "EXPLAIN"
    evaluates = explains or statement.verb == "EVALUATE"
    if evaluates and not explains and statement.label != columns[-1]:
        raise refusal(statement.text, statement.text.upper().rfind("LABEL"),
                      f"{name} was trained on the label {columns[-1]}", f"write LABEL {columns[-1]}")  # fmt: skip
    order = columns if evaluates else columns[:-1]
    _, fields = _attributes(statement, JobType.EVALUATION if evaluates else JobType.PREDICTION)
    kept_rows = scratch or folder / "data"
    if explains:
        with rows_for_a_while(source, statement.select, kept_rows, order=order) as whole:
            snapshot = shuffle_columns(whole, kept_rows)
    else:
        snapshot = take_snapshot(source, statement.select, kept_rows, order=order)
    classes = list(kept["classes"])
    if evaluates and classes:
        _check_labels(statement, name, snapshot.columns[columns[-1]], classes)
    data = str(folder / "data" / snapshot.path.name)
    spec = {**_common(folder, name), **fields, "checkpoint_dir_for_init": kept["spec"]["checkpoint_dir"]}
    if evaluates:
        spec |= {"type": "evaluation", "validation_data": data}
        spec |= {"model_def": f"{EXPLANATION.removesuffix('.py')}.forward"} if explains else {}
    else:
        asked = json.dumps([data, spec], sort_keys=True)  # of other rows there are others, beside these
        which = hashlib.sha256(asked.encode()).hexdigest()[:16]
        output = str(folder / "predictions" / statement.subject / which)
        spec |= {
            "type": "prediction",
            "prediction_data": data,
            "output": output,
            "output_format": "csv",
        }
    return StatementPlan(spec, write_explanation(name) if explains else "", folder, order, snapshot, classes)


def _check_labels(statement: Statement, name: str, label: Column, classes: list[str]) -> None:
    """Refuses labels that a classifier does not know, which would be counted as those of its first class."""
    unknown = sorted({*label.values} - {*classes})
    if label.nulls or unknown:
        held = f"{label.nulls} NULLs" if label.nulls else f"{unknown[0]!r}"
        raise refusal(statement.text, max(0, statement.text.upper().rfind("LABEL")),
                      f"{label.name} holds {held}, which {name} was not trained on",
                      f"select rows WHERE it is one of {', '.join(classes[:5])}")  # fmt: skip


def kept_plan(models: Path, name: str) -> dict[str, Any]:
    """The kept record of a model's training.

    Raises:
        NotFoundError: there is no such model.
    """
    path = models / name / PLAN
    if not path.is_file():
        there = sorted(one.parent.name for one in models.glob(f"*/{PLAN}"))
        raise NotFoundError(
            f"there is no model {name} in {models}",
            fix=suggest(name, there) if there else "train it: SELECT ... TO TRAIN ... INTO " + name,
        )
    return dict(json.loads(path.read_text(encoding="utf-8")))


def _training(statement: Statement, source: str, models: Path, scratch: Path | None) -> StatementPlan:
    if statement.subject not in MODELS:
        raise refusal(statement.text, statement.offset, f"there is no model {statement.subject}",
                      suggest(statement.subject, list(MODELS)))  # fmt: skip
    options, fields = _attributes(statement, JobType.TRAINING)
    folder = models / statement.into
    kept_rows = scratch or folder / "data"
    with rows_for_a_while(source, statement.select, kept_rows) as whole:
        module, columns, classes = write_module(statement, whole.columns, options)
        snapshot = reorder(whole, columns, kept_rows)
    made = hashlib.sha256(f"{snapshot.path.name}\n{module}".encode()).hexdigest()[
        :16
    ]  # others go on from nothing of it
    spec = {
        **_common(folder, statement.into),
        "training_data": str(folder / "data" / snapshot.path.name),
        "checkpoint_dir": str(folder / "checkpoints" / made),
        "output": str(folder / "export"),
        **fields,
    }
    return StatementPlan(spec, module, folder, columns, snapshot, classes)


def _common(folder: Path, name: str) -> dict[str, Any]:
    return {
        "name": name,
        "model_zoo": str(folder),
        "model_def": "model.forward",
        "data_reader_params": {"with_header": False, "sep": ","},
    }


def _attributes(statement: Statement, kind: JobType) -> tuple[dict[str, Any], dict[str, Any]]:
    """The attributes of WITH, of the model and of the job."""
    options: dict[str, Any] = {}
    fields: dict[str, Any] = {}
    known = [name for names in FIELD_GROUPS.values() for name in names if name not in NOT_FOR[kind] | _NOT_GIVEN]
    of_model = options_of(statement.subject) if kind is JobType.TRAINING else ()
    for name, (value, offset) in statement.attributes.items():
        home, _, last = name.rpartition(".")
        short = _ALIASES.get(last, last)
        if home in ("", "model", "optimizer") and short in of_model:
            _check_option(statement, short, value, offset)
            options[short] = value
        elif home in ("", "train") and (field := next(iter(resolve_aliases({short: 0})))) in known:
            fields[field] = value
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


def refuse_source(source: str) -> None:
    """Refuses to go on without a source.

    Raises:
        InvalidInputError: there is none.
    """
    if not source:
        raise InvalidInputError("there is no --source", fix=f"say where the rows are: --source {KNOWN}")

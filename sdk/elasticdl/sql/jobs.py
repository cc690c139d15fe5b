"""The jobs of statements whose models lie in a folder: their places, the files that a user may keep."""

from __future__ import annotations

import hashlib
import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticdl.sql.databases import KNOWN
from elasticdl.sql.grammar import Statement
from elasticdl.sql.lexing import suggest
from elasticdl.sql.plans import EXPLANATION, MODULE, StatementModel, model_of, plan_statement
from elasticdl.sql.source import SelectedRows
from elasticdl_core.errors import InvalidInputError, NotFoundError
from elasticdl_runtime import durable

PLAN = "plan.json"


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
    name = model_of(statement)
    kept = kept_plan(models, name) if name else {}
    folder = models / (name or statement.into)
    model = StatementModel(name, list(kept["columns"]), list(kept["classes"])) if name else None
    planned = plan_statement(statement, source, scratch or folder / "data", model)
    data = str(folder / "data" / planned.snapshot.path.name)
    spec = {**planned.fields, "model_zoo": str(folder), planned.data: data}
    if not name:
        made = hashlib.sha256(f"{planned.snapshot.path.name}\n{planned.module}".encode()).hexdigest()
        # Others go on from nothing of it.
        spec |= {"checkpoint_dir": str(folder / "checkpoints" / made[:16]), "output": str(folder / "export")}
    else:
        spec["checkpoint_dir_for_init"] = kept["spec"]["checkpoint_dir"]
    if statement.verb == "PREDICT":
        asked = json.dumps([data, spec], sort_keys=True)  # of other rows there are others, beside these
        which = hashlib.sha256(asked.encode()).hexdigest()[:16]
        spec["output"] = str(folder / "predictions" / statement.subject / which)
    return StatementPlan(spec, planned.module, folder, planned.columns, planned.snapshot, planned.classes)


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


def refuse_source(source: str) -> None:
    """Refuses to go on without a source.

    Raises:
        InvalidInputError: there is none.
    """
    if not source:
        raise InvalidInputError("there is no --source", fix=f"say where the rows are: --source {KNOWN}")

"""Choices for a statement that names neither columns nor a model: features by what columns hold, models to try."""

from __future__ import annotations

import csv
import hashlib
import math
import os
import re
from collections import Counter
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

from elasticdl.sql.grammar import Statement
from elasticdl.sql.lexing import refusal
from elasticdl.sql.plans import place_attributes
from elasticdl.sql.source import Column, SelectedRows, placed_by_digest
from elasticdl_core.errors import DataError
from elasticdl_core.job import JobType

FEWEST_ROWS = 100
"""With fewer rows the held-out ones say nothing about a model."""
_HELD_OUT = 5
"""One of so many rows is held out."""
_FEW, _CLASSES, _BINS = 10, 20, 16
_FEWEST_OF_CLASS = 5
"""With fewer held-out rows of a class an area under the curve is a matter of chance."""
_FIRST_UPDATES = 200
"""Updates after which models are compared for the first time."""
_CLAUSES = {"WITH", "COLUMN", "LABEL", "INTO", "USING", "FOR"}


@dataclass(frozen=True)
class ColumnChoice:
    """The features of a column.

    Attributes:
        name: the column.
        holds: what it holds, in words.
        plain: descriptions of its features, numbers as numbers.
        binned: the same with numbers as intervals beside.
    """

    name: str
    holds: str
    plain: tuple[str, ...] = ()
    binned: tuple[str, ...] = ()


@dataclass
class Trial:
    """A model that is tried, and how far it came.

    Attributes:
        model: the premade model.
        learning_rate: of Adam.
        features: ``plain`` or ``binned``.
        attributes: further ones of the model.
        scores: of the held-out rows, after each round.
        ended: why it went no further.
    """

    model: str
    learning_rate: float
    features: str
    attributes: Mapping[str, Any] = field(default_factory=dict)
    scores: list[float] = field(default_factory=list)
    ended: str = ""

    def __str__(self) -> str:
        given = {"learning_rate": self.learning_rate, **self.attributes}
        return f"{self.model} ({', '.join(f'{name} {value}' for name, value in given.items())}, {self.features})"


@dataclass(frozen=True)
class ScoreOrder:
    """The measure by which models are compared.

    Attributes:
        metric: its name among those of an evaluation.
        sign: 1 where more is better, -1 where less is.
        rarer: of two classes, the number of held-out rows that the rarer one has.
    """

    metric: str
    sign: int
    rarer: int = 0

    def best_first(self, trials: Sequence[Trial]) -> list[Trial]:
        """The trials that have a score, those with the best latest one first.

        Areas under the curve that are within one standard error of the best say nothing, where few rows are held out:
        the simpler of such models go first (Breiman et al. 1984, "Classification and Regression Trees", 3.4.3).

        Args:
            trials: the simplest first.
        """
        scored = sorted((one for one in trials if not one.ended), key=lambda one: -self.sign * one.scores[-1])
        if not self.rarer or not scored:
            return scored
        best = scored[0].scores[-1]
        error = math.sqrt(max(0.0, best * (1 - best)) / self.rarer)
        tied = [one for one in trials if one in scored and one.scores[-1] >= best - error]
        return tied + [one for one in scored if one not in tied]


def classifies(label: Column) -> bool:
    """Whether a label is one of some classes: text, or a few whole numbers."""
    if not label.numeric:
        return True
    return len(label.values) <= _CLASSES and all(float(one).is_integer() for one in label.values.values())


def compared_by(label: Column, held: SelectedRows) -> ScoreOrder:
    """The measure for a label: the mean absolute error of numbers, the area under the curve of two classes.

    It is the loss where there are more classes, or too few held-out rows of one of the two.
    """
    if not classifies(label):
        return ScoreOrder("mean_absolute_error", -1)
    if len(label.values) == 2:
        place = list(held.columns).index(label.name)
        with held.path.open(newline="", encoding="utf-8") as file:
            counts = Counter(row[place] for row in csv.reader(file))
        rarer = min(counts[name] for name in label.values)
        if rarer >= _FEWEST_OF_CLASS:
            return ScoreOrder("auc", 1, rarer)
    return ScoreOrder("loss", -1)


def choose_columns(statement: Statement, rows: SelectedRows) -> list[ColumnChoice]:
    """Describes features of each column but the label by the column's values.

    Args:
        statement: names the label.
        rows: all that are to be trained on.

    Raises:
        InvalidInputError: the SELECT has no such label, or no column says anything.
    """
    label = max(0, statement.text.upper().rfind("LABEL"))
    if statement.label not in rows.columns:
        raise refusal(statement.text, label, f"the SELECT has no column {statement.label}", "select it")
    if rows.rows < FEWEST_ROWS:
        raise refusal(statement.text, label, f"{rows.rows} rows are too few to compare models",
                      "select more, or name a model: TO TRAIN DNNClassifier")  # fmt: skip
    found = [_choose(column, rows.rows) for name, column in rows.columns.items() if name != statement.label]
    if not any(one.plain for one in found):
        held = "; ".join(f"{one.name}: {one.holds}" for one in found) or "there is none"
        raise refusal(statement.text, label, f"no column can be learned from ({held})", "select others")
    return found


def _choose(column: Column, rows: int) -> ColumnChoice:
    name, distinct = quoted(column.name), len(column.values)
    most = "over 10,000" if not column.known_whole else f"{distinct:,}"
    values = f"{most} value{'s' * (distinct != 1)}" + (f", {column.nulls} NULLs" if column.nulls else "")
    if distinct + bool(column.nulls) < 2:
        return ColumnChoice(column.name, "one value, left out")
    if column.numeric:
        holds = f"numbers, {values}"
        if _counts_rows(column, rows):
            return ColumnChoice(column.name, "a number of each row, left out")
        number = f"NUMERIC({name}, missing={column.mean:.6g})" if column.nulls else f"NUMERIC({name})"
        if distinct <= _FEW:
            return ColumnChoice(column.name, holds, *[(number, f"INDICATOR(VOCABULARIZE({name}))")] * 2)
        return ColumnChoice(
            column.name, holds, (number,), (number, f"INDICATOR(BUCKETIZE({name}, num_buckets={_BINS}))")
        )
    holds = f"text, {values}"
    if column.known_whole and distinct > 0.9 * column.count:
        return ColumnChoice(column.name, f"{holds}: almost one of each row, left out")
    if not column.known_whole:
        ids = f"HASH({name}, {min(1 << 20, max(1 << 15, rows))})"
    else:
        ids = f"VOCABULARIZE({name})"
    size = min(32, 2 + round(1.6 * distinct**0.5))
    feature = f"INDICATOR({ids})" if distinct <= _CLASSES else f"EMBEDDING({ids}, {size})"
    return ColumnChoice(column.name, holds, *[(feature,)] * 2)


def _counts_rows(column: Column, rows: int) -> bool:
    """Whether whole numbers without gaps name the rows, as a key does."""
    values = [one for one in column.values.values() if isinstance(one, int)]
    if column.nulls or not column.known_whole or len(values) != len(column.values) or len(values) < rows:
        return False
    return max(values) - min(values) == rows - 1


def quoted(name: str) -> str:
    """A column's name as statements write it."""
    return name if re.fullmatch(r"[A-Za-z_]\w*", name) and name.upper() not in _CLAUSES else f'"{name}"'


def trials_for(statement: Statement, rows: SelectedRows, chosen: Sequence[ColumnChoice]) -> list[Trial]:
    """The models to try, the simplest first, with numbers as numbers or as intervals, too."""
    kind = "Classifier" if classifies(rows.columns[statement.label]) else "Regressor"
    wanted: list[tuple[str, float, str, dict[str, Any]]] = [
        ("Linear", 0.01, "plain", {}),
        ("Linear", 0.01, "binned", {}),
        ("DNN", 0.003, "plain", {"hidden_units": [64, 32]}),
        ("DNN", 0.003, "binned", {"hidden_units": [128, 64]}),
        ("WideAndDeep", 0.003, "binned", {"hidden_units": [64, 32]}),
        ("DCN", 0.003, "plain", {"hidden_units": [64, 32], "cross_layers": 2}),
        ("DCN", 0.001, "binned", {"hidden_units": [128, 64], "cross_layers": 2}),
        ("DeepFM", 0.003, "binned", {"hidden_units": [64, 32]}),
    ]
    features = sum(len(one.plain) for one in chosen)
    return [
        Trial(family + kind, rate, which, attributes)
        for family, rate, which, attributes in wanted
        if family != "DeepFM" or features > 1
    ]


def statement_of(
    statement: Statement, trial: Trial, chosen: Sequence[ColumnChoice], *, into: str, attributes: Mapping[str, Any]
) -> str:
    """The statement that trains a trial's model, with all that was chosen written out."""
    given = {
        **{name: value for name, (value, _) in statement.attributes.items()},
        "learning_rate": trial.learning_rate,
        **trial.attributes,
        **attributes,
    }
    features = [one for column in chosen for one in getattr(column, trial.features)]
    return "\n".join(
        (
            statement.select.strip(),
            f"TO TRAIN {trial.model}",
            "WITH " + ", ".join(f"{name} = {_literal(value)}" for name, value in given.items()),
            "COLUMN " + ",\n       ".join(features),
            f"LABEL {quoted(statement.label)}",
            f"INTO {into}",
        )
    )


def _literal(value: Any) -> str:
    if isinstance(value, bool):
        return str(value).lower()
    if isinstance(value, list):
        return f"[{', '.join(map(_literal, value))}]"
    return "'" + value.replace("'", "''") + "'" if isinstance(value, str) else repr(value)


@dataclass(frozen=True)
class TrialSizes:
    """Sizes of the trials.

    Attributes:
        minibatch_size: records of an update.
        first_epochs: epochs of the first round; each later round doubles what was trained before.
        given: whether the statement says how many records an update has.
    """

    minibatch_size: int
    first_epochs: int
    given: bool

    def epochs_after(self, rounds: int) -> int:
        """The epochs over which a model is trained in so many rounds."""
        return self.first_epochs << rounds >> 1 if rounds else 0


def sizes_of(statement: Statement, rows: int) -> TrialSizes:
    """Sizes that give each model some hundred updates before it is compared.

    Raises:
        InvalidInputError: WITH sets what the trials find out, or what there is not.
    """
    _, given = place_attributes(statement, JobType.TRAINING)
    if "num_epochs" in given:
        raise refusal(statement.text, given["num_epochs"][1], "the trials find out for how many epochs to train",
                      "leave it out, or name a model: TO TRAIN DNNClassifier")  # fmt: skip
    size, _ = given.get("minibatch_size", (1 << min(9, max(4, round(math.log2(rows / 64)))), 0))
    return TrialSizes(size, max(1, math.ceil(_FIRST_UPDATES / max(1, rows // size))), "minibatch_size" in given)


def hold_out(rows: SelectedRows, folder: Path) -> tuple[SelectedRows, SelectedRows]:
    """The rows in two files: those to train on, and one in five to compare by; equal rows go the same way."""
    counts = [0, 0]
    partial = [folder / f".partial-{os.getpid()}-{name}.csv" for name in ("trained", "held")]
    with (
        rows.path.open(newline="", encoding="utf-8") as given,
        partial[0].open("w", newline="", encoding="utf-8") as trained,
        partial[1].open("w", newline="", encoding="utf-8") as held,
    ):
        writers = [csv.writer(file, lineterminator="\n") for file in (trained, held)]
        for row in csv.reader(given):
            digest = hashlib.blake2b("\0".join(row).encode(), digest_size=8).digest()
            which = int(int.from_bytes(digest, "big") % _HELD_OUT == 0)
            writers[which].writerow(row)
            counts[which] += 1
    if not all(counts):
        raise DataError("the rows are too much alike to hold some out", fix="select others, or name a model")
    parts = [
        SelectedRows(placed_by_digest(one), rows.columns, count) for one, count in zip(partial, counts, strict=True)
    ]
    return parts[0], parts[1]

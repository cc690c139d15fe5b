"""Searches for a model: what is tried with which rows, and the rounds that leave the better half each time."""

from __future__ import annotations

import csv
import io
import math
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticdl.sql.choices import (
    ColumnChoice,
    ScoreOrder,
    Trial,
    TrialSizes,
    choose_columns,
    compared_by,
    hold_out,
    sizes_of,
    statement_of,
    trials_for,
)
from elasticdl.sql.grammar import Statement, parse_statement
from elasticdl.sql.plans import plan_training
from elasticdl.sql.source import reorder, rows_for_a_while
from elasticdl_core.errors import ElasticDLError

ROUNDS = 3
LOWEST_PRIORITY = -1000
"""The priority of trials on a cluster: they take what is free, and give it back."""


@dataclass(frozen=True)
class TrialOutcome:
    """The end of a trial's job.

    Attributes:
        metrics: of the held-out rows; empty where it failed.
        problem: why it failed.
    """

    metrics: Mapping[str, float]
    problem: str = ""


@dataclass
class SearchPlan:
    """A search that can begin.

    Attributes:
        choices: the features of each column.
        trials: the models, the simplest first.
        texts: of each model its statements, by the number of rounds that it is trained for.
        fields: of each model the fields that its jobs have, but for places and epochs.
        modules: the text of each model's module, ``trial_N.py``.
        epochs: those of each round.
        minibatch_size: records of an update.
        order: the measure.
        columns: those that all modules read, the label's last.
        classes: the labels that a classifier knows, as text.
        parts: the names of the files of rows: ``trained`` on, ``held`` out, ``whole``.
        sizes: how many rows are in each of these.
    """

    choices: list[ColumnChoice]
    trials: list[Trial]
    texts: list[list[str]]
    fields: list[dict[str, Any]]
    modules: list[str]
    epochs: list[int]
    minibatch_size: int
    order: ScoreOrder
    columns: list[str]
    classes: list[str]
    parts: dict[str, str]
    sizes: dict[str, int]

    @classmethod
    def of(cls, told: Mapping[str, Any]) -> SearchPlan:
        """The plan that ``dataclasses.asdict`` told."""
        choices = [
            ColumnChoice(one["name"], one["holds"], tuple(one["plain"]), tuple(one["binned"]))
            for one in told["choices"]
        ]
        trials, order = [Trial(**one) for one in told["trials"]], ScoreOrder(**told["order"])
        return cls(**{**told, "choices": choices, "trials": trials, "order": order})


def plan_search(statement: Statement, source: str, folder: Path) -> SearchPlan:
    """Reads the rows of a statement without a model, and plans what is tried.

    Args:
        statement: one that names no model.
        source: the address of the database.
        folder: where the rows go.

    Raises:
        InvalidInputError: rows or label cannot be learned, with the place in the statement.
    """
    with rows_for_a_while(source, statement.select, folder) as rows:
        chosen = choose_columns(statement, rows)
        sizes = sizes_of(statement, rows.rows)
        trials = trials_for(statement, rows, chosen)
        trained, held = hold_out(rows, rows.path.parent)
        order = compared_by(rows.columns[statement.label], held)
        texts = [[_text(statement, one, chosen, sizes, number + 1) for number in range(ROUNDS)] for one in trials]
        planned = [plan_training(parse_statement(text), rows, folder) for text, *_ in texts]
        columns = planned[0].columns  # the features of all models are of the same columns, in the same order
        assert all(one.columns == columns for one in planned)
        parts = {"whole": planned[0].snapshot}
        parts |= {"trained": reorder(trained, columns, folder), "held": reorder(held, columns, folder)}
    after = [sizes.epochs_after(number) for number in range(ROUNDS + 1)]
    return SearchPlan(
        choices=chosen,
        trials=trials,
        texts=texts,
        fields=[_fields(one.fields, f"trial_{at}") for at, one in enumerate(planned)],
        modules=[one.module for one in planned],
        epochs=[after[number + 1] - after[number] for number in range(ROUNDS)],
        minibatch_size=sizes.minibatch_size,
        order=order,
        columns=columns,
        classes=planned[0].classes,
        parts={name: part.path.name for name, part in parts.items()},
        sizes={name: part.rows for name, part in parts.items()},
    )


def _text(statement: Statement, trial: Trial, chosen: Sequence[ColumnChoice], sizes: TrialSizes, rounds: int) -> str:
    given: dict[str, Any] = {"num_epochs": sizes.epochs_after(rounds)}
    if not sizes.given:
        given["minibatch_size"] = sizes.minibatch_size
    return statement_of(statement, trial, chosen, into=statement.into, attributes=given)


def _fields(fields: Mapping[str, Any], module: str) -> dict[str, Any]:
    return {**fields, "name": f"{fields['name'][:32]}-trial", "model_def": f"{module}.forward"}


class Halving:
    """The rounds: each leaves the better half of the models, which go on from their checkpoints.

    Args:
        trials: the models, the simplest first; the rounds write into them.
        order: the measure.
        number: the round to begin with.
    """

    def __init__(self, trials: Sequence[Trial], order: ScoreOrder, number: int = 0) -> None:
        self.trials = trials
        self.order = order
        self.number = number

    @property
    def left(self) -> list[int]:
        """The numbers of the models that have not ended."""
        return [at for at, one in enumerate(self.trials) if not one.ended]

    def note(self, at: int, outcome: TrialOutcome) -> None:
        """Notes the end of a model's job in this round."""
        trial, score = self.trials[at], outcome.metrics.get(self.order.metric)
        if score is None or not math.isfinite(score):
            trial.ended = outcome.problem or f"its {self.order.metric} is {score}"
        else:
            trial.scores.append(score)

    def conclude(self) -> tuple[list[Trial], Trial | None]:
        """Ends the round, of which all models are noted.

        Returns:
            The models that have a score, the best first, and the one that is chosen; None where a round is left.

        Raises:
            ElasticDLError: no model could be trained.
        """
        ranked = self.order.best_first(self.trials)
        if not ranked:
            first = next(one for one in self.trials if one.ended)
            raise ElasticDLError("no model could be trained on the rows", fix=f"the first says: {first.ended}")
        self.number += 1
        kept = ranked[: 1 if self.number == ROUNDS else max(1, len(ranked) // 2)]
        for one in ranked[len(kept) :]:
            one.ended = f"round {self.number}: {len(kept)} of {len(ranked)} went on"
        if len(kept) > 1:
            return ranked, None
        kept[0].ended = "the best one"
        return ranked, kept[0]

    def best_round(self, trial: Trial) -> int:
        """The round after which a model was best."""
        return max(range(len(trial.scores)), key=lambda at: self.order.sign * trial.scores[at])


def table_of(plan: SearchPlan) -> str:
    """The models as CSV: what they are, how far they came, and why they ended."""
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["model", "learning_rate", "features", "attributes", "epochs", plan.order.metric, "ended"])
    for one in plan.trials:
        attributes = " ".join(f"{name}={value}" for name, value in one.attributes.items())
        scores = " ".join(f"{score:.6g}" for score in one.scores)
        epochs = sum(plan.epochs[: len(one.scores)])
        writer.writerow([one.model, one.learning_rate, one.features, attributes, epochs, scores, one.ended])
    return text.getvalue()


def feature_rows(choices: Sequence[ColumnChoice]) -> list[tuple[str, str, str]]:
    """Of each column its name, what it holds, and its features."""
    return [(one.name, one.holds, ", ".join(dict.fromkeys((*one.plain, *one.binned)))) for one in choices]

"""What is chosen for a statement that names neither columns nor a model."""

from __future__ import annotations

import csv
import dataclasses
import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from elasticdl.cli.sql_trials import find_model, search
from elasticdl.sql.choices import (
    ScoreOrder,
    Trial,
    choose_columns,
    classifies,
    compared_by,
    hold_out,
    sizes_of,
    statement_of,
    trials_for,
)
from elasticdl.sql.grammar import Statement, parse_statement
from elasticdl.sql.plans import plan_training
from elasticdl.sql.search import SearchPlan, TrialOutcome, plan_search
from elasticdl.sql.source import Column, SelectedRows
from elasticdl_core.errors import ElasticDLError

ROWS = 400


def statement(attributes: str = "", label: str = "y") -> Statement:
    return parse_statement(f"SELECT * FROM t {attributes} LABEL {label} INTO m")


def rows_of(folder: Path, count: int = ROWS, **columns: Any) -> SelectedRows:
    """Rows in a file, each column by a function of the row's number."""
    found = {name: Column(name) for name in columns}
    path = folder / "rows.csv"
    with path.open("w", newline="") as file:
        writer = csv.writer(file, lineterminator="\n")
        for at in range(count):
            values = [made(at) for made in columns.values()]
            for column, value in zip(found.values(), values, strict=True):
                column.add(value)
            writer.writerow(["" if one is None else one for one in values])
    return SelectedRows(path, found, count)


@pytest.mark.parametrize(
    ("values", "plain", "holds"),
    [
        (lambda at: at / 3, "NUMERIC(c)", "numbers, 400 values"),
        (lambda at: None if at % 9 == 1 else at % 50, "NUMERIC(c, missing=24.4", "numbers, 50 values, 45 NULLs"),
        (lambda at: at % 3, "NUMERIC(c), INDICATOR(VOCABULARIZE(c))", "numbers, 3 values"),
        (lambda at: "abc"[at % 3], "INDICATOR(VOCABULARIZE(c))", "text, 3 values"),
        (lambda at: None if at % 2 else "a", "INDICATOR(VOCABULARIZE(c))", "text, 1 value, 200 NULLs"),
        (lambda at: f"w{at % 60}", "EMBEDDING(VOCABULARIZE(c), 14)", "text, 60 values"),
        (lambda at: f"w{at}", "", "text, 400 values: almost one of each row, left out"),
        (lambda at: at + 7, "", "a number of each row, left out"),
        (lambda at: "x", "", "one value, left out"),
        (lambda at: None, "", "one value, left out"),
    ],
)
def test_columns_become_features_by_what_they_hold(values: Any, plain: str, holds: str, tmp_path: Path) -> None:
    rows = rows_of(tmp_path, c=values, other=lambda at: at % 77 / 2, y=lambda at: at % 2)
    chosen = choose_columns(statement(), rows)[0]
    assert (", ".join(chosen.plain)[: len(plain)] == plain) and bool(chosen.plain) == bool(plain)
    assert chosen.holds == holds


def test_columns_of_many_values_are_hashed(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, 20_002, c=lambda at: f"w{at // 2}", y=lambda at: at % 2)
    (chosen,) = choose_columns(statement(), rows)
    assert chosen.plain == ("EMBEDDING(HASH(c, 32768), 32)",) and "over 10,000" in chosen.holds


@pytest.mark.parametrize(
    ("values", "classes", "metric"),
    [
        (lambda at: "ny"[at % 2], True, "auc"),
        (lambda at: at % 2, True, "auc"),
        (lambda at: float(at % 3), True, "loss"),
        (lambda at: at % 40, False, "mean_absolute_error"),
        (lambda at: at % 2 + 0.5, False, "mean_absolute_error"),
    ],
)
def test_labels_are_classes_or_numbers(values: Any, classes: bool, metric: str, tmp_path: Path) -> None:
    rows = rows_of(tmp_path, c=lambda at: at / 3, d=lambda at: at % 7, y=values)
    assert classifies(rows.columns["y"]) is classes
    assert compared_by(rows.columns["y"], rows).metric == metric
    trials = trials_for(statement(), rows, choose_columns(statement(), rows))
    assert {one.model.endswith("Classifier") for one in trials} == {classes} and len(trials) == 8


@pytest.mark.parametrize(
    ("asked", "columns", "said"),
    [
        (statement(label="z"), {"c": lambda at: at / 3, "y": lambda at: at % 2}, "has no column z"),
        (statement(), {"y": lambda at: at % 2}, "no column can be learned from"),
        (statement(), {"c": lambda at: 1, "y": lambda at: at % 2}, "c: one value, left out"),
        (statement("WITH epoch = 3"), {"c": lambda at: at / 3, "y": lambda at: at % 2}, "for how many epochs"),
        (
            statement("WITH hidden_units = [3]"),
            {"c": lambda at: at / 3, "y": lambda at: 1},
            "no attribute hidden_units",
        ),
    ],
)
def test_what_cannot_be_compared_is_refused_with_its_place(
    asked: Statement, columns: Mapping[str, Any], said: str, tmp_path: Path
) -> None:
    rows = rows_of(tmp_path, **columns)
    with pytest.raises(ElasticDLError, match="line 1, column") as caught:
        sizes_of(asked, rows.rows)
        choose_columns(asked, rows)
    assert said in caught.value.message and caught.value.fix


def test_few_rows_are_refused(tmp_path: Path) -> None:
    with pytest.raises(ElasticDLError, match="99 rows are too few"):
        choose_columns(statement(), rows_of(tmp_path, 99, c=lambda at: at / 3, y=lambda at: at % 2))


def test_equal_rows_are_held_out_together_and_none_is_lost(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, c=lambda at: at % 50, y=lambda at: at % 2)
    trained, held = hold_out(rows, tmp_path)
    lines = [part.path.read_text().splitlines() for part in (trained, held)]
    assert sorted(lines[0] + lines[1]) == sorted(rows.path.read_text().splitlines())
    assert not {*lines[0]} & {*lines[1]} and (len(lines[0]), len(lines[1])) == (trained.rows, held.rows)
    assert 0.05 < held.rows / ROWS < 0.4


def test_each_trial_is_a_statement_that_can_be_planned(tmp_path: Path) -> None:
    rows = rows_of(
        tmp_path, label=lambda at: at / 3, gap=lambda at: None if at % 5 else at / 7, city=lambda at: f"w{at % 60}",
        few=lambda at: at % 4, y=lambda at: "ny"[at % 2],
    )  # fmt: skip
    asked = statement("WITH num_workers = 2")
    chosen = choose_columns(asked, rows)
    sizes = sizes_of(asked, rows.rows)
    assert (sizes.minibatch_size, sizes.first_epochs, sizes.given) == (16, 8, False)
    assert sizes_of(statement("WITH batch_size = 100"), rows.rows).first_epochs == 50
    for trial in trials_for(asked, rows, chosen):
        text = statement_of(asked, trial, chosen, into="m", attributes={"num_epochs": 3})
        planned = plan_training(parse_statement(text), rows, tmp_path)
        assert planned.columns == ["label", "gap", "city", "few", "y"], text
        assert (planned.fields["num_epochs"], planned.fields["max_workers"]) == (3, 2)
        assert "tf.where(tf.equal(column['gap'], ''), '28." in planned.module
        compile(planned.module, "model.py", "exec")


def test_the_simpler_of_models_that_few_rows_cannot_tell_apart_goes_first() -> None:
    def order(rarer: int, *scores: float) -> list[int]:
        trials = [Trial(str(at), 0.1, "plain", scores=[score]) for at, score in enumerate(scores)]
        return [int(one.model) for one in ScoreOrder("auc", 1, rarer).best_first(trials)]

    assert order(30, 0.85, 0.95, 0.93, 0.96, 0.5) == [1, 2, 3, 0, 4]
    assert order(100_000, 0.85, 0.95, 0.93, 0.96, 0.5) == [3, 1, 2, 0, 4]
    assert order(30, 1.0, 0.5, 1.0) == [0, 2, 1]


def test_rare_classes_are_compared_by_the_loss(tmp_path: Path) -> None:
    rows = rows_of(tmp_path, c=lambda at: at / 3, y=lambda at: int(at < 4))
    assert compared_by(rows.columns["y"], rows).metric == "loss"


class Trainer:
    """Gives each model the scores that a table has for it, a round each; None fails."""

    def __init__(self, scores: Mapping[str, Sequence[float | None]]) -> None:
        self.scores, self.rounds = scores, []

    def __call__(self, specs: Mapping[str, Mapping[str, Any]]) -> list[TrialOutcome]:
        self.rounds.append(specs)
        found = []
        for tried in specs:
            score = next(values for name, values in self.scores.items() if tried.startswith(name))[
                len(self.rounds) - 1
            ]
            found.append(
                TrialOutcome({}, "it ran away") if score is None else TrialOutcome({"auc": score, "loss": 9.0})
            )
        return found


@pytest.fixture
def planned(tmp_path: Path) -> SearchPlan:
    """A search over the rows of a small table."""
    with closing(sqlite3.connect(tmp_path / "t.db")) as connection, connection:
        connection.execute("CREATE TABLE t (c REAL, d INTEGER, y TEXT)")
        connection.executemany(
            "INSERT INTO t VALUES (?, ?, ?)", [(at / 3, at % 7, "ny"[at % 2]) for at in range(ROWS)]
        )
    (tmp_path / "rows").mkdir()
    return plan_search(statement(), f"sqlite:///{tmp_path}/t.db", tmp_path / "rows")


def test_a_plan_can_be_told_as_json_and_has_its_rows_in_three_files(planned: SearchPlan, tmp_path: Path) -> None:
    there = {one.name: one.read_text().splitlines() for one in (tmp_path / "rows").iterdir()}
    whole, trained, held = (there.pop(planned.parts[name]) for name in ("whole", "trained", "held"))
    assert not there and sorted(whole) == sorted(trained + held)
    assert planned.sizes == {"whole": ROWS, "trained": len(trained), "held": len(held)}
    assert (planned.columns, planned.classes, planned.epochs) == (["c", "d", "y"], ["n", "y"], [8, 8, 16])
    assert SearchPlan.of(json.loads(json.dumps(dataclasses.asdict(planned)))) == planned


def test_the_better_half_goes_on_from_its_checkpoints(planned: SearchPlan, tmp_path: Path) -> None:
    trials = planned.trials = planned.trials[:5]
    scores = dict(zip(map(str, trials), [(0.7, 0.7, 0), (0.9, 0.95, 0.94), (None,), (0.8, 0.2), (0.6,)], strict=True))
    trainer = Trainer(scores)
    text = search(planned, tmp_path / "rows", trainer)
    best = trials[1]
    assert (
        best.scores == [0.9, 0.95] and "TO TRAIN LinearClassifier\nWITH learning_rate = 0.01, num_epochs = 16" in text
    )
    assert [len(one) for one in trainer.rounds] == [5, 2]
    half = "round 1: 2 of 4 went on"
    assert [one.ended for one in trials] == [half, "the best one", "it ran away", "round 2: 1 of 2 went on", half]
    first, second = (one[str(best)] for one in trainer.rounds)
    assert second["checkpoint_dir_for_init"] == first["checkpoint_dir"] != second["checkpoint_dir"]
    assert (first["num_epochs"], second["num_epochs"], first["export_formats"]) == (8, 8, "")
    assert Path(first["training_data"]).name == planned.parts["trained"]
    assert Path(first["validation_data"]).name == planned.parts["held"]


@pytest.mark.usefixtures("planned")
def test_a_search_leaves_its_table_beside_the_model_and_nothing_else(tmp_path: Path) -> None:
    source, models = f"sqlite:///{tmp_path}/t.db", tmp_path / "models"
    assert find_model(statement(), source, models, None) is None
    assert not models.exists()
    best = find_model(statement(), source, models, Trainer({"": (0.9, 0.9, 0.9)}))
    assert best is not None
    assert best.subject
    kept = models / statement().into
    assert [one.name for one in kept.iterdir()] == ["trials.csv"]
    assert "the best one" in (kept / "trials.csv").read_text()
    with pytest.raises(ElasticDLError, match="no model could be trained"):
        find_model(statement(), source, tmp_path / "others", Trainer({"": (None,)}))
    assert not (tmp_path / "others" / statement().into).exists()


def test_a_search_without_a_model_says_why(planned: SearchPlan, tmp_path: Path) -> None:
    with pytest.raises(ElasticDLError, match="no model could be trained") as caught:
        search(planned, tmp_path / "rows", Trainer({"": (None,)}))
    assert "it ran away" in caught.value.fix

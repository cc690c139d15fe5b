"""Finds a model for a statement that names none: some are trained for a short time, and the better ones go on."""

from __future__ import annotations

import contextlib
import csv
import io
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from elasticdl.cli.output import duration, print_table, write_line
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
from elasticdl.sql.source import SelectedRows, reorder, rows_for_a_while
from elasticdl_core.errors import ElasticDLError
from elasticdl_core.json_numbers import from_json
from elasticdl_runtime import durable

TRIALS = "trials.csv"
"""The file in a model's folder that says what was tried."""
_ROUNDS = 3
_LOWEST_PRIORITY = -1000
_WAIT_S = 24 * 3600.0

Run = Callable[[Mapping[str, Mapping[str, Any]]], list["TrialOutcome"]]
"""Runs jobs, by what they try, side by side where there is room."""


@dataclass(frozen=True)
class TrialOutcome:
    """The end of a trial's job.

    Attributes:
        metrics: of the held-out rows; empty where it failed.
        problem: why it failed.
    """

    metrics: Mapping[str, float]
    problem: str = ""


def find_model(statement: Statement, source: str, models: Path, *, local: bool, dry_run: bool) -> Statement | None:
    """Compares models, and prints what is tried and how it went.

    Args:
        statement: one that names no model.
        source: the address of the database.
        models: the folder of the models.
        local: whether trials run on this machine.
        dry_run: whether they are only to be shown.

    Returns:
        The statement that trains the best one on all rows; None for a dry run.

    Raises:
        InvalidInputError: rows or label cannot be learned, with the place in the statement.
        ElasticDLError: no trial succeeded.
    """
    with _scratch(None if dry_run else models / statement.into) as scratch:
        with rows_for_a_while(source, statement.select, scratch / "rows") as rows:
            chosen = choose_columns(statement, rows)
            sizes = sizes_of(statement, rows.rows)
            trials = trials_for(statement, rows, chosen)
            print_table(
                ("COLUMN", "HOLDS", "FEATURES"),
                [(one.name, one.holds, ", ".join(dict.fromkeys((*one.plain, *one.binned)))) for one in chosen],
                empty="",
            )
            if dry_run:
                for trial in trials:
                    write_line(f"\n-- {trial}\n{_text(statement, trial, chosen, sizes, sizes.first_epochs)};")
                return None
            search = _Search(statement, rows, chosen, sizes, scratch)
            best = search.halve(trials, _run_here if local else _run_on_the_cluster)
        durable.write(models / statement.into / TRIALS, _table_of(trials, search.by, sizes))
        write_line(f"{best} is trained on all rows; {models / statement.into / TRIALS} has what was tried")
        return parse_statement(_text(statement, best, chosen, sizes, search.epochs_of(best)))


@contextlib.contextmanager
def _scratch(folder: Path | None) -> Iterator[Path]:
    """A folder for trials in the one of the model, which workers see, or anywhere; nothing stays of it."""
    if folder is None:
        with tempfile.TemporaryDirectory() as passing:
            yield Path(passing)
        return
    scratch = folder / ".trials"
    shutil.rmtree(scratch, ignore_errors=True)  # of a search that was killed
    scratch.mkdir(parents=True)
    try:
        yield scratch
    finally:
        shutil.rmtree(scratch)
        with contextlib.suppress(OSError):  # it has a model
            folder.rmdir()


def _text(statement: Statement, trial: Trial, chosen: Sequence[ColumnChoice], sizes: TrialSizes, epochs: int) -> str:
    given = {"num_epochs": epochs, **({} if sizes.given else {"minibatch_size": sizes.minibatch_size})}
    return statement_of(statement, trial, chosen, into=statement.into, attributes=given)


class _Search:
    """Trains models in rounds, of which each leaves the better half; they go on from their checkpoints."""

    def __init__(
        self,
        statement: Statement,
        rows: SelectedRows,
        chosen: Sequence[ColumnChoice],
        sizes: TrialSizes,
        folder: Path,
    ) -> None:
        self._statement, self._chosen = statement, chosen
        self._sizes, self._folder = sizes, folder
        self._trained, self._held = hold_out(rows, folder)
        self.by = compared_by(rows.columns[statement.label], self._held)

    def halve(self, trials: Sequence[Trial], run: Run) -> Trial:
        """Runs the rounds; returns the trial that came out best."""
        sizes = self._sizes
        write_line(
            f"{self._trained.rows:,} rows to train on, {self._held.rows:,} held out; {sizes.minibatch_size} records "
            f"an update; compared by {self.by.metric}"
        )
        specs = [self._spec(trial, self._folder / str(at)) for at, trial in enumerate(trials)]
        left = list(range(len(trials)))
        for number in range(_ROUNDS):
            started = time.monotonic()
            epochs = sizes.epochs_after(number + 1) - sizes.epochs_after(number)
            jobs = {str(trials[at]): self._round(specs[at], self._folder / str(at), number, epochs) for at in left}
            for at, outcome in zip(left, run(jobs), strict=True):
                self._note(trials[at], outcome)
            ranked = self.by.best_first([trials[at] for at in left])
            if not ranked:
                raise ElasticDLError(
                    "no model could be trained on the rows", fix=f"the first says: {trials[0].ended}"
                )
            kept = ranked[: max(1, len(ranked) // 2)]
            last = number == _ROUNDS - 1
            for one in ranked[len(kept) :]:
                one.ended = f"round {number + 1}: {len(kept)} of {len(ranked)} went on"
            rows = [
                (str(at + 1), str(one), f"{one.scores[-1]:.4f}", "" if one.ended or last else "goes on")
                for at, one in enumerate(ranked)
            ]
            print_table(("#", "MODEL", self.by.metric.upper(), ""), rows, empty="")
            write_line(f"round {number + 1}: {epochs} epochs, {duration(time.monotonic() - started)}")
            left = [at for at in left if trials[at] in kept]
            if len(left) == 1:
                break
        best = kept[0]
        best.ended = "the best one"
        return best

    def epochs_of(self, trial: Trial) -> int:
        """The epochs after which a trial was best."""
        best = max(range(len(trial.scores)), key=lambda at: self.by.sign * trial.scores[at])
        return self._sizes.epochs_after(best + 1)

    def _note(self, trial: Trial, outcome: TrialOutcome) -> None:
        score = outcome.metrics.get(self.by.metric)
        if score is None or score != score:
            trial.ended = outcome.problem or f"it has no {self.by.metric}"
        else:
            trial.scores.append(score)

    def _spec(self, trial: Trial, folder: Path) -> dict[str, Any]:
        """The fields that all rounds of a trial have."""
        parsed = parse_statement(_text(self._statement, trial, self._chosen, self._sizes, 1))
        folder.mkdir()
        planned = plan_training(parsed, self._trained, folder)
        durable.write(folder / planned.file, planned.module)
        held = reorder(self._held, planned.columns, folder)
        return {
            **planned.fields,
            "name": f"{planned.fields['name'][:32]}-trial",
            "model_zoo": str(folder),
            "training_data": str(planned.snapshot.path),
            "validation_data": str(held.path),
        }

    def _round(self, spec: Mapping[str, Any], folder: Path, number: int, epochs: int) -> dict[str, Any]:
        before = {"checkpoint_dir_for_init": str(folder / f"checkpoints-{number - 1}")} if number else {}
        places = {"checkpoint_dir": str(folder / f"checkpoints-{number}"), "output": str(folder / f"export-{number}")}
        return {**spec, **places, **before, "num_epochs": epochs}


def _run_here(specs: Mapping[str, Mapping[str, Any]]) -> list[TrialOutcome]:
    """Runs jobs on this machine, one after the other."""
    from elasticdl.cli.local import run_briefly
    from elasticdl.submission import prepare

    found = []
    for at, (tried, spec) in enumerate(specs.items(), 1):
        write_line(f"trial {at} of {len(specs)}: {tried}")
        report = run_briefly(prepare(dict(spec)))
        done = report.get("event") == "done"
        found.append(
            TrialOutcome(from_json(report["metrics"]) if done else {}, report.get("message", "it was killed"))
        )
    return found


def _run_on_the_cluster(specs: Mapping[str, Mapping[str, Any]]) -> list[TrialOutcome]:
    """Runs jobs on the cluster, which gives each what is free; a search that ends early cancels those that run."""
    from elasticdl.cli.connection import connect
    from elasticdl.submission import prepare

    with connect() as client:
        jobs: list[str] = []
        try:
            for tried, spec in specs.items():
                prepared = prepare({**spec, "priority": _LOWEST_PRIORITY})
                given = {name: value for name, value in prepared.items() if name != "model_zoo"}
                jobs.append(client.submit(given, model_zoo=prepared["model_zoo"]).id)
                write_line(f"{jobs[-1]}: {tried}")
            ends = [client.wait(one, timeout_s=_WAIT_S) for one in jobs]
        except BaseException:
            for one in jobs:
                if not client.get(one).state.terminal:
                    client.cancel(one)
            raise
        return [
            TrialOutcome(client.metrics(one.id)["evaluations"][-1]["metrics"])
            if one.state.succeeded
            else TrialOutcome({}, f"{one.id}: {one.reason}")
            for one in ends
        ]


def _table_of(trials: Sequence[Trial], by: ScoreOrder, sizes: TrialSizes) -> str:
    text = io.StringIO()
    writer = csv.writer(text, lineterminator="\n")
    writer.writerow(["model", "learning_rate", "features", "attributes", "epochs", by.metric, "ended"])
    for one in trials:
        attributes = " ".join(f"{name}={value}" for name, value in one.attributes.items())
        scores = " ".join(f"{score:.6g}" for score in one.scores)
        epochs = sizes.epochs_after(len(one.scores))
        writer.writerow([one.model, one.learning_rate, one.features, attributes, epochs, scores, one.ended])
    return text.getvalue()

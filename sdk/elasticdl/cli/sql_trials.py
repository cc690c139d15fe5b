"""Finds a model for a statement that names none: some are trained for a short time, and the better ones go on."""

from __future__ import annotations

import contextlib
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from pathlib import Path
from typing import Any

from elasticdl.cli.output import duration, print_table, write_line
from elasticdl.sql.choices import Trial
from elasticdl.sql.grammar import Statement, parse_statement
from elasticdl.sql.search import (
    LOWEST_PRIORITY,
    Halving,
    SearchPlan,
    TrialOutcome,
    feature_rows,
    plan_search,
    table_of,
)
from elasticdl_core.json_numbers import from_json
from elasticdl_runtime import durable

TRIALS = "trials.csv"
"""The file in a model's folder that says what was tried."""
_WAIT_S = 24 * 3600.0

Run = Callable[[Mapping[str, Mapping[str, Any]]], list[TrialOutcome]]
"""Runs jobs, by what they try, side by side where there is room."""


def find_model(statement: Statement, source: str, models: Path, run: Run | None) -> Statement | None:
    """Compares models, and prints what is tried and how it went.

    Args:
        statement: one that names no model.
        source: the address of the database.
        models: the folder of the models.
        run: runs the trials; None if they are only to be shown.

    Returns:
        The statement that trains the best one on all rows; None for a dry run.

    Raises:
        InvalidInputError: rows or label cannot be learned, with the place in the statement.
        ElasticDLError: no trial succeeded.
    """
    with _scratch(None if run is None else models / statement.into) as scratch:
        plan = plan_search(statement, source, scratch)
        print_table(("COLUMN", "HOLDS", "FEATURES"), feature_rows(plan.choices), empty="")
        if run is None:
            for trial, texts in zip(plan.trials, plan.texts, strict=True):
                write_line(f"\n-- {trial}\n{texts[0]};")
            return None
        text = search(plan, scratch, run)
        durable.write(models / statement.into / TRIALS, table_of(plan))
    write_line(f"{models / statement.into / TRIALS} has what was tried")
    return parse_statement(text)


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


def search(plan: SearchPlan, folder: Path, run: Run) -> str:
    """Runs the rounds of a search; returns the statement that trains the best model on all rows.

    Raises:
        ElasticDLError: no model could be trained.
    """
    write_line(beginning(plan.sizes, plan.minibatch_size, plan.order.metric))
    (folder / "zoo").mkdir()
    for at, module in enumerate(plan.modules):
        durable.write(folder / "zoo" / f"trial_{at}.py", module)
    halving, best = Halving(plan.trials, plan.order), None
    while best is None:
        started, number, left = time.monotonic(), halving.number, halving.left
        jobs = {str(plan.trials[at]): _round(plan, at, folder, number) for at in left}
        for at, outcome in zip(left, run(jobs), strict=True):
            halving.note(at, outcome)
        ranked, best = halving.conclude()
        show_round(ranked, number, plan.order.metric)
        write_line(f"round {number + 1}: {plan.epochs[number]} epochs, {duration(time.monotonic() - started)}")
    write_line(f"{best} is trained on all rows")
    return plan.texts[plan.trials.index(best)][halving.best_round(best)]


def beginning(sizes: Mapping[str, int], minibatch_size: int, metric: str) -> str:
    """The line of what models are compared by."""
    return (
        f"{sizes['trained']:,} rows to train on, {sizes['held']:,} held out; {minibatch_size} records an update; "
        f"compared by {metric}"
    )


def show_round(ranked: Sequence[Trial], number: int, metric: str) -> None:
    """Prints the models of a round, the best first."""
    rows = [
        (
            str(at),
            str(one),
            f"{one.scores[number]:.4f}",
            "" if one.ended and len(one.scores) == number + 1 else "goes on",
        )
        for at, one in enumerate(ranked, 1)
    ]
    print_table(("#", "MODEL", metric.upper(), ""), rows, empty="")


def _round(plan: SearchPlan, at: int, folder: Path, number: int) -> dict[str, Any]:
    """The specification of a model's job in a round."""
    places = {
        "model_zoo": str(folder / "zoo"),
        "training_data": str(folder / plan.parts["trained"]),
        "validation_data": str(folder / plan.parts["held"]),
        "checkpoint_dir": str(folder / f"checkpoints-{at}-{number}"),
        "output": str(folder / f"output-{at}-{number}"),
        "export_formats": "",  # nobody needs what a trial would export
    }
    if number:
        places["checkpoint_dir_for_init"] = str(folder / f"checkpoints-{at}-{number - 1}")
    return {**plan.fields[at], **places, "num_epochs": plan.epochs[number]}


def run_here(specs: Mapping[str, Mapping[str, Any]]) -> list[TrialOutcome]:
    """Runs jobs on this machine, one after the other."""
    from elasticdl.cli.local import run_each
    from elasticdl.submission import prepare

    found = []
    for tried, report in zip(specs, run_each([prepare(dict(spec)) for spec in specs.values()]), strict=True):
        done = report.get("event") == "done"
        metrics = from_json(report["metrics"]) if done else {}
        found.append(TrialOutcome(metrics, report.get("message", "it was killed")))
        write_line(f"trial {len(found)} of {len(specs)}: {tried}")
    return found


def run_on_the_cluster(specs: Mapping[str, Mapping[str, Any]]) -> list[TrialOutcome]:
    """Runs jobs on the cluster, which gives each what is free; a search that ends early cancels those that run."""
    from elasticdl.cli.connection import connect
    from elasticdl.submission import prepare

    with connect() as client:
        jobs: list[str] = []
        try:
            for tried, spec in specs.items():
                prepared = prepare({**spec, "priority": LOWEST_PRIORITY})
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

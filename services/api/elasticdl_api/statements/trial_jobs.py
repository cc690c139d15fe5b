"""Jobs of searches: their ids and specifications, and searches as they are shown."""

from __future__ import annotations

from typing import Any

from elasticdl.sql.choices import Trial
from elasticdl.sql.search import LOWEST_PRIORITY, ROUNDS, Halving, feature_rows
from elasticdl_api.services import Services
from elasticdl_api.store.jobs import draw_id
from elasticdl_api.store.searches import StoredSearch

ROWS = "rows"
"""The folder of a job's folder that has the rows of its statement."""
SEARCH_LABEL = "search"
"""The label of trials that names their search."""


def halving_of(search: StoredSearch) -> Halving:
    """The rounds of a search, as far as they are."""
    return Halving(search.plan.trials, search.plan.order, search.number)


def draw_jobs(search: StoredSearch) -> None:
    """Draws the ids of the jobs of a round, which are kept before the first of them is made."""
    plan = search.plan
    search.jobs = search.jobs or [[] for _ in plan.trials]
    search.submitted = False
    for at in halving_of(search).left:
        search.jobs[at].append(draw_id(plan.fields[at]["name"]))


def job_fields(api: Services, search: StoredSearch, job_id: str, at: int, number: int | None) -> dict[str, Any]:
    """The specification of a model's job in a round, or, without a number, of the one that trains it on all rows."""
    plan = search.plan
    rows = api.settings.job_dir(job_id) / ROWS
    fields = {**plan.fields[at], "model_bundle": search.bundle}
    if number is None:
        rounds = ROUNDS if search.chosen is None else search.chosen[1] + 1
        name = fields["name"].removesuffix("-trial")
        whole = {"training_data": str(rows / plan.parts["whole"]), "num_epochs": sum(plan.epochs[:rounds])}
        return {**fields, **whole, "name": name, "model_def": "model.forward"}
    return {
        **fields,
        "training_data": str(rows / plan.parts["trained"]),
        "validation_data": str(rows / plan.parts["held"]),
        "num_epochs": plan.epochs[number],
        "export_formats": "",  # nobody needs what a trial would export
        "priority": LOWEST_PRIORITY,
        "labels": {SEARCH_LABEL: search.job_id},
    }


def shown_search(search: StoredSearch) -> dict[str, Any]:
    """The fields of ``StatementResponse`` of a search."""
    plan = search.plan
    return {
        "statement": search.text,
        "verb": "TRAIN",
        "model": search.model,
        "source": search.source,
        "job_id": search.job_id,
        "rows": plan.sizes["whole"],
        "columns": plan.columns,
        "classes": plan.classes,
        "target": search.model,
        "spec": {},
        "module": "",
        "search": told_of(search),
    }


def told_of(search: StoredSearch) -> dict[str, Any]:
    """The fields of ``ModelSearch``."""
    plan = search.plan
    return {
        "state": search.state,
        "round": search.number + 1,
        "epochs": plan.epochs,
        "minibatch_size": plan.minibatch_size,
        "trained_rows": plan.sizes["trained"],
        "held_rows": plan.sizes["held"],
        "metric": plan.order.metric,
        "features": [list(one) for one in feature_rows(plan.choices)],
        "statements": [texts[0] for texts in plan.texts],
        "jobs": [list(one) for one in search.jobs],
        "error": search.error,
    }


def trial_rows(search: StoredSearch) -> tuple[list[str], list[list[Any]]]:
    """The models as a table, those that came furthest first: why each ended is in the last column."""
    plan = search.plan

    def place(trial: Trial) -> tuple[Any, ...]:
        scores = trial.scores
        best = -plan.order.sign * scores[-1] if scores else 0.0
        return trial.ended != "the best one", -len(scores), best

    rows = []
    for one in sorted(plan.trials, key=place):
        given = ", ".join(
            f"{name} {value}" for name, value in {"learning_rate": one.learning_rate, **one.attributes}.items()
        )
        score = one.scores[-1] if one.scores else None
        rows.append([one.model, given, one.features, sum(plan.epochs[: len(one.scores)]), score, one.ended])
    return ["model", "with", "features", "epochs", plan.order.metric, "ended"], rows

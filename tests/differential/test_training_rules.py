"""One set of training rules: the same module by ``--local`` and by a cluster of one worker, event by event.

What happened is compared: at which model versions there were evaluations, why training ended, what was exported; or
with which words it was refused. The master, its queue, the parameter servers and the worker are the real ones.
"""

from __future__ import annotations

import json
from dataclasses import replace
from typing import Any

import pytest

from tests.differential.data import validated
from tests.differential.driver import Bench, Outcome, Row, differences, read_weights
from tests.differential.rows.torch_models import module_of
from tests.differential.zoo import module
from tests.fakes.frameworks import NEEDS_TORCH

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]
OURS = "from elasticdl.callbacks import EarlyStopping, LearningRateScheduler, MaxStepsStopping, SavedModelExporter"
METRIC = "def eval_metrics_fn():\n    return {'error': keras.metrics.MeanAbsoluteError()}"
NOTHING = """
    def feed(dataset, mode, metadata):
        kept = dataset.map(parse).filter(lambda record: record["x"][0] > 1e9)
        return kept.map(lambda record: (record["x"], record["y"]))
"""
# An epoch has six minibatches, a task three: evaluations come after exactly these updates.
STEPS = {"evaluation_steps": 3, "num_minibatches_per_task": 3, "num_epochs": 4}


def rules(name: str, callbacks: str, **spec: object) -> Row:
    """A row with callbacks and options that rules follow from."""
    source = module(OURS, METRIC, f"def callbacks():\n    return [{callbacks}]")
    return Row(f"rules_{name}", source, "callbacks", spec=spec, data=validated)


TRAINED = [
    (rules("limit_within_an_epoch", "MaxStepsStopping(17)", max_steps=20, num_epochs=4), (6, 12, 17)),
    (rules("limit_with_the_last_record", "MaxStepsStopping(24)", num_epochs=4), (6, 12, 18, 24)),
    (rules("steps", "EarlyStopping('error', patience=99)", **STEPS), (3, 6, 9, 12, 15, 18, 21, 24)),
    (rules("no_improvement", "EarlyStopping('val_error', patience=2, min_delta=99.0)", **STEPS), (3, 6, 9)),
    (rules("no_export_but_the_callback", "SavedModelExporter()", export_formats=""), (6, 12)),
]
REFUSED = [
    rules("a_metric_that_never_appears", "EarlyStopping('val_acuracy', patience=3)"),
    rules("two_rules", "EarlyStopping('error', patience=3), EarlyStopping('loss', patience=3)"),
    Row("rules_nothing_is_fed", module(NOTHING), "feeds"),
]


@pytest.mark.parametrize(("row", "evaluated"), TRAINED, ids=[row.name for row, _ in TRAINED])
def test_the_same_happens(bench: Bench, row: Row, evaluated: tuple[int, ...]) -> None:
    local, cluster = bench.local(row), bench.cluster(row, workers=1)
    assert local.error == cluster.error == ("", "")
    assert local.history == cluster.history
    assert tuple(version for what, version in local.history if what == "evaluated") == evaluated
    if "no_export" in row.name:
        assert any("saved_model" in name for name in dict(local.history)["exported"])
    assert (local.steps, local.records) == (cluster.steps, cluster.records)


@pytest.mark.parametrize("row", REFUSED, ids=lambda row: row.name)
def test_the_same_is_refused(bench: Bench, row: Row) -> None:
    local, cluster = bench.local(row), bench.cluster(row, workers=1)
    assert local.error[0]
    assert (local.error[0] in cluster.error[0], local.error[1]) == (True, cluster.error[1])


RATES = "def callbacks():\n    return [LearningRateScheduler(lambda version: 0.05 if version < 12 else 0.0)]"
KEPT = [
    # Of equal evaluations the first stays; of the largest errors the first is larger than all that follow.
    (Row("best_of_equal_ones", module(OURS, METRIC, RATES), "callbacks", data=validated), "error:min", 12, 12),
    (Row("best_is_the_first", module(METRIC), "callbacks", data=validated), "error:max", 6, 3),
]


@pytest.mark.parametrize(("row", "keep_best", "version", "of_two"), KEPT, ids=[row.name for row, *_ in KEPT])
def test_the_model_of_the_best_evaluation_is_kept(
    bench: Bench, row: Row, keep_best: str, version: int, of_two: int
) -> None:
    """Its export is the model that plain training has there, whoever trained it.

    Two synchronous workers make half of the updates in an epoch.
    """
    fields: dict[str, Any] = {"keep_best": keep_best, "num_epochs": 4, "keep_checkpoint_max": 1}
    there = bench.local(row, num_epochs=4, max_steps=version)
    ways = {
        "local": bench.local(row, **fields),
        "servers": bench.cluster(row, workers=1, **fields),
        "group": bench.group(row, **fields),
    }
    for way, outcome in ways.items():
        _check_best(way, row, outcome, there, version)
    alike = bench.local(row, alike=True, num_epochs=4, max_steps=of_two)
    two = {"use_async": False, "grads_to_wait": 2, **fields, "num_epochs": 8}
    _check_best("two", row, bench.cluster(row, workers=2, alike=True, **two), alike, of_two)


@NEEDS_TORCH
def test_the_model_of_the_best_evaluation_is_kept_in_pytorch(bench: Bench) -> None:
    """The rate is 0 from the third epoch on: of the equal evaluations after it the first stays."""
    source = module_of(
        """
        def eval_metrics_fn():
            return {"error": lambda labels, predictions: (labels - predictions).abs()}

        def optimizer():
            schedule = functools.partial(lr_scheduler.LambdaLR, lr_lambda=lambda step: 1.0 if step < 12 else 0.0)
            return functools.partial(torch.optim.SGD, lr=0.05), schedule
        """
    )
    spec = {"export_formats": "safetensors"}
    row = Row("best_torch", source, "callbacks", spec, data=validated, tolerance=1e-5)
    fields: dict[str, Any] = {"keep_best": "error:min", "num_epochs": 3, "keep_checkpoint_max": 1}
    there = bench.local(row, num_epochs=3, max_steps=12)
    ways = {
        "local": bench.local(row, **fields),
        "servers": bench.cluster(row, workers=1, **fields),
        "group": bench.group(row, **fields),
    }
    for way, outcome in ways.items():
        _check_best(way, row, outcome, there, 12, "model.safetensors")


def _check_best(
    way: str, row: Row, outcome: Outcome, there: Outcome, version: int, file: str = "model.keras"
) -> None:
    assert outcome.error == ("", ""), way
    folder = outcome.output / "best" if way == "local" else outcome.output.parent / "best"
    assert differences(row, there, replace(there, weights=read_weights(folder))) == [], way
    assert {file, f"best/{file}"} <= set(dict(outcome.history)["exported"]), way
    kept = [json.loads(path.read_text()) for path in outcome.checkpoints.glob("*/manifest.json")]
    assert [(one["version"], one["best"]["version"]) for one in kept if one["best"]] == [(version, version)], way
    assert {one["version"] for one in kept} == {version, outcome.steps}, way

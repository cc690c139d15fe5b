"""One set of training rules: the same module by ``--local`` and by a cluster of one worker, event by event.

What happened is compared: at which model versions there were evaluations, why training ended, what was exported; or
with which words it was refused. The master, its queue, the parameter servers and the worker are the real ones.
"""

from __future__ import annotations

import pytest

from tests.differential.data import validated
from tests.differential.driver import Bench, Row
from tests.differential.zoo import module

pytestmark = [pytest.mark.integration, pytest.mark.timeout(600), pytest.mark.filterwarnings("ignore")]
OURS = "from elasticdl.callbacks import EarlyStopping, MaxStepsStopping, SavedModelExporter"
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

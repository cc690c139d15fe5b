"""Rows about callbacks: ours, those of Keras that are translated, and those that are refused."""

from __future__ import annotations

from tests.differential.data import validated
from tests.differential.driver import Row
from tests.differential.zoo import module

OURS = "from elasticdl.callbacks import EarlyStopping, LearningRateScheduler, MaxStepsStopping, SavedModelExporter"
METRIC = "def eval_metrics_fn():\n    return {'error': keras.metrics.MeanAbsoluteError()}"


def ours(name: str, callback: str, *parts: str, **more: object) -> Row:
    """A row with a callback of ``elasticdl.callbacks``."""
    source = module(OURS, *parts, f"def callbacks():\n    return [{callback}]")
    return Row(name, source, "callbacks", **more)  # type: ignore[arg-type]


def theirs(name: str, callback: str, *parts: str, **more: object) -> Row:
    """A row with a callback of Keras."""
    source = module(*parts, f"def callbacks():\n    return [keras.callbacks.{callback}]")
    return Row(name, source, "callbacks", **more)  # type: ignore[arg-type]


def refused(name: str, callback: str, words: str) -> Row:
    """A row with a callback of Keras that nobody would act upon."""
    return theirs(name, callback, refused=words, data=validated)


LONG = {"num_epochs": 8}

ROWS = []

"""Training rules that the callbacks of a model module ask for, in the terms of ``elasticdl_core.training_rules``."""

from __future__ import annotations

from collections.abc import Iterable, Sequence

from elasticdl import callbacks as declared
from elasticdl_core.best_evaluation import BestEvaluation
from elasticdl_core.early_stopping import EarlyStoppingCounter
from elasticdl_core.errors import UserCodeError
from elasticdl_core.training_rules import DeclaredRules
from elasticdl_worker.user_code import ModelModule

LIST_OF_CALLBACKS = "return a list of callbacks, e.g. [elasticdl.callbacks.EarlyStopping()]"


def given_callbacks(module: ModelModule) -> list[object]:
    """The callbacks that the entry ``callbacks`` of a module gives; empty if there is none, or it gives None.

    Raises:
        UserCodeError: it raised, or gave no list.
    """
    if module.callbacks is None:
        return []
    with module.guard("callbacks"):
        given: object = module.callbacks()
    if given is None:
        return []
    if isinstance(given, str | bytes | dict) or not isinstance(given, Iterable):
        raise UserCodeError(f"callbacks() returned a {type(given).__name__}", fix=LIST_OF_CALLBACKS)
    return list(given)


def declared_rules(callbacks: Sequence[declared.Callback]) -> DeclaredRules:
    """The rules that callbacks declare; of several limits of updates the least holds.

    Raises:
        UserCodeError: they declare more than one rule of early stopping, or of the best evaluation.
    """
    limits = [one.max_steps for one in callbacks if isinstance(one, declared.MaxStepsStopping)]
    saved_model = any(isinstance(one, declared.SavedModelExporter) for one in callbacks)
    return DeclaredRules(min(limits, default=0), _early_stopping(callbacks), saved_model, _keep_best(callbacks))


def _keep_best(callbacks: Sequence[declared.Callback]) -> BestEvaluation | None:
    asked: list[declared.KeepBest | declared.EarlyStopping] = []
    asked += [one for one in callbacks if isinstance(one, declared.KeepBest)]
    asked += [one for one in callbacks if isinstance(one, declared.EarlyStopping) and one.restore_best_weights]
    found = {BestEvaluation(one.monitor.removeprefix("val_"), one.mode, abs(one.min_delta)) for one in asked}
    if len(found) > 1:
        raise UserCodeError(
            f"callbacks() keeps the best model by {' and by '.join(sorted(repr(one.monitor) for one in found))}",
            fix="let them watch one metric, with one mode and one min_delta",
        )
    return next(iter(found), None)


def _early_stopping(callbacks: Sequence[declared.Callback]) -> EarlyStoppingCounter | None:
    found = [callback for callback in callbacks if isinstance(callback, declared.EarlyStopping)]
    if len(found) > 1:
        raise UserCodeError(
            f"callbacks() has {len(found)} EarlyStopping, on {', '.join(repr(one.monitor) for one in found)}",
            fix="keep one of them",
        )
    if not found:
        return None
    one = found[0]
    return EarlyStoppingCounter(one.monitor, one.patience, one.mode, abs(one.min_delta))

"""The rules of training that ``--local`` and the master share."""

from __future__ import annotations

import math
from typing import Any

import pytest

from elasticdl_core.best_evaluation import BestEvaluation
from elasticdl_core.early_stopping import EarlyStoppingCounter
from elasticdl_core.errors import InvalidInputError, SpecError, UserCodeError
from elasticdl_core.job import JobSpec
from elasticdl_core.job.fields import ALL_REDUCE
from elasticdl_core.training_rules import DeclaredRules, TrainingRules, check_trained, export_formats, success_reason

pytestmark = pytest.mark.unit


def spec(**fields: Any) -> JobSpec:
    base = {"model_zoo": "zoo", "model_def": "a.f", "training_data": "data", "validation_data": "more"}
    return JobSpec.from_mapping(base | fields)


@pytest.mark.parametrize(("asked", "declared", "limit"), [(0, 0, 0), (7, 0, 7), (0, 5, 5), (7, 5, 5), (5, 7, 5)])
def test_the_least_limit_of_updates_holds(asked: int, declared: int, limit: int) -> None:
    rules = TrainingRules.of(spec(max_steps=asked), DeclaredRules(max_steps=declared))
    assert rules.max_steps == limit
    assert rules.why_over(max(limit - 1, 0)) == ""
    assert rules.why_over(limit) == (f"max_steps reached: {limit} updates" if limit else "")


def test_an_evaluation_is_due_after_each_multiple_of_its_steps_once() -> None:
    rules = TrainingRules.of(spec(evaluation_steps=4), DeclaredRules())
    evaluated, due = -1, []
    for updates in (0, 3, 4, 4, 7, 13, 15, 16):  # with several workers a heartbeat tells of several updates
        if rules.evaluation_due(updates, evaluated):
            due.append(updates)
            evaluated = updates
    assert due == [4, 13, 16]


def test_early_stopping_without_validation_data_is_refused() -> None:
    blind = TrainingRules.of(spec(validation_data=""), DeclaredRules(early_stopping=EarlyStoppingCounter("loss", 1)))
    with pytest.raises(UserCodeError, match="has no validation data"):
        blind.check()


def test_a_callback_adds_a_saved_model_to_whatever_is_asked_for() -> None:
    exporter = DeclaredRules(saved_model=True)
    assert TrainingRules.of(spec(export_formats=""), exporter).export_formats == ("saved_model",)
    assert TrainingRules.of(spec(export_formats="keras"), exporter).export_formats == ("keras", "saved_model")
    assert export_formats(["saved_model", "keras"], exporter) == ("saved_model", "keras")
    assert TrainingRules.of(spec(export_formats=""), DeclaredRules()).export_formats == ()


def test_a_job_that_does_not_train_has_no_rules_of_training() -> None:
    evaluation = spec(type="evaluation", training_data="", checkpoint_dir_for_init="somewhere")
    rules = TrainingRules.of(
        evaluation, DeclaredRules(max_steps=3, early_stopping=EarlyStoppingCounter("no such", 1))
    )
    rules.check()
    assert rules.why_over(9) == rules.observe({"loss": 1.0}) == ""


def test_what_a_worker_declares_its_master_reads() -> None:
    for declared in (DeclaredRules(), DeclaredRules(5, EarlyStoppingCounter("a", 3, "max", 0.5), saved_model=True)):
        assert DeclaredRules.from_mapping(declared.to_mapping()) == declared
    assert DeclaredRules.from_mapping({}) == DeclaredRules()


NAN = {"of": "main", "reason": "nan", "records": 8}
CORRUPT = {"of": "main", "reason": "corrupt", "records": 2}
UNKNOWN = {"of": "main", "reason": "corrupt", "records": None}
VALIDATION = {"of": "validation", "reason": "corrupt", "records": 2}
LIMIT = "max_steps reached: 5 updates"
LEFT = f"{LIMIT}; 40 of 80 records were left out on purpose"


@pytest.mark.parametrize(
    ("stopped", "done", "skipped", "reason"),
    [
        ("", 80, [], "every record was processed"),
        ("", 80, [NAN], "all records were processed, but for those that were passed over"),
        (LIMIT, 40, [], LEFT),
        (LIMIT, 80, [], "every record was processed"),
        (LIMIT, 80, [NAN], "all records were processed, but for those that were passed over"),
        (LIMIT, 40, [NAN, CORRUPT], f"{LEFT}, and 10 were passed over"),
        (LIMIT, 40, [UNKNOWN], f"{LEFT}, and some were passed over"),
        (
            LIMIT,
            40,
            [UNKNOWN, NAN],
            f"{LEFT}, and more than 8 were passed over",
        ),
        (
            LIMIT,
            40,
            [VALIDATION],
            f"{LEFT}, and records of the validation data were passed over",
        ),
    ],
)
def test_the_reason_tells_of_the_end_and_of_what_was_passed_over(
    stopped: str, done: int, skipped: list[dict[str, Any]], reason: str
) -> None:
    assert success_reason(stopped, done, 80, skipped) == reason


def test_a_job_that_made_no_update_is_no_success() -> None:
    check_trained(0, 0)
    check_trained(96, 1)
    with pytest.raises(UserCodeError, match="none of the 96 records"):
        check_trained(96, 0)


@pytest.mark.parametrize(
    ("text", "monitor", "mode"),
    [
        ("auc", "auc", "max"),
        ("val_loss", "val_loss", "min"),
        ("clicks.binary_accuracy", "clicks.binary_accuracy", "max"),
        ("mean_absolute_error", "mean_absolute_error", "min"),
        ("score:max", "score", "max"),
        ("a:b:min", "a:b", "min"),
        ("auc:min", "auc", "min"),
    ],
)
def test_what_is_the_best_is_known_of_some_names_and_said_of_others(text: str, monitor: str, mode: str) -> None:
    assert BestEvaluation.parse(text) == BestEvaluation(monitor, mode)


@pytest.mark.parametrize("text", ["score", "auc:high", ":max", "score:"])
def test_a_job_that_does_not_say_what_is_the_best_is_refused(text: str) -> None:
    with pytest.raises(InvalidInputError, match="does not say of which metric"):
        BestEvaluation.parse(text)


def test_of_equal_evaluations_the_first_is_the_best_and_nan_never_is() -> None:
    rule, best = BestEvaluation("val_auc", "max"), None
    kept = []
    for number, value in enumerate([math.nan, 0.5, 0.5, 0.25, None, 0.75, 0.75], start=1):
        better = rule.improved({"auc": value, "loss": 1.0}, best)
        if better is not None:
            best = rule.mark(better, 10 * number, number)
            kept.append(number)
    assert kept == [2, 6]
    assert rule.improved({}, best) is None, "an evaluation without records"
    assert BestEvaluation("auc", "max", 0.2).improved({"auc": 0.9}, best) is None, "it is no larger than min_delta"
    with pytest.raises(UserCodeError, match=r"watches 'val_auc', but the evaluation gives \['loss'\]"):
        rule.check_names(["loss"])
    BestEvaluation("scores[1]", "max").check_names(["loss", "scores"])


def test_a_job_and_its_callbacks_must_not_call_different_evaluations_the_best() -> None:
    asked = spec(keep_best="auc")
    assert TrainingRules.of(asked, DeclaredRules()).keep_best == BestEvaluation("auc", "max")
    declared = DeclaredRules(keep_best=BestEvaluation("loss", "min"))
    assert DeclaredRules.from_mapping(declared.to_mapping()) == declared
    with pytest.raises(UserCodeError, match="--keep_best auc, but callbacks"):
        TrainingRules.of(asked, declared)
    with pytest.raises(UserCodeError, match="no validation data"):
        TrainingRules.of(spec(validation_data=""), declared).check()


def test_the_best_is_refused_without_validation_data_and_for_scripts() -> None:
    with pytest.raises(SpecError, match="keep_best: the best model is that of an evaluation"):
        spec(keep_best="auc", validation_data="")
    with pytest.raises(SpecError, match="keep_best: a script does that itself"):
        spec(keep_best="auc", model_def="m.__main__", framework="torch", distribution_strategy=ALL_REDUCE)

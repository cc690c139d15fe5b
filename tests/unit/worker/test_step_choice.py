"""The choice between the plain step and the one of XLA, on timings given by hand."""

from __future__ import annotations

import pytest
from structlog.testing import capture_logs

from elasticdl_core.errors import SpecError
from elasticdl_core.job import JobSpec
from elasticdl_worker.trainers.on_servers.remaining_steps import RemainingSteps
from elasticdl_worker.trainers.tensorflow.step.step_choice import (
    LEAST_REMAINING_S,
    TRIAL_STEPS,
    WATCHED_S,
    WATCHED_STEPS,
    StepChoice,
    StepKind,
)

pytestmark = pytest.mark.unit
LONG_STEP_S = WATCHED_S / WATCHED_STEPS + 0.001


def watched(choice: StepChoice, seconds: float = LONG_STEP_S) -> StepChoice:
    for _ in range(WATCHED_STEPS):
        assert choice.choose() is StepKind.PLAIN
        choice.record(StepKind.PLAIN, seconds)
    return choice


def tried(choice: StepChoice, plain: float, xla: float) -> list[StepKind]:
    ran = []
    while choice.settled is None:
        ran.append(choice.choose())
        choice.record(ran[-1], plain if ran[-1] is StepKind.PLAIN else xla)
    return ran


@pytest.mark.parametrize(("mode", "kind"), [("on", StepKind.XLA), ("off", StepKind.PLAIN)])
def test_a_fixed_mode_is_settled_whatever_the_timings(mode: str, kind: StepKind) -> None:
    choice = StepChoice(mode)
    for _ in range(2 * WATCHED_STEPS):
        assert choice.choose() is kind
        choice.record(kind, LONG_STEP_S)
    assert choice.settled is kind


def test_the_faster_step_is_kept_and_both_numbers_are_logged() -> None:
    choice = watched(StepChoice("auto"))
    with capture_logs() as logs:
        ran = tried(choice, plain=0.0031, xla=0.0019)
    assert choice.settled is choice.choose() is StepKind.XLA
    assert ran == [StepKind.XLA, StepKind.PLAIN] * TRIAL_STEPS
    assert [entry["event"] for entry in logs] == ["compiled step: plain 3.1 ms, XLA 1.9 ms: XLA"]


@pytest.mark.parametrize("xla", [0.004, 0.0030], ids=["slower", "hardly faster"])
def test_plain_is_kept_unless_xla_clearly_wins(xla: float) -> None:
    choice = watched(StepChoice("auto"))
    tried(choice, plain=0.0031, xla=xla)
    assert choice.settled is choice.choose() is StepKind.PLAIN


def test_single_slow_steps_do_not_decide() -> None:
    choice = watched(StepChoice("auto"))
    for number in range(TRIAL_STEPS):
        choice.record(StepKind.XLA, 5.0 if number < 5 else 0.001)
        choice.record(StepKind.PLAIN, 0.002)
    assert choice.settled is StepKind.XLA


def test_short_steps_are_watched_for_longer() -> None:
    """Three hundred steps of a millisecond are no reason to compile for seconds."""
    choice = watched(StepChoice("auto"), 0.001)
    steps = WATCHED_STEPS
    while choice.choose() is StepKind.PLAIN:
        choice.record(StepKind.PLAIN, 0.001)
        steps += 1
    assert steps == pytest.approx(WATCHED_S / 0.001, abs=1)


@pytest.mark.parametrize(("seconds_left", "tries"), [(0.5, False), (2.0, True)])
def test_xla_is_not_tried_shortly_before_the_end(seconds_left: float, tries: bool) -> None:
    remaining = int(seconds_left * LEAST_REMAINING_S / LONG_STEP_S)
    choice = watched(StepChoice("auto", lambda: remaining))
    assert (choice.choose() is StepKind.XLA) == tries
    assert (choice.settled is None) == tries


def test_a_compilation_is_not_timed_and_xla_stays_due() -> None:
    choice = watched(StepChoice("auto"))
    assert choice.choose() is StepKind.XLA  # compiles: no record
    assert choice.choose() is StepKind.XLA


@pytest.mark.parametrize(("mode", "level"), [("on", "warning"), ("auto", "info")])
def test_a_failure_means_plain_and_names_the_reason(mode: str, level: str) -> None:
    choice = StepChoice(mode) if mode == "on" else watched(StepChoice(mode))
    with capture_logs() as logs:
        choice.disable_xla("no kernel for strings")
        choice.disable_xla("again")
    assert choice.settled is choice.choose() is StepKind.PLAIN
    assert [(entry["log_level"], entry["reason"]) for entry in logs] == [(level, "no kernel for strings")]


def test_the_horizon_is_unknown_in_the_first_epoch_and_counts_down_in_later_ones() -> None:
    remaining_steps = RemainingSteps(num_epochs=3)
    assert remaining_steps.estimate() is None
    for version in range(10):
        remaining_steps.record(0, version)
    assert remaining_steps.estimate() is None
    remaining_steps.record(1, 10)
    assert remaining_steps.estimate() == 2 * 10 - 1
    for version in range(11, 20):
        remaining_steps.record(1, version)
    remaining_steps.record(2, 20)
    assert remaining_steps.estimate() == 9


def test_the_horizon_of_a_worker_that_came_late_waits_for_a_whole_epoch() -> None:
    remaining_steps = RemainingSteps(num_epochs=9)
    remaining_steps.record(3, 0)
    remaining_steps.record(4, 1)
    remaining_steps.record(4, 2)
    assert remaining_steps.estimate() is None
    remaining_steps.record(5, 3)
    assert remaining_steps.estimate() == 2 * 4 - 1


def test_the_horizon_ends_at_the_limit_of_updates() -> None:
    remaining_steps = RemainingSteps(num_epochs=100, max_steps=50)
    assert remaining_steps.estimate() == 50
    remaining_steps.record(0, 42)
    assert remaining_steps.estimate() == 8
    remaining_steps.record(0, 60)
    assert remaining_steps.estimate() == 0


def test_an_unknown_mode_is_refused() -> None:
    base = {"model_def": "m.f", "model_zoo": "/zoo", "training_data": "/data"}
    assert JobSpec.from_mapping(base).xla == "auto"
    assert JobSpec.from_mapping(base | {"xla": "on"}).xla == "on"
    with pytest.raises(SpecError) as caught:
        JobSpec.from_mapping(base | {"xla": "yes"})
    assert [problem.field for problem in caught.value.problems] == ["xla"]

"""The rules of a job's life, against the table of legal transitions."""

from __future__ import annotations

import itertools

import pytest

from elasticdl_core.job.life import (
    ACTIVE_STATES,
    ADMITTED_STATES,
    LEGAL_TRANSITIONS,
    LIVE_STATES,
    REPORTED_STATES,
    SCHEDULABLE_STATES,
    TERMINAL_STATES,
    Desired,
    JobRequest,
    JobState,
    desired_of_master,
    desired_on_entering,
    outcome_of,
    state_after_report,
    state_without_master,
)

pytestmark = pytest.mark.unit


def _reachable(state: JobState) -> set[JobState]:
    found = {state}
    todo = [state]
    while todo:
        for following in LEGAL_TRANSITIONS[todo.pop()] - found:
            found.add(following)
            todo.append(following)
    return found


def test_kinds_of_states_nest() -> None:
    assert ADMITTED_STATES < ACTIVE_STATES < LIVE_STATES
    assert ADMITTED_STATES | {JobState.QUEUED} == SCHEDULABLE_STATES
    assert frozenset(JobState) == LIVE_STATES | TERMINAL_STATES
    assert not LIVE_STATES & TERMINAL_STATES


@pytest.mark.parametrize("state", sorted(LIVE_STATES))
def test_every_live_job_can_be_cancelled_for_good(state: JobState) -> None:
    outcome = outcome_of(JobRequest.CANCEL, state)
    assert outcome is not None
    assert JobState.CANCELLED in _reachable(outcome.to or state)


@pytest.mark.parametrize(("request_", "state"), list(itertools.product(JobRequest, JobState)))
def test_a_request_is_a_legal_step_or_a_word_to_the_master_or_refused(request_: JobRequest, state: JobState) -> None:
    outcome = outcome_of(request_, state)
    if outcome is None:
        return
    assert outcome.to is None or outcome.desired is None
    if outcome.to is not None:
        assert outcome.to in LEGAL_TRANSITIONS[state]
        again = outcome_of(request_, outcome.to)
        assert again is not None, "asking twice is asking once"
        assert again.to is None
        assert again.desired is None
    if outcome.desired is not None:
        assert state.admitted, "only an admitted job's master carries requests out"


@pytest.mark.parametrize("request_", JobRequest)
def test_only_a_cancellation_can_be_asked_of_a_job_that_is_over(request_: JobRequest) -> None:
    answered = {state for state in TERMINAL_STATES if outcome_of(request_, state) is not None}
    assert answered == ({JobState.CANCELLED} if request_ is JobRequest.CANCEL else set())


@pytest.mark.parametrize(
    ("state", "desired", "reported"), list(itertools.product(sorted(ACTIVE_STATES), Desired, sorted(REPORTED_STATES)))
)
def test_what_a_master_reports(state: JobState, desired: Desired, reported: JobState) -> None:
    entered = state_after_report(state, desired, reported)
    if state is JobState.CANCELLING:
        assert entered is (JobState.CANCELLING if reported is JobState.RUNNING else JobState.CANCELLED)
    elif (reported, desired) == (JobState.QUEUED, Desired.SUSPEND):
        assert entered is JobState.SUSPENDED
    else:
        assert entered is reported


def test_a_master_that_was_told_to_stop_reports_a_legal_state() -> None:
    for state, desired in itertools.product(ADMITTED_STATES, Desired):
        if desired.stopped_state is not None and desired is not Desired.CANCEL:
            assert state_after_report(state, desired, desired.stopped_state) in LEGAL_TRANSITIONS[state]


@pytest.mark.parametrize("desired", Desired)
def test_masters_of_stopped_jobs_are_told_what_stopped_them(desired: Desired) -> None:
    assert desired_of_master(JobState.RUNNING, desired) is desired
    if desired.stopped_state is not None:
        assert desired_of_master(desired.stopped_state, Desired.RUN) is desired


@pytest.mark.parametrize("state", sorted(TERMINAL_STATES | {JobState.CANCELLING}))
def test_masters_of_jobs_that_are_over_are_told_to_cancel(state: JobState) -> None:
    assert desired_of_master(state, Desired.RUN) is Desired.CANCEL


def test_a_job_that_is_queued_again_is_wanted_again() -> None:
    assert desired_on_entering(JobState.QUEUED) is Desired.RUN
    assert desired_on_entering(JobState.CANCELLING) is Desired.CANCEL
    assert desired_on_entering(JobState.CANCELLED) is Desired.CANCEL
    assert desired_on_entering(JobState.SUSPENDED) is Desired.SUSPEND
    assert desired_on_entering(JobState.RUNNING) is None


@pytest.mark.parametrize(
    ("state", "desired", "to"),
    [
        (JobState.CANCELLING, Desired.CANCEL, JobState.CANCELLED),
        (JobState.STARTING, Desired.SUSPEND, JobState.SUSPENDED),
        (JobState.STARTING, Desired.EVICT, JobState.QUEUED),
        (JobState.STARTING, Desired.RUN, None),
        (JobState.RUNNING, Desired.SUSPEND, None),
        (JobState.RUNNING, Desired.EVICT, None),
    ],
)
def test_a_job_that_lost_its_master(state: JobState, desired: Desired, to: JobState | None) -> None:
    assert state_without_master(state, desired) is to
    assert to is None or to in LEGAL_TRANSITIONS[state]

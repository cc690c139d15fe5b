"""The life of a job: its states, who may ask for what, and where a change leads. The only home of these rules.

Users ask (``JobRequest``), the scheduler admits and evicts, masters report, the watchdog concludes; all of them ask
this module what follows. The database refuses what is not in ``LEGAL_TRANSITIONS``.

    QUEUED ── admitted ──► STARTING ── first worker at work ──► RUNNING ── done ──► SUCCEEDED, SUCCEEDED_WITH_SKIPS
      ▲  ▲                   │                                    │
      │  └───── evicted ─────┴────────────────────────────────────┤
      └── resumed ── SUSPENDED ◄── suspended ─────────────────────┤
                                                                  ├── error ──► FAILED
                                                  CANCELLING ◄────┘
                                                       └── its master stopped ──► CANCELLED
"""

from __future__ import annotations

import enum
from collections.abc import Mapping
from dataclasses import dataclass


class JobState(enum.StrEnum):
    """States of a job."""

    QUEUED = "QUEUED"
    STARTING = "STARTING"
    RUNNING = "RUNNING"
    SUSPENDED = "SUSPENDED"
    CANCELLING = "CANCELLING"
    SUCCEEDED = "SUCCEEDED"
    SUCCEEDED_WITH_SKIPS = "SUCCEEDED_WITH_SKIPS"
    """All is done, but for records that were passed over as the job allowed."""
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def terminal(self) -> bool:
        """Whether the job has ended for good."""
        return not LEGAL_TRANSITIONS[self]

    @property
    def active(self) -> bool:
        """Whether a master owns the job: it holds the job's lease, or is being launched."""
        return self in (JobState.STARTING, JobState.RUNNING, JobState.CANCELLING)

    @property
    def admitted(self) -> bool:
        """Whether the scheduler has given the job workers; it may change their number or take them all away."""
        return self in (JobState.STARTING, JobState.RUNNING)

    @property
    def schedulable(self) -> bool:
        """Whether the scheduler decides about the job's workers: it has some, or waits for them."""
        return self is JobState.QUEUED or self.admitted

    @property
    def succeeded(self) -> bool:
        """Whether the job has done its work, with or without records that it passed over."""
        return self in (JobState.SUCCEEDED, JobState.SUCCEEDED_WITH_SKIPS)


LEGAL_TRANSITIONS: Mapping[JobState, frozenset[JobState]] = {
    JobState.QUEUED: frozenset(
        {JobState.STARTING, JobState.SUSPENDED, JobState.CANCELLING, JobState.CANCELLED, JobState.FAILED}
    ),
    JobState.STARTING: frozenset(
        {JobState.RUNNING, JobState.QUEUED, JobState.SUSPENDED, JobState.CANCELLING, JobState.FAILED}
    ),
    JobState.RUNNING: frozenset(
        {
            JobState.QUEUED,
            JobState.SUSPENDED,
            JobState.CANCELLING,
            JobState.SUCCEEDED,
            JobState.SUCCEEDED_WITH_SKIPS,
            JobState.FAILED,
        }
    ),
    JobState.SUSPENDED: frozenset({JobState.QUEUED, JobState.CANCELLING, JobState.CANCELLED}),
    JobState.CANCELLING: frozenset({JobState.CANCELLED}),
    JobState.SUCCEEDED: frozenset(),
    JobState.SUCCEEDED_WITH_SKIPS: frozenset(),
    JobState.FAILED: frozenset(),
    JobState.CANCELLED: frozenset(),
}
"""RUNNING/STARTING -> QUEUED is an eviction: the job waits for capacity again and resumes where it was."""

TERMINAL_STATES = frozenset(state for state in JobState if state.terminal)
LIVE_STATES = frozenset(JobState) - TERMINAL_STATES
"""States of jobs that are not over."""
ACTIVE_STATES = frozenset(state for state in JobState if state.active)
ADMITTED_STATES = frozenset(state for state in JobState if state.admitted)
SCHEDULABLE_STATES = frozenset(state for state in JobState if state.schedulable)
SUCCEEDED_STATES = frozenset(state for state in JobState if state.succeeded)


class Desired(enum.StrEnum):
    """States that are asked of a job's master."""

    RUN = "run"
    SUSPEND = "suspend"
    CANCEL = "cancel"
    EVICT = "evict"
    """The scheduler needs the slots: save, give them back, and wait for capacity again."""

    @property
    def stopped_state(self) -> JobState | None:
        """The state of a job whose master stopped because of this; None for ``run``, which asks for no stop."""
        return _STOPPED_STATES.get(self)

    @property
    def reason_to_stop(self) -> str:
        """Why a job's master stopped because of this, for people."""
        return "the scheduler needs its slots" if self is Desired.EVICT else f"{self} was asked for"


_STOPPED_STATES: Mapping[Desired, JobState] = {
    Desired.SUSPEND: JobState.SUSPENDED,
    Desired.EVICT: JobState.QUEUED,
    Desired.CANCEL: JobState.CANCELLED,
}


class JobRequest(enum.StrEnum):
    """Requests of a user to a job."""

    CANCEL = "cancel"
    SUSPEND = "suspend"
    RESUME = "resume"


@dataclass(frozen=True, slots=True)
class RequestOutcome:
    """The effect of a request; both are None where the job is already as it was asked to be.

    Attributes:
        to: the state that the job enters at once.
        desired: what its master is asked for, where the master has to carry the request out.
    """

    to: JobState | None = None
    desired: Desired | None = None


_ALREADY = RequestOutcome()
_OUTCOMES: Mapping[tuple[JobRequest, JobState], RequestOutcome] = {
    (JobRequest.CANCEL, JobState.QUEUED): RequestOutcome(to=JobState.CANCELLED),
    (JobRequest.CANCEL, JobState.SUSPENDED): RequestOutcome(to=JobState.CANCELLED),
    (JobRequest.CANCEL, JobState.STARTING): RequestOutcome(to=JobState.CANCELLING),
    (JobRequest.CANCEL, JobState.RUNNING): RequestOutcome(to=JobState.CANCELLING),
    (JobRequest.CANCEL, JobState.CANCELLING): _ALREADY,
    (JobRequest.CANCEL, JobState.CANCELLED): _ALREADY,
    (JobRequest.SUSPEND, JobState.QUEUED): RequestOutcome(to=JobState.SUSPENDED),
    (JobRequest.SUSPEND, JobState.STARTING): RequestOutcome(desired=Desired.SUSPEND),
    (JobRequest.SUSPEND, JobState.RUNNING): RequestOutcome(desired=Desired.SUSPEND),
    (JobRequest.SUSPEND, JobState.SUSPENDED): _ALREADY,
    (JobRequest.RESUME, JobState.QUEUED): _ALREADY,
    (JobRequest.RESUME, JobState.STARTING): RequestOutcome(desired=Desired.RUN),
    (JobRequest.RESUME, JobState.RUNNING): RequestOutcome(desired=Desired.RUN),
    (JobRequest.RESUME, JobState.SUSPENDED): RequestOutcome(to=JobState.QUEUED),
}


_ON_ENTERING: Mapping[JobState, Desired] = {
    JobState.QUEUED: Desired.RUN,
    JobState.SUSPENDED: Desired.SUSPEND,
    JobState.CANCELLING: Desired.CANCEL,
    JobState.CANCELLED: Desired.CANCEL,
}


def outcome_of(request: JobRequest, state: JobState) -> RequestOutcome | None:
    """The effect of a request on a job in that state; None if it cannot be asked of it."""
    return _OUTCOMES.get((request, state))


def desired_on_entering(state: JobState) -> Desired | None:
    """The state that is asked of a job from the moment it enters a state; None if that stays as it was.

    A job that is queued again has been evicted or resumed: what was asked of its last master is done. One that never
    had a master, or has none now, is stopped without being asked.
    """
    return _ON_ENTERING.get(state)


def desired_of_master(state: JobState, desired: Desired) -> Desired:
    """The wanted state that a master is told.

    A master may learn late that its job was stopped without it: it is told the request that leads to such a stop.
    """
    if state.admitted:
        return desired
    return next((one for one, stopped in _STOPPED_STATES.items() if stopped is state), Desired.CANCEL)


REPORTED_STATES = frozenset(
    {
        JobState.RUNNING,
        JobState.SUSPENDED,
        JobState.QUEUED,
        JobState.SUCCEEDED,
        JobState.SUCCEEDED_WITH_SKIPS,
        JobState.FAILED,
        JobState.CANCELLED,
    }
)
"""States that a master may report. All but RUNNING are its last word: it stops."""


def state_after_report(state: JobState, desired: Desired, reported: JobState) -> JobState:
    """The state that a job shall have after its master's report.

    A cancellation and a suspension that were asked for meanwhile win over what the master meant: when it stops, a
    CANCELLING job is CANCELLED, and one that shall be suspended is SUSPENDED rather than QUEUED.
    """
    if state is JobState.CANCELLING:
        return state if reported is JobState.RUNNING else JobState.CANCELLED
    if reported is JobState.QUEUED and desired is Desired.SUSPEND:
        return JobState.SUSPENDED
    return reported


def state_without_master(state: JobState, desired: Desired) -> JobState | None:
    """The state that a job enters at once when its master was lost; None if it needs another master.

    A job that was only starting has nothing to save, so no new master is needed just to stop it.
    """
    if state is JobState.CANCELLING:
        return JobState.CANCELLED
    if state is JobState.STARTING and desired in (Desired.SUSPEND, Desired.EVICT):
        return desired.stopped_state
    return None

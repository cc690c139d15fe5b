"""The states of a search for a model."""

from __future__ import annotations

from enum import StrEnum

from elasticdl_core.job.life import JobState


class SearchState(StrEnum):
    """States of a search."""

    COMPARING = "COMPARING"
    CHOSEN = "CHOSEN"
    """The best model is known; the job that trains it on all rows is about to be made."""
    STOPPING = "STOPPING"
    """Nothing more is tried; the trials that run are being cancelled."""
    DONE = "DONE"
    FAILED = "FAILED"
    CANCELLED = "CANCELLED"

    @property
    def open(self) -> bool:
        """Whether there is something left to do."""
        return self not in (SearchState.DONE, SearchState.FAILED, SearchState.CANCELLED)

    @property
    def of_job(self) -> JobState:
        """The state of the job that the search stands for, as long as that is not made."""
        known = {SearchState.STOPPING: JobState.CANCELLING, SearchState.FAILED: JobState.FAILED}
        known |= {SearchState.CANCELLED: JobState.CANCELLED}
        return known.get(self, JobState.RUNNING)

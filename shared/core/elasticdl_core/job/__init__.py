"""Jobs: what their users say about them (``spec``), and the states that they go through (``life``)."""

from elasticdl_core.job.life import LEGAL_TRANSITIONS, Desired, JobRequest, JobState
from elasticdl_core.job.spec import FORMER_NAMES, JobSpec, JobType

__all__ = [
    "FORMER_NAMES",
    "LEGAL_TRANSITIONS",
    "Desired",
    "JobRequest",
    "JobSpec",
    "JobState",
    "JobType",
]

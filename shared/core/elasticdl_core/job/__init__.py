"""Jobs: what their users say about them (``spec``, ``fields``, ``rules``, ``names``); their states (``life``)."""

from elasticdl_core.job.fields import JobType
from elasticdl_core.job.life import LEGAL_TRANSITIONS, Desired, JobRequest, JobState
from elasticdl_core.job.names import ALIASES, resolve_aliases
from elasticdl_core.job.spec import JobSpec

__all__ = [
    "ALIASES",
    "LEGAL_TRANSITIONS",
    "Desired",
    "JobRequest",
    "JobSpec",
    "JobState",
    "JobType",
    "resolve_aliases",
]

"""Jobs that begin with another job's files: those files stay as long as such a job is not over."""

from __future__ import annotations

from typing import Any

from sqlalchemy import ColumnElement, Select, exists, func, select

from elasticdl_core.job.life import TERMINAL_STATES
from elasticdl_runtime.database import tables as t

_users = t.jobs.alias("checkpoint_users")
_NAMED = _users.c.spec["checkpoint_dir_for_init"].astext


def users_of_job(job_id: Any) -> Select[Any]:
    """Jobs that are not over and begin with a checkpoint in the folder of a job, or with that folder: id, namespace.

    Args:
        job_id: of the job; text, or a column.
    """
    living = _users.c.state.not_in([str(state) for state in TERMINAL_STATES])
    within = func.strpos(func.concat(_NAMED, "/"), func.concat("/", job_id, "/")) > 0
    return select(_users.c.id, _users.c.namespace).where(living, _NAMED != "", within, _users.c.id != job_id)


def is_begun_with() -> ColumnElement[bool]:
    """Whether such a job is there for a row of ``jobs``."""
    return exists(users_of_job(t.jobs.c.id).correlate(t.jobs))

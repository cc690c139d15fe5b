"""The settings of a master's process, from its environment."""

from __future__ import annotations

import time
from pathlib import Path

from elasticdl_core.ports.launcher import Role
from elasticdl_runtime import tokens
from elasticdl_runtime.settings import ProcessSettings

_RENEW_S = 3600.0


class MasterSettings(ProcessSettings):
    """Everything that the launcher tells a master.

    Attributes:
        job_id: ``ELASTICDL_JOB_ID``, the job.
        incarnation: ``ELASTICDL_INCARNATION``, which launch of a master of this job this is.
        listen: ``ELASTICDL_LISTEN``, the address to serve workers on.
        job_dir: ``ELASTICDL_JOB_DIR``, directory of the job's files.
        api_url: ``ELASTICDL_API_URL``, base URL of the api.
        ca_file: ``ELASTICDL_CA_FILE``, certificates that the api is verified by.
        redis_url: ``ELASTICDL_REDIS_URL``, URL of the queue's Redis.
        agent: ``ELASTICDL_AGENT``, address of the agent that launches processes.
        job_secret: ``ELASTICDL_JOB_SECRET``, signs the tokens of this job's processes.
        recovery_s: ``ELASTICDL_RECOVERY_S``, how often to checkpoint at least, for recovery alone; 0 for never.
    """

    job_id: str
    incarnation: int = 0
    listen: str
    job_dir: Path
    api_url: str
    ca_file: str = ""
    redis_url: str
    agent: str
    job_secret: str
    recovery_s: float = 30.0


class OwnToken:
    """The master's own job token, renewed before it expires.

    Args:
        settings: says whose token and which secret.
    """

    def __init__(self, settings: MasterSettings) -> None:
        self._settings = settings
        self._token = ""
        self._renew_at = 0.0

    def __call__(self) -> str:
        """The present token."""
        if time.monotonic() >= self._renew_at:
            settings = self._settings
            self._token = tokens.issue(settings.job_secret, settings.job_id, Role.MASTER, 0, settings.incarnation)
            self._renew_at = time.monotonic() + tokens.LIFETIME_S - _RENEW_S
        return self._token

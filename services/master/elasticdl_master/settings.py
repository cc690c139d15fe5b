"""The settings of a master's process, from its environment."""

from __future__ import annotations

import time
from dataclasses import dataclass
from pathlib import Path

from elasticdl_core.ports.launcher import Role
from elasticdl_runtime import tokens
from elasticdl_runtime.settings import Environment

_RENEW_S = 3600.0


@dataclass(frozen=True)
class Settings:
    """Everything that the launcher tells a master.

    Attributes:
        job_id: the job.
        incarnation: which launch of a master of this job this is.
        listen: the address to serve workers on.
        job_dir: directory of the job's files.
        api_url: base URL of the api.
        redis_url: URL of the queue's Redis.
        agent: address of the agent that launches processes.
        job_secret: signs the tokens of this job's processes.
        recovery_s: how often to checkpoint at least, for recovery alone; 0 for never.
    """

    job_id: str
    incarnation: int
    listen: str
    job_dir: Path
    api_url: str
    redis_url: str
    agent: str
    job_secret: str
    recovery_s: float = 30.0

    @classmethod
    def from_environment(cls, environment: Environment) -> Settings:
        """Reads the settings.

        Raises:
            InvalidInputError: one is missing or wrong.
        """
        return cls(
            job_id=environment.text("ELASTICDL_JOB_ID"),
            incarnation=environment.integer("ELASTICDL_INCARNATION", 0),
            listen=environment.text("ELASTICDL_LISTEN"),
            job_dir=Path(environment.text("ELASTICDL_JOB_DIR")),
            api_url=environment.text("ELASTICDL_API_URL"),
            redis_url=environment.text("ELASTICDL_REDIS_URL"),
            agent=environment.text("ELASTICDL_AGENT"),
            job_secret=environment.text("ELASTICDL_JOB_SECRET"),
            recovery_s=environment.seconds("ELASTICDL_RECOVERY_S", 30.0),
        )


class OwnToken:
    """The master's own job token, renewed before it expires.

    Args:
        settings: says whose token and which secret.
    """

    def __init__(self, settings: Settings) -> None:
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

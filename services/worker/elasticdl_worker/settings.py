"""The settings of a worker; its master tells it everything else."""

from __future__ import annotations

import tempfile
from pathlib import Path

from pydantic import Field

from elasticdl_runtime.settings import ProcessSettings


class WorkerSettings(ProcessSettings):
    """The settings of a worker.

    Attributes:
        job_id: ``ELASTICDL_JOB_ID``, the job.
        index: ``ELASTICDL_INDEX``, which worker of the job this is.
        incarnation: ``ELASTICDL_INCARNATION``, how often this index was launched before.
        job_token: ``ELASTICDL_JOB_TOKEN``, proves the worker to its master until the master gives it a fresh one.
        master: ``ELASTICDL_MASTER``, the master's address.
        sockets: ``ELASTICDL_SOCKETS``, where it may make sockets that other workers of the job reach; the folder for
            temporary files where nobody says so.
        group_host: ``ELASTICDL_GROUP_HOST``, the address on which workers on other machines reach it; empty for none.
    """

    group_host: str = ""
    job_id: str = ""
    index: int
    incarnation: int = 0
    job_token: str
    master: str
    sockets: Path = Field(default_factory=lambda: Path(tempfile.gettempdir()))

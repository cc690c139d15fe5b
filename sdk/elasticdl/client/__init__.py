"""The client of the API: submit, watch and steer jobs from Python.

``Client`` is for ordinary code, ``AsyncClient`` for asyncio; they have the same methods. Both are also found at
``elasticdl.Client`` and ``elasticdl.AsyncClient``. The code is written once, in ``aio``;
``tools/gen_blocking_client.py`` makes ``blocking`` from it.
"""

from __future__ import annotations

from elasticdl.client.aio.client import AsyncClient
from elasticdl.client.blocking.client import Client
from elasticdl.client.endpoint import Endpoint
from elasticdl.client.retry import RetryPolicy
from elasticdl.client.views import Artifact, Event, Job, JobFailure, JobPage, JobStatus, Progress, Update

__all__ = [
    "Artifact",
    "AsyncClient",
    "Client",
    "Endpoint",
    "Event",
    "Job",
    "JobFailure",
    "JobPage",
    "JobStatus",
    "Progress",
    "RetryPolicy",
    "Update",
]

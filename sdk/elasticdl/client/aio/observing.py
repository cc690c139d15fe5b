"""The calls of ``AsyncClient`` that look into the processes of a job."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from elasticdl.client.aio.connection import AsyncApiConnection
from elasticdl.client.messages import Request
from elasticdl.client.requests import job_path

AUDIT_TIMEOUT_S = 120.0
"""Large traces take their time."""


class AsyncObservingCalls:
    """Observation of a job's processes. Part of ``AsyncClient``."""

    _api: AsyncApiConnection

    async def stacks(self, job_id: str) -> Mapping[str, Any]:
        """The present stacks of the master, all PS and all workers of a job, and what each waits for.

        Returns:
            ``took_s`` and ``processes``, each with ``role``, ``index``, ``waits_for``, ``error`` (why there are no
            frames) and ``threads``, whose ``frames`` begin with the innermost call.
        """
        return dict(await self._api.fetch(Request("GET", job_path(job_id, "stacks"))))

    async def trace(self, job_id: str, seconds: float = 5.0) -> Mapping[str, Any]:
        """Records what the processes of a job do for some seconds (at most 30), as a Chrome trace (Perfetto)."""
        wish = {"seconds": float(seconds)}
        request = Request("POST", job_path(job_id, "trace"), json=wish, read_timeout_s=AUDIT_TIMEOUT_S)
        return dict(await self._api.fetch(request))

    async def log_files(self, job_id: str) -> Sequence[Mapping[str, Any]]:
        """The logs of a job's processes, one for each incarnation, with ``size`` and ``modified_at``."""
        return list((await self._api.fetch(Request("GET", job_path(job_id, "logs", "files"))))["files"])

    async def audit_records(self, job_id: str) -> Mapping[str, Any]:
        """Whether every record of a job was processed: its done-marks against the traces of its workers.

        Returns:
            ``verdict`` (``held``, ``broken`` or ``running``), ``findings``, ``epochs`` and ``total`` (the numbers of
            the ledger), ``workers``, ``duplicates``, ``redone``, ``skipped``.
        """
        request = Request("GET", job_path(job_id, "audit"), read_timeout_s=AUDIT_TIMEOUT_S)
        return dict(await self._api.fetch(request))

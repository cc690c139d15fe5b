"""The calls of ``AsyncClient`` for statements of SQL."""

from __future__ import annotations

import uuid
from collections.abc import Mapping
from typing import Any

from elasticdl.client.aio.connection import AsyncApiConnection
from elasticdl.client.messages import Request
from elasticdl.client.requests import STATEMENT_TIMEOUT_S, given, job_path
from elasticdl_core.json_numbers import from_json


class AsyncStatementCalls:
    """Statements, their plans and results. Part of ``AsyncClient``."""

    _api: AsyncApiConnection

    async def sql(
        self, statement: str, *, source: str = "", dry_run: bool = False, idempotency_key: str | None = None
    ) -> Mapping[str, Any]:
        """Runs a statement with the rows of a source of the cluster; ``job_id`` of the answer is its job.

        Args:
            statement: ``SELECT ... TO TRAIN``, ``EVALUATE``, ``EXPLAIN`` or ``PREDICT``, or ``SHOW TRAIN``.
            source: the name that an administrator gave the database; ``namespace(name)["sources"]`` lists them.
            dry_run: only plan it.
            idempotency_key: sent twice with the same key it makes one job; made up when not given.

        Returns:
            ``verb``, ``model``, ``source``, ``job_id``, ``spec``, ``module``, ``columns``, ``classes``, ``rows``.

        Raises:
            InvalidInputError: the statement is wrong, with its place, or does not fit the rows.
            NotFoundError: there is no model of that name.
            ConflictError: the model is still being trained.
        """
        body = {**given(statement=statement, source=source or None), **({"dry_run": True} if dry_run else {})}
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        asked = Request("POST", "/sql", json=body, headers=headers, read_timeout_s=STATEMENT_TIMEOUT_S)
        return dict(await self._api.fetch(asked))

    async def statement(self, job_id: str) -> Mapping[str, Any]:
        """The statement of a job, and its result as far as it is there: ``columns``, the first ``rows``, ``more``."""
        found = dict(await self._api.fetch(Request("GET", job_path(job_id).replace("/jobs/", "/sql/", 1))))
        if found["verb"] != "PREDICT":
            found["rows"] = [[from_json(cell) for cell in row] for row in found["rows"]]
        return found

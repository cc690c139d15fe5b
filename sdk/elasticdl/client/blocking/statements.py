# Made from elasticdl/client/aio/statements.py by tools/gen_blocking_client.py; change that file, not this one.
"""The calls of ``Client`` for statements of SQL."""

from __future__ import annotations

import math
import uuid
from collections.abc import Mapping
from typing import Any

from elasticdl.client.blocking.connection import ApiConnection
from elasticdl.client.messages import Request
from elasticdl.client.requests import POLL_S, STATEMENT_TIMEOUT_S, given, job_path
from elasticdl_core.job.searches import SearchState
from elasticdl_core.json_numbers import from_json


class StatementCalls:
    """Statements, their plans and results. Part of ``Client``."""

    _api: ApiConnection

    def sql(
        self, statement: str, *, source: str = "", dry_run: bool = False, idempotency_key: str | None = None
    ) -> Mapping[str, Any]:
        """Runs a statement with the rows of a source of the cluster; ``job_id`` of the answer is its job.

        Args:
            statement: ``SELECT ... TO TRAIN``, ``EVALUATE``, ``EXPLAIN`` or ``PREDICT``, ``SHOW TRAIN``, or
                ``SELECT ... LABEL column INTO model``.
            source: the name that an administrator gave the database; ``namespace(name)["sources"]`` lists them.
            dry_run: only plan it.
            idempotency_key: sent twice with the same key it makes one job; made up when not given.

        Returns:
            ``verb``, ``model``, ``source``, ``job_id``, ``spec``, ``module``, ``columns``, ``classes``, ``rows``;
            where no model is named ``search``, which ``watch_search`` waits for: its end makes the job.

        Raises:
            InvalidInputError: the statement is wrong, with its place, or does not fit the rows.
            NotFoundError: there is no model of that name.
            ConflictError: the model is still being trained.
        """
        body = {**given(statement=statement, source=source or None), **({"dry_run": True} if dry_run else {})}
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        asked = Request("POST", "/sql", json=body, headers=headers, read_timeout_s=STATEMENT_TIMEOUT_S)
        return dict(self._api.fetch(asked))

    def statement(self, job_id: str) -> Mapping[str, Any]:
        """The statement of a job, and its result as far as it is there: ``columns``, the first ``rows``, ``more``."""
        found = dict(self._api.fetch(Request("GET", job_path(job_id).replace("/jobs/", "/sql/", 1))))
        if found["verb"] != "PREDICT":  # whose cells are text
            found["rows"] = [[from_json(cell) for cell in row] for row in found["rows"]]
        return found

    def watch_search(
        self, job_id: str, *, seen: int = 0, timeout_s: float | None = None, poll_s: float = POLL_S
    ) -> Mapping[str, Any]:
        """Waits until a search for a model is over, or in a later round; what it has tried is in ``rows``.

        Args:
            job_id: as ``sql`` told it.
            seen: the round that was seen; 0 waits for the first one.
            timeout_s: how long at most; without end when not given.
            poll_s: seconds between two looks.

        Returns:
            As ``statement``; ``search["state"]`` is ``DONE``, ``FAILED`` or ``CANCELLED`` when it is over.

        Raises:
            TimeoutError: it has not come so far in time.
        """
        started = self._api.now()
        while True:
            told = self.statement(job_id)
            if told["search"]["round"] > seen or not SearchState(told["search"]["state"]).open:
                return told
            left = math.inf if timeout_s is None else started + timeout_s - self._api.now()
            if left <= 0:
                raise TimeoutError(f"the search {job_id} is still in round {seen} after {timeout_s:g} s")
            self._api.sleep(min(poll_s, left))

    def cancel_search(self, job_id: str) -> None:
        """Stops a search for a model and the jobs that try some; the job of the model is cancelled as others are.

        Raises:
            NotFoundError: there is no such search.
            ConflictError: it is over.
        """
        path = job_path(job_id).replace("/jobs/", "/sql/", 1)
        self._api.fetch(Request("POST", f"{path}/cancel"))

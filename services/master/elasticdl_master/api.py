"""The api as the master sees it: HTTP calls with a deadline, failing with our own exceptions."""

from __future__ import annotations

import asyncio
import dataclasses
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any
from urllib.parse import urlencode

import httpx

from elasticdl_core.checkpoint_manifest import Manifest
from elasticdl_core.errors import (
    ConflictError,
    ElasticDLError,
    FencedError,
    InvalidInputError,
    NotFoundError,
    UnauthenticatedError,
    UnavailableError,
)
from elasticdl_core.json_numbers import to_json
from elasticdl_core.series import SeriesRow
from elasticdl_master.job_lease import DesiredState, JobLease
from elasticdl_runtime.failpoints import failpoint
from elasticdl_runtime.tls import trust

_FAILED = 500
_DEADLINE_S = 5.0
_BUNDLE_DEADLINE_S = 300.0
_BYTES_A_SECOND = 1 << 20
"""Of a large body, at the least."""


class JobHeldError(ConflictError):
    """Another master of the same incarnation has the job."""

    code = "held"


class ApiFailedError(UnavailableError):
    """The api is there, and failed at this request: others may well succeed."""


class ApiClient:
    """Speaks with the routes for masters.

    Args:
        base_url: of the api.
        job_id: the job.
        token: returns the present job token.
        ca_file: certificates that the api is verified by, if it speaks TLS; those that the machine trusts if empty.

    Attributes:
        epoch: this master's epoch, sent with everything once the job is leased.
    """

    def __init__(self, base_url: str, job_id: str, token: Callable[[], str], ca_file: str = "") -> None:
        self.epoch = 0
        self._token = token
        self._http = httpx.AsyncClient(
            base_url=f"{base_url.rstrip('/')}/internal/jobs/{job_id}",
            timeout=_DEADLINE_S,
            trust_env=False,
            # Reading the machine's certificates takes longer than all else here.
            verify=trust(ca_file) if base_url.startswith("https:") else False,
        )

    async def lease(self, holder: str) -> JobLease:
        """Becomes the job's master; returns all that is durable of the job.

        Raises:
            JobHeldError: another one is; try again later.
            FencedError: a newer one is, or the job needs none.
        """
        answer = await self._send("POST", "/lease", {"holder": holder})
        lease = JobLease.from_answer(answer)
        self.epoch = lease.epoch
        return lease

    async def heartbeat(
        self, status: Mapping[str, Any], losses: Sequence[Mapping[str, Any]], series: Sequence[SeriesRow] = ()
    ) -> DesiredState:
        """Extends the lease; returns what is wanted of the job."""
        rows = [dataclasses.asdict(row) for row in series]
        return DesiredState.from_answer(
            await self._post("/heartbeat", status=status, losses=list(losses), series=rows)
        )

    async def post_state(self, to: str, reason: str, detail: Mapping[str, Any]) -> str:
        """Reports the job's state; returns the one that it is in now."""
        return str((await self._post("/state", to=to, reason=reason, detail=detail))["state"])

    async def post_events(self, events: Sequence[Mapping[str, Any]]) -> None:
        """Reports what happened."""
        await self._post("/events", events=list(events))

    async def post_lives(
        self, lives: Sequence[Mapping[str, Any]], living: Sequence[Mapping[str, Any]] | None = None
    ) -> None:
        """Tells of the lives of processes; ``living`` are all that there are: others of the job are lost."""
        await self._post("/processes", lives=list(lives), living=None if living is None else list(living))

    async def put_plan(self, plan: Mapping[str, Any]) -> None:
        """Makes the plan durable; the same plan again is fine."""
        failpoint("master.before_plan")
        # In a thread and with as much time as its size takes: the lease has to be extended meanwhile.
        content = await asyncio.to_thread(_encoded, {"epoch": self.epoch, "plan": plan})
        await self._exchange("PUT", "/plan", content, _DEADLINE_S + len(content) / _BYTES_A_SECOND)
        failpoint("master.after_plan")

    async def mark_done(self, tasks: Sequence[str], accounts: Mapping[str, Mapping[str, Any]]) -> None:
        """Makes done-marks durable, with what became of the records of some of them."""
        failpoint("master.before_done_marks")
        await self._post("/done", tasks=list(tasks), accounts=accounts)
        failpoint("master.after_done_marks")

    async def commit_checkpoint(self, manifest: Manifest) -> None:
        """Commits a checkpoint."""
        await self._post("/checkpoints", manifest=manifest)

    async def forget_checkpoint(self, version: int, directory: str) -> None:
        """Removes a checkpoint's entry, unless one of the same version elsewhere has replaced it.

        Raises:
            ConflictError: another job begins with it.
        """
        query = urlencode({"epoch": self.epoch, "directory": directory})
        await self._send("DELETE", f"/checkpoints/{version}?{query}", None)

    async def publish_evaluation(
        self, number: int, model_version: int, training_epoch: int, metrics: Mapping[str, float]
    ) -> None:
        """Publishes an evaluation."""
        await self._post(
            "/evaluations", number=number, model_version=model_version, training_epoch=training_epoch, metrics=metrics
        )

    async def publish_artifact(self, name: str, path: str, size: int, sha256: str) -> None:
        """Publishes a file that the job made."""
        await self._post("/artifacts", name=name, path=path, size=size, sha256=sha256)

    async def fetch_bundle(self, path: Path) -> None:
        """Fetches the job's model code into a file."""
        try:
            async with self._http.stream(
                "GET", "/bundle", headers=self._headers(), timeout=_BUNDLE_DEADLINE_S
            ) as response:
                if response.status_code >= 400:
                    await response.aread()
                    _raise(response)
                with path.open("wb") as file:
                    async for piece in response.aiter_bytes():
                        file.write(piece)
        except httpx.HTTPError as error:
            raise UnavailableError(f"the api does not answer: {error}", fix="it is tried again") from None

    async def close(self) -> None:
        """Closes connections."""
        await self._http.aclose()

    async def _post(self, path: str, /, **body: Any) -> dict[str, Any]:
        return await self._send("POST", path, {"epoch": self.epoch, **body})

    async def _send(self, method: str, path: str, body: Mapping[str, Any] | None) -> dict[str, Any]:
        return await self._exchange(method, path, b"" if body is None else _encoded(body), _DEADLINE_S)

    async def _exchange(self, method: str, path: str, content: bytes, deadline_s: float) -> dict[str, Any]:
        headers = self._headers() | ({"Content-Type": "application/json"} if content else {})
        try:
            response = await self._http.request(method, path, content=content, headers=headers, timeout=deadline_s)
        except httpx.HTTPError as error:
            raise UnavailableError(f"the api does not answer: {error!r}", fix="it is tried again") from None
        if response.status_code >= 400:
            _raise(response)
        answer = response.json() if response.content else {}
        return dict(answer) if isinstance(answer, Mapping) else {}

    def _headers(self) -> dict[str, str]:
        return {"Authorization": f"Bearer {self._token()}"}


def _encoded(body: Mapping[str, Any]) -> bytes:
    return json.dumps(to_json(body), ensure_ascii=False, separators=(",", ":"), allow_nan=False).encode()


def _raise(response: httpx.Response) -> None:
    try:
        problem = response.json()
        code, fix = str(problem.get("code", "")), str(problem.get("fix", ""))
        message = str(problem.get("detail") or problem.get("title") or response.status_code)
    except (ValueError, AttributeError):
        code, message, fix = "", f"the api answered {response.status_code}", ""
    status = response.status_code
    if code == "fenced":
        raise FencedError(message, fix=fix)
    if code == "held":
        raise JobHeldError(message, fix=fix)
    if status == _FAILED:
        raise ApiFailedError(message, fix=fix or "it is tried again; the api's log says what failed")
    if status in (408, 425, 429) or status > _FAILED:
        raise UnavailableError(message, fix=fix or "it is tried again")
    kinds: dict[int, type[ElasticDLError]] = {
        401: UnauthenticatedError,
        404: NotFoundError,
        409: ConflictError,
        400: InvalidInputError,
        422: InvalidInputError,
    }
    raise kinds.get(status, ElasticDLError)(message, fix=fix)

"""The api's routes for masters over real loopback HTTP, kept in memory, with outages on demand."""

from __future__ import annotations

import asyncio
import contextlib
import json
from collections.abc import Mapping
from typing import Any
from urllib.parse import parse_qsl

from elasticdl_core.job import LEGAL_TRANSITIONS, JobState
from tests.fakes.pulse import Pulse

Answer = tuple[int, Any]


class InternalApi:
    """One job's api.

    Args:
        job_id: the job.
        spec: its specification as JSON data.

    Attributes:
        url: where it listens, once started.
        away: while set, requests are answered with 503.
        checkpoints_away: the same for checkpoints only.
        in_use: directories of checkpoints that other jobs begin with.
        offered: every checkpoint that a master wanted to commit.
    """

    def __init__(self, job_id: str, spec: Mapping[str, Any], *, bundle: bytes = b"") -> None:
        self.job_id, self.spec, self.bundle = job_id, dict(spec), bundle
        self.url = ""
        self.away = False
        self.checkpoints_away = False
        self.in_use: set[str] = set()
        self.epoch = 0
        self.incarnation = -1
        self.state = JobState.STARTING
        self.reason = ""
        self.desired, self.target = "run", 1
        self.plan: Any = None
        self.done: dict[str, None] = {}
        self.accounts: dict[str, Any] = {}
        self.checkpoints: dict[int, dict[str, Any]] = {}
        self.offered: list[dict[str, Any]] = []
        self.committed: list[str] = []
        self.evaluations: list[dict[str, Any]] = []
        self.artifacts: list[dict[str, Any]] = []
        self.events: list[dict[str, Any]] = []
        self.lives: list[dict[str, Any]] = []
        self.transitions: list[str] = []
        self.detail: dict[str, Any] = {}
        self.status: dict[str, Any] = {}
        self.losses: list[dict[str, Any]] = []
        self.series: list[dict[str, Any]] = []
        self.requests: list[str] = []
        self.pulse = Pulse()
        self._server: asyncio.Server | None = None

    async def __aenter__(self) -> InternalApi:
        self._server = await asyncio.start_server(self._serve, "127.0.0.1", 0)
        port = self._server.sockets[0].getsockname()[1]
        self.url = f"http://127.0.0.1:{port}"
        return self

    async def __aexit__(self, *_: object) -> None:
        assert self._server is not None
        self._server.close()
        for writer in list(self._writers):
            writer.close()

    @property
    def _writers(self) -> set[asyncio.StreamWriter]:
        return self.__dict__.setdefault("_open", set())

    async def _serve(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        self._writers.add(writer)
        with contextlib.suppress(asyncio.IncompleteReadError, ConnectionError):
            while True:
                head = (await reader.readuntil(b"\r\n\r\n")).decode().split("\r\n")
                method, target, _ = head[0].split()
                headers = {k.lower(): v.strip() for k, _, v in (line.partition(":") for line in head[1:] if line)}
                body = await reader.readexactly(int(headers.get("content-length", 0)))
                status, answer = self._route(method, target, headers, json.loads(body) if body else {})
                data = answer if isinstance(answer, bytes) else json.dumps(answer).encode()
                head_out = (
                    f"HTTP/1.1 {status} X\r\nContent-Type: application/json\r\nContent-Length: {len(data)}\r\n\r\n"
                )
                writer.write(head_out.encode() + data)
                await writer.drain()
                self.pulse.beat()
        self._writers.discard(writer)
        writer.close()

    def _route(self, method: str, target: str, headers: Mapping[str, str], body: dict[str, Any]) -> Answer:
        if self.away:
            return 503, {"title": "the database is away", "code": "unavailable"}
        path, _, query = target.removeprefix(f"/internal/jobs/{self.job_id}").partition("?")
        self.requests.append(f"{method} {path}")
        if not headers.get("authorization", "").startswith("Bearer "):
            return 401, {"title": "no token"}
        if path == "/lease":
            return self._lease(body)
        asked = dict(parse_qsl(query))
        epoch = int(asked["epoch"]) if asked else body.get("epoch")
        if path != "/bundle" and epoch != self.epoch:
            return 409, {"title": "fenced", "code": "fenced", "detail": f"epoch {self.epoch} took over"}
        name = (method + path).partition("checkpoints/")
        if name[1]:
            if asked["directory"] in self.in_use:
                return 409, {"title": "in use", "code": "conflict", "detail": "job other begins with this checkpoint"}
            if self.checkpoints.get(int(name[2]), {}).get("directory") == asked["directory"]:
                del self.checkpoints[int(name[2])]
            return 204, b""
        return getattr(self, f"_{method.lower()}_{path.removeprefix('/')}")(body)

    def _lease(self, body: dict[str, Any]) -> Answer:
        incarnation = int(body["holder"].partition(".")[2].partition("@")[0])
        if incarnation < self.incarnation or self.state.terminal:
            return 409, {"title": "fenced", "code": "fenced"}
        self.incarnation, self.epoch = incarnation, self.epoch + 1
        return 200, {
            "epoch": self.epoch,
            "spec": self.spec,
            "state": str(self.state),
            "desired": self.desired,
            "target_workers": self.target,
            "ledger": {"plan": self.plan, "rounds": [], "done": list(self.done), "accounts": dict(self.accounts)},
            "checkpoints": list(self.checkpoints.values()),
            "evaluations": self.evaluations,
            "bundle": self.spec.get("model_bundle", ""),
            "strategy": self.status.get("strategy"),
        }

    def _post_heartbeat(self, body: dict[str, Any]) -> Answer:
        given = body["status"]
        self.status = given if "progress" in given else {**self.status, **given}
        self.losses += body["losses"]
        self.series += body["series"]
        return 200, {"desired": self.desired, "target_workers": self.target, "lease_s": 10}

    def _post_processes(self, body: dict[str, Any]) -> Answer:
        self.lives += body["lives"]
        return 204, b""

    def _post_state(self, body: dict[str, Any]) -> Answer:
        to = JobState(body["to"])
        if self.state is JobState.CANCELLING:
            to = JobState.CANCELLED
        if to not in LEGAL_TRANSITIONS[self.state] and to is not self.state:
            return 409, {"title": f"{self.state} cannot become {to}", "code": "conflict"}
        self.state, self.reason, self.detail = to, str(body["reason"]), body["detail"]
        self.transitions.append(str(to))
        return 200, {"state": str(to)}

    def _post_events(self, body: dict[str, Any]) -> Answer:
        self.events += body["events"]
        return 204, b""

    def _put_plan(self, body: dict[str, Any]) -> Answer:
        if self.plan not in (None, body["plan"]):
            return 409, {"title": "another plan", "code": "conflict"}
        self.plan = body["plan"]
        return 204, b""

    def _post_done(self, body: dict[str, Any]) -> Answer:
        self.done.update(dict.fromkeys(body["tasks"]))
        for task, account in body["accounts"].items():
            assert task in self.done, "the account of a task that is not done"
            self.accounts.pop(task, None)
            if account:
                self.accounts[task] = account
        return 200, {"new": 0}

    def _post_checkpoints(self, body: dict[str, Any]) -> Answer:
        self.offered.append(body["manifest"])
        if self.checkpoints_away:
            return 503, {"title": "the database is away", "code": "unavailable"}
        self.checkpoints[body["manifest"]["version"]] = body["manifest"]
        self.committed.append(body["manifest"]["directory"])
        return 204, b""

    def _post_evaluations(self, body: dict[str, Any]) -> Answer:
        self.evaluations.append({key: value for key, value in body.items() if key != "epoch"})
        return 204, b""

    def _post_artifacts(self, body: dict[str, Any]) -> Answer:
        self.artifacts.append(body)
        return 204, b""

    def _get_bundle(self, body: dict[str, Any]) -> Answer:
        return 200, self.bundle

"""A small API server over real loopback HTTP: problem+json errors, server-sent events, and faults on demand.

It speaks the public HTTP interface for the tests of the client and the CLI, keeps its jobs in memory, and runs
nothing: a test decides what happens to a job, and what goes wrong on the wire.
"""

from __future__ import annotations

import contextlib
import hashlib
import json
import re
import threading
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any
from urllib.parse import parse_qs, unquote, urlsplit

TOKEN = "fake-token"
NOW = "2026-01-02T03:04:05+00:00"

Streamed = list[bytes | None]
"""Pieces of a stream; ``None`` breaks the connection in the middle."""


@dataclass
class ObservedCluster:
    """A request that came in."""

    method: str
    path: str
    query: dict[str, str]
    headers: dict[str, str]
    body: bytes
    port: int = 0
    """Of the caller: one for each connection."""

    def json(self) -> Any:
        return json.loads(self.body)


@dataclass
class Fault:
    """What happens to the next requests that match instead of an answer.

    A status of 0 drops the connection after the request was handled, so that its effect stays.
    """

    method: str
    path: str
    status: int = 503
    times: int = 1
    headers: dict[str, str] = field(default_factory=dict)


def make_job(job_id: str, **changes: Any) -> dict[str, Any]:
    """A job as ``GET /jobs/{id}`` shows it."""
    job: dict[str, Any] = {
        "id": job_id,
        "name": job_id.rsplit("-", 1)[0],
        "namespace": "default",
        "type": "training",
        "state": "QUEUED",
        "reason": "waiting for a slot",
        "spec": {},
        "priority": 0,
        "min_workers": 1,
        "max_workers": 3,
        "target_workers": 0,
        "target_reason": "",
        "status": {},
        "created_at": NOW,
        "started_at": None,
        "finished_at": None,
        "error": None,
        "checkpoints": [],
        "evaluations": [],
        "artifacts": [],
    }
    return {**job, **changes}


def make_stacks() -> dict[str, Any]:
    """Where the processes of a job are: a master that is stopped, and a worker that reads."""
    frame = {"file": "/zoo/\x1b[2Jmodel.py", "line": 3, "function": "feed"}
    thread = {"name": "training", "waits_for": "reading data", "frames": [frame]}
    master = {"role": "master", "index": 0, "incarnation": 1, "state": "stopped", "threads": []}
    worker = {"role": "worker", "index": 2, "incarnation": 0, "state": "sleeping", "threads": [thread]}
    stopped = "it is stopped, so it cannot say where it is"
    return {
        "took_s": 0.1,
        "processes": [
            {**master, "waits_for": "stopped (SIGSTOP)", "error": stopped},
            {**worker, "waits_for": "reading data", "error": ""},
        ],
    }


def make_audit(**changes: Any) -> dict[str, Any]:
    """What became of a job's records: ten are left."""
    counts = {"planned": 100, "committed": 90, "leased": 0, "todo": 10, "skipped": 0}
    worker = {"owner": "worker-0.0", "records": 95, "tasks": 2, "first_version": 1, "last_version": 1200}
    audit: dict[str, Any] = {
        "verdict": "held",
        "findings": ["10 records of the plan were not done"],
        "epochs": [{"epoch": 1, **counts}],
        "total": counts,
        "workers": [worker],
        "duplicates": 0,
        "redone": 5,
        "skipped": [],
    }
    return {**audit, **changes}


def make_status(done: int, total: int, **changes: Any) -> dict[str, Any]:
    """A master's status report."""
    status: dict[str, Any] = {
        "progress": {
            "records_done": done,
            "records_total": total,
            "epoch": 1,
            "num_epochs": 2,
            "tasks_done": done // 100,
            "tasks_total": total // 100,
        },
        "samples_per_second": 1234.5,
        "eta_seconds": 12.0,
        "loss": 0.25,
        "last_loss": 0.5,
        "learning_rate": 0.01,
        "training_metrics": {"accuracy": 0.875},
        "model_version": 7,
        "workers": [
            {"index": 0, "incarnation": 1, "state": "RUNNING", "phase": "training", "records": done},
        ],
        "ps": [{"index": 0, "state": "RUNNING", "rows": 10, "bytes": 1000, "version": 7}],
        "metrics": {"accuracy": 0.9},
        "strategy": {"chosen": "ParameterServerStrategy", "reason": "asked for"},
        "degraded": None,
    }
    return {**status, **changes}


def sse(event: str, data: Any, event_id: int | None = None) -> bytes:
    """One server-sent event; an event of a job has its id inside too."""
    if event_id is not None:
        data = {"id": event_id, "at": NOW, "detail": {}, **data}
    lines = [f"id: {event_id}"] if event_id is not None else []
    return "\n".join([*lines, f"event: {event}", f"data: {json.dumps(data)}", "", ""]).encode()


class FakeApi:
    """The server. Use as a context manager; ``url`` is its address."""

    def __init__(self) -> None:
        self.jobs: dict[str, dict[str, Any]] = {}
        self.events: dict[str, list[dict[str, Any]]] = {}
        self.bundles: dict[str, bytes] = {}
        self.logs: dict[str, str] = {}
        self.process_logs: dict[str, dict[tuple[str, int], str]] = {}
        self.log_cuts: list[list[Any]] = []
        """Of followed logs that end before their job: bytes that come, then None if the connection breaks."""
        self.files: dict[tuple[str, str], tuple[bytes, str]] = {}
        self.streams: dict[str, list[Streamed]] = {}
        self.streams_served: dict[str, int] = {}
        self.on_end: dict[str, dict[str, Any]] = {}
        self.seen: list[ObservedCluster] = []
        self.faults: list[Fault] = []
        self.cut_downloads = 0
        self.prepared: dict[str, Any] = {
            "stacks": make_stacks(),
            "audit": make_audit(),
            "trace": {"traceEvents": [{"name": "compute", "ph": "X"}]},
            "logs/files": {"files": []},
        }
        self.explanations: dict[str, dict[str, Any]] = {}
        self.plans: list[dict[str, Any]] = []
        self.comparison: dict[str, Any] = {}
        self.decisions: list[dict[str, Any]] = []
        self.reserved: dict[str, dict[str, Any]] = {}
        self.granting = 1
        self.namespace: str | None = None
        """The namespace of whoever asks; None for an administrator of the cluster."""
        self.data_roots: list[str] = []
        self.refusal: dict[str, Any] | None = None
        self._keys: dict[str, str] = {}
        self._lock = threading.Lock()
        self._server = ThreadingHTTPServer(("127.0.0.1", 0), self._handler())
        self._server.daemon_threads = True
        self._thread = threading.Thread(target=self._server.serve_forever, kwargs={"poll_interval": 0.01})

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self._server.server_port}"

    def __enter__(self) -> FakeApi:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._server.shutdown()
        self._server.server_close()
        self._thread.join(timeout=60)

    def requests(self, method: str, path: str = "") -> list[ObservedCluster]:
        """What came in, by method and the beginning of the path."""
        return [seen for seen in self.seen if seen.method == method and seen.path.startswith(path)]

    def _handler(self) -> type[BaseHTTPRequestHandler]:
        api = self

        class Handler(BaseHTTPRequestHandler):
            protocol_version = "HTTP/1.1"
            disable_nagle_algorithm = True

            def log_message(self, format: str, *args: Any) -> None:
                pass

            def handle(self) -> None:
                with contextlib.suppress(ConnectionError):
                    super().handle()

            def __getattr__(self, name: str) -> Callable[[], None]:
                if name.startswith("do_"):
                    return lambda: api._serve(self)
                raise AttributeError(name)

        return Handler

    def _serve(self, http: BaseHTTPRequestHandler) -> None:
        parts = urlsplit(http.path)
        query = {key: values[-1] for key, values in parse_qs(parts.query).items()}
        body = http.rfile.read(int(http.headers.get("content-length") or 0))
        headers = {name.lower(): value for name, value in http.headers.items()}
        seen = ObservedCluster(http.command, unquote(parts.path), query, headers, body, http.client_address[1])
        with self._lock:
            self.seen.append(seen)
            fault = self._fault(seen)
        if fault is not None and fault.status:
            problem(http, fault.status, "unavailable", "the fake is told to fail", headers=fault.headers)
            return
        if headers.get("authorization") != f"Bearer {TOKEN}":
            problem(http, 401, "unauthenticated", "no valid token came", fix="give the token")
            return
        if fault is not None:
            with self._lock, contextlib.suppress(Exception):
                self._route(_Nowhere(http), seen)
            http.close_connection = True
            return
        self._route(http, seen)

    def _fault(self, seen: ObservedCluster) -> Fault | None:
        for fault in self.faults:
            if fault.times and fault.method == seen.method and seen.path.startswith(fault.path):
                fault.times -= 1
                return fault
        return None

    def _route(self, http: Any, seen: ObservedCluster) -> None:
        routes: list[tuple[str, str, Callable[..., None]]] = [
            ("GET|HEAD|PUT", r"/bundles/(sha256:[0-9a-f]{64})", self._bundle),
            ("POST", r"/jobs", self._submit),
            ("GET", r"/jobs", self._list),
            ("GET", r"/jobs/([^/]+)", self._get),
            ("PATCH", r"/jobs/([^/]+)", self._patch),
            ("DELETE", r"/jobs/([^/]+)", self._delete),
            ("POST", r"/jobs/([^/]+)/(cancel|suspend|resume)", self._ask),
            ("GET", r"/jobs/([^/]+)/events", self._events),
            ("GET", r"/jobs/([^/]+)/logs", self._logs),
            ("GET", r"/jobs/([^/]+)/metrics", self._metrics),
            ("GET|POST", r"/jobs/([^/]+)/(stacks|audit|trace|series|logs/files)", self._prepared),
            ("GET", r"/jobs/([^/]+)/artifacts", self._artifacts),
            ("GET", r"/jobs/([^/]+)/artifacts/(.+)", self._artifact),
            ("GET", r"/whoami", self._whoami),
            ("GET", r"/namespaces/([^/]+)", self._namespace),
            ("GET", r"/cluster", self._cluster),
            ("GET", r"/cluster/reservations", self._reservations),
            ("PUT|DELETE", r"/cluster/reservations/([^/]+)", self._reservation),
            ("GET", r"/jobs/([^/]+)/explain", self._explain),
            ("GET", r"/scheduler/plan", self._plan),
            ("POST", r"/scheduler/what-if", self._what_if),
            ("GET", r"/scheduler/decisions", self._decisions),
        ]
        for methods, pattern, route in routes:
            match = re.fullmatch(pattern, seen.path)
            if match and seen.method in methods.split("|"):
                if pattern.startswith(r"/jobs/") and match.group(1) not in self.jobs:
                    problem(http, 404, "not_found", f"there is no job {match.group(1)!r}", fix="see the list of jobs")
                    return
                route(http, seen, *match.groups())
                return
        problem(http, 404, "not_found", f"there is no {seen.method} {seen.path}")

    def _bundle(self, http: Any, seen: ObservedCluster, digest: str) -> None:
        if seen.method == "GET" and digest in self.bundles:
            answer(http, 200, self.bundles[digest])
        elif seen.method == "GET":
            problem(http, 404, "not_found", f"there is no bundle {digest}")
        elif seen.method == "HEAD":
            answer(http, 200 if digest in self.bundles else 404, b"")
        elif digest != "sha256:" + hashlib.sha256(seen.body).hexdigest():
            problem(http, 400, "invalid_input", "the body does not have that digest")
        else:
            self.bundles[digest] = seen.body
            send_json(http, {"digest": digest}, 201)

    def _submit(self, http: Any, seen: ObservedCluster) -> None:
        if self.refusal is not None:
            answer(http, 422, json.dumps(self.refusal).encode(), {"Content-Type": "application/problem+json"})
            return
        key = seen.headers.get("idempotency-key", "")
        job_id = self._keys.get(key)
        if job_id is None:
            spec = seen.json()
            job_id = f"{spec.get('name', 'job')}-{len(self.jobs) + 1}"
            self._keys[key] = job_id
            bounds = {name: spec[name] for name in ("min_workers", "max_workers", "priority") if name in spec}
            self.jobs[job_id] = make_job(job_id, spec=spec, type=spec.get("type", "training"), **bounds)
        send_json(http, self.jobs[job_id], 201)

    def _list(self, http: Any, seen: ObservedCluster) -> None:
        jobs = [job for job in self.jobs.values() if seen.query.get("state", job["state"]) == job["state"]]
        jobs = [job for job in jobs if seen.query.get("name", job["name"]) == job["name"]]
        start, limit = int(seen.query.get("page_token", "0")), int(seen.query.get("limit", "50"))
        more = str(start + limit) if start + limit < len(jobs) else None
        send_json(http, {"jobs": jobs[start : start + limit], "next_page_token": more})

    def _get(self, http: Any, seen: ObservedCluster, job_id: str) -> None:
        send_json(http, self.jobs[job_id])

    def _patch(self, http: Any, seen: ObservedCluster, job_id: str) -> None:
        self.jobs[job_id].update(seen.json())
        send_json(http, self.jobs[job_id])

    def _delete(self, http: Any, seen: ObservedCluster, job_id: str) -> None:
        if self.jobs[job_id]["state"] == "RUNNING":
            problem(http, 409, "conflict", f"job {job_id} is still RUNNING", fix="cancel it first")
            return
        del self.jobs[job_id]
        answer(http, 204, b"")

    def _ask(self, http: Any, seen: ObservedCluster, job_id: str, verb: str) -> None:
        states = {"cancel": "CANCELLED", "suspend": "SUSPENDED", "resume": "QUEUED"}
        self.jobs[job_id].update(state=states[verb], reason=f"{verb} was asked for")
        send_json(http, self.jobs[job_id], 202)

    def _events(self, http: Any, seen: ObservedCluster, job_id: str) -> None:
        if "text/event-stream" not in seen.headers.get("accept", ""):
            after, limit = int(seen.query.get("after", "0")), int(seen.query.get("limit", "200"))
            send_json(http, [event for event in self.events.get(job_id, []) if event["id"] > after][:limit])
            return
        number = self.streams_served.get(job_id, 0)
        self.streams_served[job_id] = number + 1
        scripts = self.streams.get(job_id) or [[]]
        if number >= len(scripts) - 1 and job_id in self.on_end:
            self.jobs[job_id] = self.on_end[job_id]
        stream(http, scripts[min(number, len(scripts) - 1)], "text/event-stream")

    def _logs(self, http: Any, seen: ObservedCluster, job_id: str) -> None:
        text = self.logs.get(job_id, "")
        if job_id in self.process_logs:
            text = self.process_logs[job_id].get((seen.query["role"], int(seen.query["index"])), "")
        if seen.query.get("follow") == "true":
            data = text.encode()[int(seen.query.get("offset", "0")) :]
            cut = self.log_cuts.pop(0) if self.log_cuts else None
            if cut is None:
                self.jobs[job_id] = {**self.jobs[job_id], "state": "SUCCEEDED"}
            pieces = [data[:7], data[7:]] if cut is None else [data[: cut[0]], *cut[1:]]
            stream(http, pieces, "text/plain; charset=utf-8")
        else:
            tail = int(seen.query.get("tail", "1000"))
            kept = "".join(text.splitlines(keepends=True)[-tail:])
            answer(http, 200, kept.encode(), {"Content-Type": "text/plain; charset=utf-8"})

    def _prepared(self, http: Any, seen: ObservedCluster, job_id: str, what: str) -> None:
        send_json(http, self.prepared[what])

    def _metrics(self, http: Any, seen: ObservedCluster, job_id: str) -> None:
        send_json(http, {"losses": [{"model_version": 1, "loss": 0.5, "at": NOW}], "evaluations": []})

    def _artifacts(self, http: Any, seen: ObservedCluster, job_id: str) -> None:
        send_json(http, self.jobs[job_id]["artifacts"])

    def _artifact(self, http: Any, seen: ObservedCluster, job_id: str, name: str) -> None:
        if (job_id, name) not in self.files:
            problem(http, 404, "not_found", f"job {job_id} has no artifact {name!r}", fix="see its list of artifacts")
            return
        content, kind = self.files[job_id, name]
        if self.cut_downloads:
            self.cut_downloads -= 1
            stream(http, [content[: len(content) // 2], None], kind)
            return
        answer(http, 200, content, {"Content-Type": kind})

    def _whoami(self, http: Any, seen: ObservedCluster) -> None:
        send_json(http, {"user": "ada", "namespace": self.namespace, "home": "default", "scope": "submit"})

    def _namespace(self, http: Any, seen: ObservedCluster, name: str) -> None:
        send_json(http, {"name": name, "data_roots": self.data_roots, "limits": {}, "sources": []})

    def _cluster(self, http: Any, seen: ObservedCluster) -> None:
        send_json(http, {"slots": {"total": 4, "used": 1}, "jobs": {"RUNNING": 1}, "components": {"database": "ok"}})

    def _reservations(self, http: Any, seen: ObservedCluster) -> None:
        """Each look finds one more slot granted."""
        taken = sum(one["slots"] for one in self.reserved.values())
        answer = {"reservations": [dict(one) for one in self.reserved.values()], "slots": 4, "for_jobs": 4 - taken}
        for one in self.reserved.values():
            one["granted"] = min(one["slots"], one["granted"] + self.granting)
        send_json(http, {**answer, "headroom": 0})

    def _reservation(self, http: Any, seen: ObservedCluster, name: str) -> None:
        if seen.method == "DELETE":
            if self.reserved.pop(name, None) is None:
                problem(http, 404, "not_found", f"no slots are reserved for {name!r}", fix="list the reservations")
            else:
                answer(http, 204, b"")
            return
        wanted = seen.json()
        one = {"name": name, "granted": 0, "grace_s": 30.0, "changed_at": 0.0, "granted_at": None, **wanted}
        self.reserved[name] = one
        send_json(http, one)

    def _explain(self, http: Any, seen: ObservedCluster, job_id: str) -> None:
        send_json(http, self.explanations[job_id])

    def _plan(self, http: Any, seen: ObservedCluster) -> None:
        """The plans in turn; the last one for ever."""
        send_json(http, self.plans.pop(0) if len(self.plans) > 1 else self.plans[0])

    def _what_if(self, http: Any, seen: ObservedCluster) -> None:
        send_json(http, self.comparison)

    def _decisions(self, http: Any, seen: ObservedCluster) -> None:
        start, limit = int(seen.query.get("cursor", "0")), int(seen.query.get("limit", "50"))
        more = str(start + limit) if start + limit < len(self.decisions) else None
        send_json(http, {"decisions": self.decisions[start : start + limit], "next_cursor": more})


class _Nowhere:
    """Takes an answer that nobody is to get."""

    def __init__(self, http: BaseHTTPRequestHandler) -> None:
        self.command = http.command
        self.wfile = self

    def __getattr__(self, name: str) -> Callable[..., None]:
        return lambda *args: None


def answer(http: Any, status: int, body: bytes, headers: dict[str, str] | None = None) -> None:
    http.send_response(status)
    for name, value in (headers or {}).items():
        http.send_header(name, value)
    http.send_header("Content-Length", str(len(body)))
    http.end_headers()
    if http.command != "HEAD":
        http.wfile.write(body)


def send_json(http: Any, data: Any, status: int = 200) -> None:
    answer(http, status, json.dumps(data).encode(), {"Content-Type": "application/json"})


def problem(
    http: Any, status: int, code: str, detail: str, *, fix: str = "", headers: dict[str, str] | None = None
) -> None:
    body = {"type": "about:blank", "title": code, "status": status, "detail": detail, "code": code, "fix": fix}
    kind = {"Content-Type": "application/problem+json", **(headers or {})}
    answer(http, status, json.dumps(body).encode(), kind)


def stream(http: Any, pieces: Streamed, kind: str) -> None:
    """Sends pieces as chunks; ``None`` cuts the connection without an end."""
    http.send_response(200)
    http.send_header("Content-Type", kind)
    http.send_header("Transfer-Encoding", "chunked")
    http.end_headers()
    for piece in pieces:
        if piece is None:
            http.close_connection = True
            return
        if piece:
            http.wfile.write(f"{len(piece):x}\r\n".encode() + piece + b"\r\n")
    http.wfile.write(b"0\r\n\r\n")


def serving() -> Iterator[FakeApi]:
    """A running fake, for a fixture."""
    with FakeApi() as api:
        yield api

"""The operations of the client on jobs, written once and run by both clients. No I/O happens here."""

from __future__ import annotations

import itertools
import json
import uuid
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass, field, fields
from pathlib import Path
from typing import Any
from urllib.parse import quote

from elasticdl.client.problems import error_of, unreachable
from elasticdl.client.retry import RetryPolicy
from elasticdl.client.steps import Answer, Failure, Operation, Pause, Request, Send, Work
from elasticdl.client.views import Artifact, Event, Job, JobPage
from elasticdl.submission import absolute_paths
from elasticdl_core.errors import ElasticDLError, InvalidInputError
from elasticdl_core.job import JobSpec
from elasticdl_core.json_numbers import from_json

POLL_S = 1.0
UPLOAD_TIMEOUT_S = 300.0
EVENTS_AT_ONCE = 1000


def job_path(job_id: str, *rest: str) -> str:
    """The path of a job, or of something below it, with every part quoted.

    Raises:
        InvalidInputError: the id is empty.
    """
    if not job_id:
        raise InvalidInputError("the job id is empty", fix="give the id that submit() or `elasticdl jobs list` shows")
    return "/".join(["/jobs", quote(job_id, safe=""), *(quote(part) for part in rest)])


def reservation_path(name: str) -> str:
    """The path of a reservation.

    Raises:
        InvalidInputError: the name is empty.
    """
    if not name:
        raise InvalidInputError("the name of the reservation is empty", fix="say for whom the slots are")
    return f"/cluster/reservations/{quote(name, safe='')}"


def submission(spec: JobSpec | Mapping[str, Any] | None, overrides: Mapping[str, Any]) -> dict[str, Any]:
    """The JSON data of a specification with fields replaced and local paths made absolute.

    Default values are left to the API.

    Raises:
        InvalidInputError: the specification is neither a JobSpec nor a mapping.
    """
    if spec is None:
        given: dict[str, Any] = {}
    elif isinstance(spec, JobSpec):
        mapping, untouched = spec.to_mapping(), _defaults()
        given = {key: value for key, value in mapping.items() if key not in untouched or untouched[key] != value}
    elif isinstance(spec, Mapping):
        given = dict(spec)
    else:
        raise InvalidInputError(
            f"a job specification cannot be a {type(spec).__name__}",
            fix="give a JobSpec, a dict, or keyword arguments",
        )
    # Names of data that are no paths here may be known to the cluster, or to a reader of the user's.
    return absolute_paths({**given, **overrides}, any_word=True)


def _defaults() -> dict[str, Any]:
    plain = JobSpec(model_def="a.b").to_mapping()
    return {item.name: plain[item.name] for item in fields(JobSpec) if item.name != "model_def"}


@dataclass(frozen=True)
class Operations:
    """What the client can do, as generators of steps.

    Attributes:
        url: the API's address, for messages.
        retry: when a request is tried again.
        new_key: makes idempotency keys.
    """

    url: str
    retry: RetryPolicy = field(default_factory=RetryPolicy)
    new_key: Callable[[], str] = lambda: uuid.uuid4().hex

    def exchange(self, request: Request, *, accept: frozenset[int] = frozenset()) -> Operation[Answer]:
        """Does a request, again while that helps, and gives its answer.

        Args:
            request: the request.
            accept: statuses from 400 on that are an answer, not an error.

        Raises:
            ElasticDLError: the API refused, or did not answer.
        """
        for attempt in itertools.count():
            outcome: Answer | Failure = yield Send(request)
            pause = self.retry.pause(request, outcome, attempt)
            if pause is None:
                break
            yield Pause(pause)
        if isinstance(outcome, Failure):
            raise unreachable(outcome, self.url)
        if outcome.status >= 400 and outcome.status not in accept:
            raise error_of(outcome, request)
        return outcome

    def fetch(self, request: Request) -> Operation[Any]:
        """Does a request and gives the JSON of its answer.

        Raises:
            ElasticDLError: the API refused, did not answer, or did not answer in JSON.
        """
        answer = yield from self.exchange(request)
        if not answer.body:
            return None
        try:
            return json.loads(answer.body)
        except ValueError:
            raise ElasticDLError(
                f"{request.method} {self.url}{request.path} answered something that is not JSON",
                fix="check that ELASTICDL_API_URL is the address of an ElasticDL API, not of another web server",
            ) from None

    def submit(
        self, spec: JobSpec | Mapping[str, Any] | None, overrides: Mapping[str, Any], idempotency_key: str | None
    ) -> Operation[Job]:
        """Submits a job; its specification must name its code."""
        body = submission(spec, overrides)
        JobSpec.from_mapping(body)
        headers = {"Idempotency-Key": idempotency_key or self.new_key()}
        request = Request("POST", "/jobs", json=body, headers=headers, idempotent=True)
        return Job.from_json((yield from self.fetch(request)))

    def submit_directory(
        self,
        model_zoo: Path,
        spec: JobSpec | Mapping[str, Any] | None,
        overrides: Mapping[str, Any],
        idempotency_key: str | None,
    ) -> Operation[Job]:
        """Packs and uploads a directory of model modules, and submits a job that runs from it."""
        body = {**submission(spec, overrides), "model_zoo": str(model_zoo)}
        body.pop("model_bundle", None)
        JobSpec.from_mapping(body)
        body.pop("model_zoo")
        data = [str(body.get(name) or "") for name in ("training_data", "validation_data", "prediction_data")]
        body["model_bundle"] = yield from self.upload(model_zoo, data)
        return (yield from self.submit(body, {}, idempotency_key))

    def upload(self, model_zoo: Path, data: Sequence[str] = ()) -> Operation[str]:
        """Packs a directory, without a job's data in it, and uploads it unless the API has it; gives its digest."""
        from elasticdl_runtime.bundles import pack_bundle

        content, digest = yield Work(lambda: pack_bundle(model_zoo, data=data))
        path = f"/bundles/{digest}"
        known = yield from self.exchange(Request("HEAD", path), accept=frozenset({404}))
        if known.status == 404:
            headers = {"Content-Type": "application/zip"}
            yield from self.exchange(
                Request("PUT", path, content=content, headers=headers, read_timeout_s=UPLOAD_TIMEOUT_S)
            )
        return str(digest)

    def get(self, job_id: str) -> Operation[Job]:
        """One job."""
        return Job.from_json((yield from self.fetch(Request("GET", job_path(job_id)))))

    def page(self, filters: Mapping[str, Sequence[str]], limit: int, page_token: str) -> Operation[JobPage]:
        """One page of jobs."""
        params: dict[str, str | Sequence[str]] = {**filters, "limit": str(limit)}
        if page_token:
            params["page_token"] = page_token
        data = yield from self.fetch(Request("GET", "/jobs", params=params))
        return JobPage(tuple(Job.from_json(item) for item in data["jobs"]), str(data.get("next_page_token") or ""))

    def ask(self, job_id: str, verb: str) -> Operation[Job]:
        """Asks for a change of state: cancel, suspend or resume. Asking twice is asking once."""
        request = Request("POST", job_path(job_id, verb))
        return Job.from_json((yield from self.fetch(request)))

    def scale(self, job_id: str, change: Mapping[str, int | None]) -> Operation[Job]:
        """Changes a job's bounds and priority.

        Raises:
            InvalidInputError: nothing is to be changed.
        """
        body = {key: value for key, value in change.items() if value is not None}
        if not body:
            raise InvalidInputError("there is nothing to change", fix="give min_workers, max_workers or priority")
        return Job.from_json((yield from self.fetch(Request("PATCH", job_path(job_id), json=body))))

    def delete(self, job_id: str) -> Operation[None]:
        """Deletes a job that has ended."""
        yield from self.exchange(Request("DELETE", job_path(job_id)))

    def events(self, job_id: str) -> Operation[list[Event]]:
        """All events of a job, oldest first."""
        events: list[Event] = []
        while True:
            params = {"after": str(events[-1].id if events else 0), "limit": str(EVENTS_AT_ONCE)}
            data = yield from self.fetch(Request("GET", job_path(job_id, "events"), params=params))
            events.extend(Event.from_json(item) for item in data)
            if len(data) < EVENTS_AT_ONCE:
                return events

    def logs(self, job_id: str, params: Mapping[str, str]) -> Operation[str]:
        """The log text that there is now."""
        answer = yield from self.exchange(Request("GET", job_path(job_id, "logs"), params=params))
        return answer.body.decode("utf-8", "replace")

    def metrics(self, job_id: str) -> Operation[dict[str, Any]]:
        """Losses and evaluations so far; numbers that JSON cannot write are floats here."""
        data = yield from self.fetch(Request("GET", job_path(job_id, "metrics")))
        losses = [{**point, "loss": from_json(point["loss"])} for point in data["losses"]]
        evaluations = [{**one, "metrics": from_json(one["metrics"])} for one in data["evaluations"]]
        return {**data, "losses": losses, "evaluations": evaluations}

    def artifacts(self, job_id: str) -> Operation[list[Artifact]]:
        """What a job made."""
        data = yield from self.fetch(Request("GET", job_path(job_id, "artifacts")))
        return [Artifact.from_json(item) for item in data]

    def cluster(self) -> Operation[dict[str, Any]]:
        """Slots, jobs and components of the cluster."""
        return dict((yield from self.fetch(Request("GET", "/cluster"))))

    def explain(self, job_id: str) -> Operation[dict[str, Any]]:
        """Why a job has what it has."""
        return dict((yield from self.fetch(Request("GET", job_path(job_id, "explain")))))

    def plan(self) -> Operation[dict[str, Any]]:
        """The scheduler's plan in force."""
        return dict((yield from self.fetch(Request("GET", "/scheduler/plan"))))

    def what_if(self, question: Mapping[str, Any]) -> Operation[dict[str, Any]]:
        """What would happen with some changes."""
        asked = {name: value for name, value in question.items() if value is not None}
        return dict((yield from self.fetch(Request("POST", "/scheduler/what-if", json=asked))))

    def decisions(self, filters: Mapping[str, str], limit: int, cursor: str) -> Operation[dict[str, Any]]:
        """One page of the decision log."""
        params = {**filters, "limit": str(limit), **({"cursor": cursor} if cursor else {})}
        return dict((yield from self.fetch(Request("GET", "/scheduler/decisions", params=params))))

    def reservations(self) -> Operation[dict[str, Any]]:
        """Slots that others take from jobs."""
        return dict((yield from self.fetch(Request("GET", "/cluster/reservations"))))

    def reserve(self, name: str, slots: int, grace_s: float | None) -> Operation[dict[str, Any]]:
        """Takes slots from jobs. Asking twice is asking once."""
        body = {"slots": slots} if grace_s is None else {"slots": slots, "grace_s": float(grace_s)}
        return dict((yield from self.fetch(Request("PUT", reservation_path(name), json=body))))

    def release(self, name: str) -> Operation[None]:
        """Gives reserved slots back."""
        yield from self.exchange(Request("DELETE", reservation_path(name)))

    def wait(self, job_id: str, timeout_s: float | None, poll_s: float) -> Operation[Job]:
        """Looks at a job until it has ended.

        Raises:
            TimeoutError: it has not ended in time.
        """
        waited = 0.0
        while True:
            job = yield from self.get(job_id)
            if job.state.terminal:
                return job
            if timeout_s is not None and waited >= timeout_s:
                raise TimeoutError(f"job {job_id} is still {job.state} after {timeout_s:g} s")
            pause = poll_s if timeout_s is None else min(poll_s, timeout_s - waited)
            yield Pause(pause)
            waited += pause

"""The client for ordinary Python code."""

from __future__ import annotations

import os
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, Self, TypeVar

import httpx

from elasticdl.client import streams
from elasticdl.client.endpoint import Endpoint, find_endpoint
from elasticdl.client.operations import POLL_S, Operations
from elasticdl.client.retry import RetryPolicy
from elasticdl.client.steps import (
    Answer,
    Emit,
    Failure,
    Open,
    Operation,
    Pause,
    Read,
    Send,
    Step,
    StreamOperation,
    Work,
)
from elasticdl.client.transport import (
    TRANSPORT_ERRORS,
    Filter,
    answer_of,
    default_headers,
    failure_of,
    httpx_request,
    moment_text,
    texts,
    trusts_environment,
)
from elasticdl.client.views import Artifact, Event, Job, JobPage, Update
from elasticdl_core.job import JobSpec

T = TypeVar("T")


class Client:
    """Submits and watches jobs.

    The API is found from the arguments, else from ``ELASTICDL_API_URL`` and ``ELASTICDL_TOKEN``, else it is the
    cluster that ``elasticdl up`` started on this machine. Every call has a deadline; a call that can be repeated
    safely is tried again when the API is away for a moment.

    All methods raise the exceptions of ``elasticdl_core.errors``: ``NotFoundError`` for an unknown job,
    ``SpecError`` for a specification that cannot work, ``UnavailableError`` when the API does not answer.

    Args:
        api_url: address of the API, e.g. ``http://127.0.0.1:8080``.
        token: bearer token.
        retry: how often and after what pauses a call is tried again.

    >>> with Client() as client:                                                       # doctest: +SKIP
    ...     job = client.submit(model_zoo="zoo", model_def="digits.forward", training_data="/data/digits")
    ...     print(client.wait(job.id).state)
    """

    def __init__(
        self, api_url: str | None = None, token: str | None = None, *, retry: RetryPolicy | None = None
    ) -> None:
        self.endpoint: Endpoint = find_endpoint(api_url, token)
        self._operations = Operations(self.endpoint.url, retry or RetryPolicy())
        self._http = httpx.Client(
            base_url=self.endpoint.url,
            headers=default_headers(self.endpoint),
            trust_env=trusts_environment(self.endpoint),
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._http.close()

    def submit(
        self,
        spec: JobSpec | Mapping[str, Any] | None = None,
        *,
        model_zoo: str | os.PathLike[str] | None = None,
        idempotency_key: str | None = None,
        **fields: Any,
    ) -> Job:
        """Submits a job.

        Args:
            spec: the specification, whole or in part; fields given as keyword arguments replace those in it.
            model_zoo: a directory on this machine; it is packed and uploaded unless the API has it already. (A
                directory that all workers can read goes into the specification as ``model_zoo`` instead.)
            idempotency_key: submitting twice with the same key makes one job; made up when not given.
            **fields: fields of ``JobSpec``.

        Raises:
            SpecError: the specification cannot work; nothing was uploaded.
        """
        if model_zoo is None:
            return self._run(self._operations.submit(spec, fields, idempotency_key))
        zoo = Path(model_zoo)
        return self._run(self._operations.submit_directory(zoo, spec, fields, idempotency_key))

    def upload(self, model_zoo: str | os.PathLike[str]) -> str:
        """Packs and uploads a directory of model modules; gives its digest, for ``model_bundle``."""
        return self._run(self._operations.upload(Path(model_zoo)))

    def get(self, job_id: str) -> Job:
        """One job as it is now."""
        return self._run(self._operations.get(job_id))

    def list(self, *, limit: int = 50, page_token: str = "", **filters: Filter) -> JobPage:
        """One page of jobs, newest first.

        Args:
            limit: jobs on a page.
            page_token: the token that the page before gave; empty for the first page.
            **filters: what the jobs must have, ``state`` (one or a list), ``name``, ``label`` (one or
                a list of ``key=value``) or ``namespace``.
        """
        return self._run(self._operations.page(texts(filters), limit, page_token))

    def iterate(self, *, page_size: int = 100, **filters: Filter) -> Iterator[Job]:
        """All jobs, newest first, fetched page by page while iterating."""
        return self._stream(streams.pages(self._operations, texts(filters), page_size))

    def cancel(self, job_id: str) -> Job:
        """Stops a job for good."""
        return self._run(self._operations.ask(job_id, "cancel"))

    def suspend(self, job_id: str) -> Job:
        """Stops a job so that it can go on later; its workers are free for others."""
        return self._run(self._operations.ask(job_id, "suspend"))

    def resume(self, job_id: str) -> Job:
        """Lets a suspended job go on where it was."""
        return self._run(self._operations.ask(job_id, "resume"))

    def scale(
        self,
        job_id: str,
        min_workers: int | None = None,
        max_workers: int | None = None,
        priority: int | None = None,
    ) -> Job:
        """Changes how many workers a job may have, and how it ranks; what is not given stays."""
        change = {"min_workers": min_workers, "max_workers": max_workers, "priority": priority}
        return self._run(self._operations.scale(job_id, change))

    def delete(self, job_id: str) -> None:
        """Deletes a job that has ended, with its logs and artifacts."""
        self._run(self._operations.delete(job_id))

    def events(self, job_id: str) -> Sequence[Event]:
        """What has happened to a job, oldest first."""
        return self._run(self._operations.events(job_id))

    def follow(self, job_id: str) -> Iterator[Job]:
        """A job as it is now, then a fresh view about every second, the last when it has ended.

        A lost connection is taken up again.
        """
        return self._stream(streams.jobs(self._operations, job_id))

    def updates(self, job_id: str, *, after: int | None = None) -> Iterator[Update]:
        """The same, with the job's events in between as they happen.

        The first update is the job as it is now; then come its events (the old ones too) and views; the last has
        ``ended`` set. A lost connection is resumed after the last event that came.

        Args:
            job_id: the job.
            after: leave out events up to this id.
        """
        return self._stream(streams.updates(self._operations, job_id, "" if after is None else str(after)))

    def logs(self, job_id: str, *, role: str = "worker", index: int = 0, tail: int | None = None) -> str:
        """What a process of a job printed, in all its incarnations.

        Args:
            job_id: the job.
            role: ``master``, ``ps`` or ``worker``.
            index: number of the process within its role.
            tail: only this many last lines.
        """
        return self._run(self._operations.logs(job_id, streams.log_params(role, index, tail)))

    def follow_logs(
        self, job_id: str, *, role: str = "worker", index: int = 0, tail: int | None = None
    ) -> Iterator[str]:
        """The same line by line, with new lines as they come, until the job has ended."""
        return self._stream(streams.follow_logs(self._operations, job_id, streams.log_params(role, index, tail)))

    def metrics(self, job_id: str) -> Mapping[str, Any]:
        """Losses and evaluations of a job so far."""
        return self._run(self._operations.metrics(job_id))

    def artifacts(self, job_id: str) -> Sequence[Artifact]:
        """What a job made."""
        return self._run(self._operations.artifacts(job_id))

    def download(
        self, job_id: str, directory: str | os.PathLike[str], names: Sequence[str] | None = None
    ) -> Sequence[Path]:
        """Downloads what a job made.

        Args:
            job_id: the job.
            directory: where it goes; made if it is not there.
            names: names of artifacts; all when not given.

        Returns:
            The path of each.

        Raises:
            NotFoundError: the job has no such artifact.
            ConflictError: what came is damaged, or the place is taken.
        """
        return self._run(streams.download(self._operations, job_id, Path(directory), names))

    def cluster(self) -> Mapping[str, Any]:
        """Slots, jobs and components of the cluster."""
        return self._run(self._operations.cluster())

    def explain(self, job_id: str) -> Mapping[str, Any]:
        """Why a job has the workers that it has, who holds what it lacks, what would help, and when it will end."""
        return self._run(self._operations.explain(job_id))

    def plan(self) -> Mapping[str, Any]:
        """The scheduler's plan in force: targets, reasons and expected ends of all jobs that are not over."""
        return self._run(self._operations.plan())

    def what_if(
        self,
        *,
        add: Sequence[Mapping[str, Any]] | None = None,
        cancel: Sequence[str] | None = None,
        priorities: Mapping[str, int] | None = None,
        sizes: Mapping[str, Mapping[str, int]] | None = None,
        slots: int | None = None,
        add_slots: int | None = None,
        add_nodes: Sequence[Mapping[str, int]] | None = None,
        remove_nodes: Sequence[str] | None = None,
    ) -> Mapping[str, Any]:
        """Start, end and workers of every job without and with some changes. Nothing is changed.

        Args:
            add: jobs that do not exist: ``name``, ``min_workers``, ``max_workers``, ``priority``, ``records``, and
                how fast they are: ``like`` (a job's id), ``model_def`` and so on, or ``records_per_second``.
            cancel: jobs to leave out.
            priorities: other priorities, by job.
            sizes: other ``min_workers`` and ``max_workers``, by job.
            slots: slots of the whole cluster.
            add_slots: slots more, or fewer if negative.
            add_nodes: machines more, each with its ``slots``.
            remove_nodes: names of machines fewer.
        """
        question = {
            "add": add,
            "cancel": cancel,
            "priorities": priorities,
            "sizes": sizes,
            "slots": slots,
            "add_slots": add_slots,
            "add_nodes": add_nodes,
            "remove_nodes": remove_nodes,
        }
        return self._run(self._operations.what_if(question))

    def decisions(
        self,
        *,
        job: str | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        full: bool = False,
        limit: int = 50,
        cursor: str = "",
    ) -> Mapping[str, Any]:
        """One page of the scheduler's decisions, the latest first.

        Args:
            job: only what changed that job.
            since: only from then on.
            until: only before then.
            full: with all that is needed to replay them; for administrators.
            limit: decisions on a page.
            cursor: ``next_cursor`` of the page before; empty for the first page.
        """
        given = {
            "job": job,
            "since": moment_text(since),
            "until": moment_text(until),
            "full": "true" if full else None,
        }
        filters = {name: value for name, value in given.items() if value is not None}
        return self._run(self._operations.decisions(filters, limit, cursor))

    def reservations(self) -> Mapping[str, Any]:
        """Slots that processes which are not the cluster's take from jobs; for administrators."""
        return self._run(self._operations.reservations())

    def reserve(self, name: str, slots: int, *, grace_s: float | None = None) -> Mapping[str, Any]:
        """Takes slots from jobs, or changes how many are taken; for administrators.

        Args:
            name: who takes them, e.g. the name of a service.
            slots: how many.
            grace_s: seconds that workers have to leave them; 30 by default.

        Returns:
            The reservation; ``granted`` says how many of the slots are free of workers.
        """
        return self._run(self._operations.reserve(name, slots, grace_s))

    def release(self, name: str) -> None:
        """Gives reserved slots back to jobs; for administrators."""
        self._run(self._operations.release(name))

    def wait(self, job_id: str, timeout_s: float | None = None, *, poll_s: float = POLL_S) -> Job:
        """Waits until a job has ended, however it ends.

        Args:
            job_id: the job.
            timeout_s: how long at most; without end when not given.
            poll_s: seconds between two looks.

        Raises:
            TimeoutError: it has not ended in time.
        """
        return self._run(self._operations.wait(job_id, timeout_s, poll_s))

    def _run(self, operation: Operation[T]) -> T:
        with closing(operation), _Exchange(self._http) as exchange:
            given: Any = None
            error: Exception | None = None
            while True:
                try:
                    step = operation.send(given) if error is None else operation.throw(error)
                except StopIteration as end:
                    result: T = end.value
                    return result
                given, error = exchange.perform(step)

    def _stream(self, operation: StreamOperation[T]) -> Iterator[T]:
        with closing(operation), _Exchange(self._http) as exchange:
            given: Any = None
            error: Exception | None = None
            while True:
                try:
                    step = operation.send(given) if error is None else operation.throw(error)
                except StopIteration:
                    return
                if isinstance(step, Emit):
                    yield step.item
                    given, error = None, None
                else:
                    given, error = exchange.perform(step)


class _Exchange:
    """Performs the steps of one operation; holds at most one open response."""

    def __init__(self, http: httpx.Client) -> None:
        self._http = http
        self._response: httpx.Response | None = None
        self._pieces: Iterator[bytes] = iter(())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self._close()

    def perform(self, step: Step) -> tuple[Any, Exception | None]:
        """Performs a step; gives its outcome, or the error that the operation is to see."""
        match step:
            case Send(request):
                return self._send(httpx_request(self._http, request)), None
            case Open(request):
                return self._open(httpx_request(self._http, request)), None
            case Read():
                return self._read(), None
            case Pause(seconds):
                time.sleep(seconds)
                return None, None
            case Work(function):
                try:
                    return function(), None
                except Exception as error:
                    return None, error

    def _send(self, request: httpx.Request) -> Answer | Failure:
        try:
            return answer_of(self._http.send(request), whole=True)
        except TRANSPORT_ERRORS as error:
            return failure_of(error)

    def _open(self, request: httpx.Request) -> Answer | Failure:
        self._close()
        try:
            response = self._http.send(request, stream=True)
            if response.is_error:
                try:
                    response.read()
                finally:
                    response.close()
                return answer_of(response, whole=True)
        except TRANSPORT_ERRORS as error:
            return failure_of(error)
        self._response, self._pieces = response, response.iter_bytes()
        return answer_of(response, whole=False)

    def _read(self) -> bytes | Failure | None:
        try:
            return next(self._pieces, None)
        except TRANSPORT_ERRORS as error:
            self._close()
            return failure_of(error)

    def _close(self) -> None:
        if self._response is not None:
            self._response.close()
            self._response = None

# Made from elasticdl/client/aio/client.py by tools/gen_blocking_client.py; change that file, not this one.
"""``Client``: submits, watches and steers jobs."""

from __future__ import annotations

import math
import os
import uuid
from collections.abc import Collection, Iterator, Mapping, Sequence
from contextlib import closing
from datetime import datetime
from pathlib import Path
from typing import Any, Self

from elasticdl.client.blocking.access import AccessCalls
from elasticdl.client.blocking.connection import ApiConnection
from elasticdl.client.blocking.downloading import download, fetch_artifacts
from elasticdl.client.blocking.observing import ObservingCalls
from elasticdl.client.blocking.statements import StatementCalls
from elasticdl.client.blocking.tables import place_tables
from elasticdl.client.blocking.waiting import run_blocking
from elasticdl.client.blocking.watching import JobWatch, fetch_job, log_lines
from elasticdl.client.endpoint import Endpoint, find_endpoint
from elasticdl.client.messages import Request
from elasticdl.client.requests import (
    EVENTS_AT_ONCE,
    PATIENCE_S,
    POLL_S,
    UPLOAD_TIMEOUT_S,
    given,
    job_path,
    log_params,
    metrics_of,
    reservation_path,
    submission,
    submission_of_directory,
)
from elasticdl.client.retry import Patience, RetryPolicy
from elasticdl.client.table_files import stand_ins, tables_of
from elasticdl.client.transport import Filter, asks_for_none, moment_text, texts
from elasticdl.client.views import Artifact, Event, Job, JobPage, Update
from elasticdl_core.errors import ConflictError, InvalidInputError, UnavailableError
from elasticdl_core.job import JobSpec, JobState, resolve_aliases
from elasticdl_core.json_numbers import from_json


class Client(AccessCalls, ObservingCalls, StatementCalls):
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

    >>> with Client() as client:                                            # doctest: +SKIP
    ...     job = client.submit(model_zoo="zoo", model_def="digits.forward", training_data="/data/digits")
    ...     for update in client.updates(job.id):
    ...         print(update)
    """

    def __init__(
        self, api_url: str | None = None, token: str | None = None, *, retry: RetryPolicy | None = None
    ) -> None:
        self.endpoint: Endpoint = find_endpoint(api_url, token)
        self._api = ApiConnection(self.endpoint, retry or RetryPolicy())

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def close(self) -> None:
        """Closes the connections."""
        self._api.close()

    def submit(
        self,
        spec: JobSpec | Mapping[str, Any] | None = None,
        *,
        model_zoo: str | os.PathLike[str] | None = None,
        idempotency_key: str | None = None,
        data_folder: str | os.PathLike[str] | None = None,
        **fields: Any,
    ) -> Job:
        """Submits a job.

        ``training_data``, ``validation_data`` and ``prediction_data`` may be tables: DataFrames of pandas or polars,
        Arrow tables, dictionaries of columns. They are written as Parquet under a name made of their content.

        Args:
            spec: the specification, whole or in part; fields given as keyword arguments replace those in it.
            model_zoo: a directory on this machine; it is packed and uploaded unless the API has it already. (A
                directory that all workers can read goes into the specification as ``model_zoo`` instead.)
            idempotency_key: submitting twice with the same key makes one job; made up when not given.
            data_folder: where tables are written: a folder that this machine and those of the cluster have under one
                path. By default a data root of the caller's namespace, or a folder in ``~/.cache`` if the caller
                sees all namespaces; both only for a cluster of this machine.
            **fields: fields of ``JobSpec``.

        Raises:
            SpecError: the specification cannot work; nothing was written or uploaded.
            DataError: a table cannot be written as Parquet.
            InvalidInputError: there is no folder for tables that the job may read.
        """
        tables = tables_of(spec, fields)
        if tables:
            self._check(spec, {**fields, **stand_ins(tables)}, model_zoo)
        fields.update(place_tables(self, self.endpoint, tables, data_folder))
        if model_zoo is None:
            body = submission(spec, fields)
        else:
            body, data = submission_of_directory(spec, fields, str(Path(model_zoo)))
            body["model_bundle"] = self._upload(Path(model_zoo), data)
        JobSpec.from_mapping(body)
        headers = {"Idempotency-Key": idempotency_key or uuid.uuid4().hex}
        return Job.from_json(self._api.fetch(Request("POST", "/jobs", json=body, headers=headers)))

    def upload(self, model_zoo: str | os.PathLike[str]) -> str:
        """Packs and uploads a directory of model modules; gives its digest, for ``model_bundle``."""
        return self._upload(Path(model_zoo), ())

    def unpack(self, digest: str, folder: str | os.PathLike[str]) -> Path:
        """Fetches a bundle of model modules and unpacks it.

        Args:
            digest: the ``model_bundle`` of a job.
            folder: where the zoo's directory is to be.

        Returns:
            The zoo's directory.

        Raises:
            ConflictError: what came is another bundle.
        """
        from elasticdl_runtime.bundles import digest_of, unpack_zoo

        request = Request("GET", f"/bundles/{digest}", read_timeout_s=UPLOAD_TIMEOUT_S)
        content = (self._api.exchange(request)).body
        if digest_of(content) != digest:
            raise ConflictError(f"what came is not the bundle {digest}", fix="try again")
        packed = Path(folder) / "bundle.zip"
        run_blocking(packed.write_bytes, content)
        return Path(run_blocking(unpack_zoo, packed, folder))

    def get(self, job_id: str) -> Job:
        """One job as it is now."""
        return fetch_job(self._api, job_id)

    def list(self, *, limit: int = 50, page_token: str = "", **filters: Filter) -> JobPage:
        """One page of jobs, newest first.

        Args:
            limit: jobs on a page.
            page_token: the token that the page before gave; empty for the first page.
            **filters: what the jobs must have, ``state`` (one or a list), ``name``, ``label`` (one or
                a list of ``key=value``), ``namespace``, ``owner``, ``ids`` (a list, or with commas between them) or
                ``q``; ``sort`` orders them, and ``view="summary"`` leaves out specifications and most of each status.
                No job is in an empty list of ids or states.
        """
        if asks_for_none(filters):
            return JobPage((), "")
        params: dict[str, str | Sequence[str]] = {**texts(filters), "limit": str(limit)}
        if page_token:
            params["page_token"] = page_token
        data = self._api.fetch(Request("GET", "/jobs", params=params))
        return JobPage(tuple(Job.from_json(item) for item in data["jobs"]), str(data.get("next_page_token") or ""))

    def iterate(self, *, page_size: int = 100, **filters: Filter) -> Iterator[Job]:
        """All jobs, newest first, fetched page by page while iterating."""
        token = ""
        while True:
            page = self.list(limit=page_size, page_token=token, **filters)
            yield from page.jobs
            token = page.next_page_token
            if not token:
                return

    def cancel(self, job_id: str) -> Job:
        """Stops a job for good."""
        return self._ask(job_id, "cancel")

    def suspend(self, job_id: str) -> Job:
        """Stops a job so that it can go on later; its workers are free for others."""
        return self._ask(job_id, "suspend")

    def resume(self, job_id: str) -> Job:
        """Lets a suspended job go on where it was."""
        return self._ask(job_id, "resume")

    def scale(
        self,
        job_id: str,
        min_workers: int | None = None,
        max_workers: int | None = None,
        priority: int | None = None,
        **aliases: int,
    ) -> Job:
        """Changes how many workers a job may have, and how it ranks; what is not given stays.

        Args:
            job_id: the job.
            min_workers: fewest that it runs with.
            max_workers: it never has more.
            priority: higher goes first.
            **aliases: the same under the other names of fields, such as ``num_workers``.
        """
        change = resolve_aliases(
            {**given(min_workers=min_workers, max_workers=max_workers, priority=priority), **aliases}
        )
        if not change:
            raise InvalidInputError("there is nothing to change", fix="give min_workers, max_workers or priority")
        return Job.from_json(self._api.fetch(Request("PATCH", job_path(job_id), json=change)))

    def label(self, job_id: str, labels: Mapping[str, str | None]) -> Job:
        """Sets labels of a job, also of one that is over; None removes one, and those that are not named stay."""
        if not labels:
            raise InvalidInputError("there is no label to change", fix="give some")
        return Job.from_json(self._api.fetch(Request("PATCH", job_path(job_id), json={"labels": dict(labels)})))

    def delete(self, job_id: str) -> None:
        """Deletes a job that has ended, with its logs and artifacts."""
        self._api.exchange(Request("DELETE", job_path(job_id)))

    def events(self, job_id: str) -> Sequence[Event]:
        """The events of a job, oldest first."""
        events: list[Event] = []
        while True:
            params = {"after": str(events[-1].id if events else 0), "limit": str(EVENTS_AT_ONCE)}
            data = self._api.fetch(Request("GET", job_path(job_id, "events"), params=params))
            events.extend(Event.from_json(item) for item in data)
            if len(data) < EVENTS_AT_ONCE:
                return events

    def follow(self, job_id: str, *, patience_s: float = PATIENCE_S) -> Iterator[Job]:
        """A job as it is now, then a fresh view about every second, the last when it has ended.

        A lost connection is taken up again; an API that is away is waited for, ``patience_s`` seconds at most.
        """
        with closing(JobWatch(self._api, job_id, "", patience_s).updates()) as updates:
            for update in updates:
                if update.job is not None:
                    yield update.job

    def updates(self, job_id: str, *, after: int | None = None, patience_s: float = PATIENCE_S) -> Iterator[Update]:
        """The same, with the job's events in between as they happen.

        The first update is the job as it is now; then come its events (the old ones too) and views; the last has
        ``ended`` set. A lost connection is resumed after the last event that came.

        Args:
            job_id: the job.
            after: leave out events up to this id.
            patience_s: how long the API may be away in the meantime.
        """
        return JobWatch(self._api, job_id, "" if after is None else str(after), patience_s).updates()

    def logs(
        self,
        job_id: str,
        *,
        role: str = "worker",
        index: int = 0,
        tail: int | None = None,
        since: datetime | None = None,
    ) -> str:
        """The log of a process of a job, over all its incarnations.

        Args:
            job_id: the job.
            role: ``master``, ``ps`` or ``worker``.
            index: number of the process within its role.
            tail: only this many last lines.
            since: only what was printed then or later, to a second; a time without a zone is local time.
        """
        request = Request("GET", job_path(job_id, "logs"), params=log_params(role, index, tail, since))
        response = self._api.exchange(request)
        return response.body.decode("utf-8", "replace")

    def follow_logs(
        self,
        job_id: str,
        *,
        role: str = "worker",
        index: int = 0,
        tail: int | None = None,
        since: datetime | None = None,
    ) -> Iterator[str]:
        """The same line by line, with new lines as they come, until the job has ended."""
        return log_lines(self._api, job_id, log_params(role, index, tail, since), PATIENCE_S)

    def metrics(self, job_id: str) -> Mapping[str, Any]:
        """Losses and evaluations of a job so far."""
        return metrics_of(self._api.fetch(Request("GET", job_path(job_id, "metrics"))))

    def processes(self, job_id: str, *, role: str | None = None) -> Sequence[Mapping[str, Any]]:
        """The lives of a job's processes: launched, ready, told to leave, ended and why.

        Args:
            job_id: the job.
            role: only ``master``, ``ps`` or ``worker``.
        """
        found: list[Mapping[str, Any]] = []
        token: str | None = None
        while True:
            params = given(role=role, page_token=token)
            page = self._mapping(Request("GET", job_path(job_id, "processes"), params=params))
            found.extend(page["processes"])
            token = page["next_page_token"]
            if not token:
                return found

    def ledger(self, job_id: str) -> Mapping[str, Any]:
        """Records and tasks of a job that are committed, leased, to do or passed over; they add up to the plan."""
        return self._mapping(Request("GET", job_path(job_id, "ledger")))

    def series(
        self,
        job_id: str,
        *,
        names: Sequence[str] | None = None,
        since: datetime | None = None,
        until: datetime | None = None,
        by: str = "time",
        points: int = 300,
    ) -> Mapping[str, Any]:
        """Numbers of a job over time: points are where they lie, mean, least and largest.

        Args:
            job_id: the job.
            names: only these, such as ``samples_per_second`` or ``loss``.
            since: only from then on.
            until: only before then.
            by: ``time`` (seconds since the epoch) or ``version`` (of the model).
            points: at most about that many of each.
        """
        params = given(
            names=",".join(names) if names else None,
            since=moment_text(since),
            until=moment_text(until),
            by=by,
            points=str(points),
        )
        answer = self._mapping(Request("GET", job_path(job_id, "series"), params=params))
        return {**answer, "series": from_json(answer["series"])}

    def cluster_series(
        self, *, since: datetime | None = None, until: datetime | None = None, points: int = 300
    ) -> Mapping[str, Any]:
        """Slots and the queue over time.

        Args:
            since: only from then on.
            until: only before then.
            points: at most about that many of each.
        """
        params = given(since=moment_text(since), until=moment_text(until), points=str(points))
        return self._mapping(Request("GET", "/cluster/series", params=params))

    def artifacts(self, job_id: str) -> Sequence[Artifact]:
        """The artifacts of a job."""
        return fetch_artifacts(self._api, job_id)

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
        return download(self._api, job_id, Path(directory), names)

    def cluster(self) -> Mapping[str, Any]:
        """Slots, jobs and components of the cluster."""
        return self._mapping(Request("GET", "/cluster"))

    def explain(self, job_id: str) -> Mapping[str, Any]:
        """Why a job has the workers that it has, who holds what it lacks, what would help, and when it will end."""
        return self._mapping(Request("GET", job_path(job_id, "explain")))

    def plan(self) -> Mapping[str, Any]:
        """The scheduler's plan in force: targets, reasons and expected ends of all jobs that are not over."""
        return self._mapping(Request("GET", "/scheduler/plan"))

    def what_if(
        self,
        *,
        add: Sequence[Mapping[str, Any]] | None = None,
        cancel: Sequence[str] | None = None,
        priorities: Mapping[str, int] | None = None,
        sizes: Mapping[str, Mapping[str, int]] | None = None,
        slots: int | None = None,
        add_slots: int | None = None,
        devices: int | None = None,
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
            devices: GPUs of the whole cluster.
            add_nodes: machines more, each with its ``slots``.
            remove_nodes: names of machines fewer.
        """
        question = given(
            add=add,
            cancel=cancel,
            priorities=priorities,
            sizes=sizes,
            slots=slots,
            add_slots=add_slots,
            devices=devices,
            add_nodes=add_nodes,
            remove_nodes=remove_nodes,
        )
        return self._mapping(Request("POST", "/scheduler/what-if", json=question))

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
        params = given(
            job=job,
            since=moment_text(since),
            until=moment_text(until),
            full="true" if full else None,
            limit=str(limit),
            cursor=cursor or None,
        )
        return self._mapping(Request("GET", "/scheduler/decisions", params=params))

    def reservations(self) -> Mapping[str, Any]:
        """Slots that processes which are not the cluster's take from jobs; for administrators."""
        return self._mapping(Request("GET", "/cluster/reservations"))

    def reserve(self, name: str, slots: int, *, grace_s: float | None = None) -> Mapping[str, Any]:
        """Takes slots from jobs, or changes how many are taken; for administrators.

        Args:
            name: who takes them, e.g. the name of a service.
            slots: how many.
            grace_s: seconds that workers have to leave them; 30 by default.

        Returns:
            The reservation; ``granted`` says how many of the slots are free of workers.
        """
        body = given(slots=slots, grace_s=None if grace_s is None else float(grace_s))
        return self._mapping(Request("PUT", reservation_path(name), json=body))

    def release(self, name: str) -> None:
        """Gives reserved slots back to jobs; for administrators."""
        self._api.exchange(Request("DELETE", reservation_path(name)))

    def wait(
        self,
        job_id: str,
        timeout_s: float | None = None,
        *,
        states: Collection[JobState] | None = None,
        poll_s: float = POLL_S,
        patience_s: float = PATIENCE_S,
    ) -> Job:
        """Waits until a job has ended, however it ends, or is in a state; one that is over waits for nothing more.

        Args:
            job_id: the job.
            timeout_s: how long at most; without end when not given.
            states: states to wait for besides the end.
            poll_s: seconds between two looks.
            patience_s: how long the API may be away in the meantime.

        Raises:
            TimeoutError: it has not come so far in time.
            UnavailableError: the API has not answered for longer than ``patience_s``.
        """
        started = self._api.now()
        patience = Patience(patience_s)
        state = "not seen"
        while True:
            now = self._api.now()
            try:
                job = self.get(job_id)
                patience.answered()
                if job.state.terminal or job.state in (states or ()):
                    return job
                state = str(job.state)
            except UnavailableError:
                if patience.over(now, self._api.now()):
                    raise
            left = math.inf if timeout_s is None else started + timeout_s - self._api.now()
            if left <= 0:
                raise TimeoutError(f"job {job_id} is still {state} after {timeout_s:g} s")
            self._api.sleep(min(poll_s, left))

    def _ask(self, job_id: str, verb: str) -> Job:
        """Asks for a change of state: cancel, suspend or resume. Asking twice is asking once."""
        return Job.from_json(self._api.fetch(Request("POST", job_path(job_id, verb))))

    def _mapping(self, request: Request) -> dict[str, Any]:
        return dict(self._api.fetch(request))

    def _check(
        self,
        spec: JobSpec | Mapping[str, Any] | None,
        fields: Mapping[str, Any],
        model_zoo: str | os.PathLike[str] | None,
    ) -> None:
        """Refuses a specification that cannot work, before anything is written for it."""
        if model_zoo is None:
            JobSpec.from_mapping(submission(spec, fields))
        else:
            submission_of_directory(spec, fields, str(Path(model_zoo)))

    def _upload(self, model_zoo: Path, data: Sequence[str]) -> str:
        """Packs a directory, without a job's data in it, and uploads it unless the API has it; gives its digest."""
        from elasticdl_runtime.bundles import pack_bundle

        content, digest = run_blocking(pack_bundle, model_zoo, data=data)
        path = f"/bundles/{digest}"
        known = self._api.exchange(Request("HEAD", path), accept=frozenset({404}))
        if known.status == 404:
            headers = {"Content-Type": "application/zip"}
            self._api.exchange(
                Request("PUT", path, content=content, headers=headers, read_timeout_s=UPLOAD_TIMEOUT_S)
            )
        return str(digest)

"""Streams of a job, read as things happen: events, views and logs."""

from __future__ import annotations

import codecs
import json
from collections.abc import AsyncGenerator, Mapping
from datetime import UTC, datetime

from elasticdl.client.aio.connection import AsyncApiConnection, AsyncResponseStream
from elasticdl.client.messages import NoResponse, Request
from elasticdl.client.problems import error_of, unreachable
from elasticdl.client.requests import job_path
from elasticdl.client.retry import Patience
from elasticdl.client.sse import Message, SseDecoder
from elasticdl.client.views import Event, Job, Update
from elasticdl_core.errors import ElasticDLError, UnavailableError

SILENCE_S = 30.0
"""An event stream sends something, if only a comment, far more often than this; silence means a dead connection."""
LOG_SILENCE_S = 3600.0
_PASSING = frozenset({429, 500, 502, 503, 504})


async def fetch_job(api: AsyncApiConnection, job_id: str) -> Job:
    """One job as it is now."""
    return Job.from_json(await api.fetch(Request("GET", job_path(job_id))))


class AsyncJobWatch:
    """Follows a job until it ends, across lost connections and restarts of the API.

    Args:
        api: the API.
        job_id: the job.
        after: leave out events up to this id; empty for none.
        patience_s: how long to go without a single message before it gives up.
    """

    def __init__(self, api: AsyncApiConnection, job_id: str, after: str, patience_s: float) -> None:
        self._api = api
        self._job_id = job_id
        self._last = after
        self._failures = 0
        self._patience = Patience(patience_s)
        self._stale = False

    async def updates(self) -> AsyncGenerator[Update]:
        """The changes of a job, from its present view to its last.

        Raises:
            ElasticDLError: the job cannot be seen, or the API stays away.
        """
        job = await fetch_job(self._api, self._job_id)
        yield Update(job=job)
        while True:
            opened = self._api.now()
            headers = {"Accept": "text/event-stream", **({"Last-Event-ID": self._last} if self._last else {})}
            request = Request("GET", job_path(self._job_id, "events"), headers=headers, read_timeout_s=SILENCE_S)
            decoder = SseDecoder(self._last)
            async with await self._api.open(request) as stream:
                trouble = _trouble(stream, request, self._api.url)
                while trouble is None:
                    chunk = await stream.read()
                    if not isinstance(chunk, bytes):
                        break
                    for message in decoder.feed(chunk):
                        try:
                            update = await self._update(message, job)
                        except UnavailableError as error:
                            trouble = error  # between the message and a look at the job; both come again
                            break
                        if update is None:
                            continue
                        job = update.job or job
                        yield update
                        if update.ended:
                            return
            await self._pause(trouble, decoder.retry_s, opened)

    async def _update(self, message: Message, job: Job) -> Update | None:
        """The update in a message of the stream, if any."""
        self._last = message.id
        if message.type == "end":
            return Update(job=await fetch_job(self._api, self._job_id), ended=True)
        if message.type == "event":
            self._stale = True
            self._heard()
            return Update(event=Event.from_json(json.loads(message.data)))
        if message.type != "status":
            return None
        # Views lack checkpoints, evaluations and artifacts; an event tells that there may be new ones.
        fresh = await fetch_job(self._api, self._job_id) if self._stale else None
        self._stale = False
        self._heard()
        return Update(job=fresh or Job.from_json({**job.raw, **json.loads(message.data)}))

    def _heard(self) -> None:
        self._failures = 0
        self._patience.answered()

    async def _pause(self, trouble: ElasticDLError | None, wanted_s: float | None, opened: float) -> None:
        """Waits before the stream is opened anew, or gives up."""
        self._failures += 1
        if self._patience.over(opened, self._api.now()):
            raise trouble or UnavailableError(
                f"the API at {self._api.url} keeps closing the event stream of job {self._job_id}",
                fix="look at the API's log; `elasticdl jobs get` shows the job without a stream",
            )
        await self._api.sleep(wanted_s if wanted_s is not None else self._api.retry.backoff(self._failures - 1))


def _trouble(stream: AsyncResponseStream, request: Request, url: str) -> ElasticDLError | None:
    """The error that a reconnect may mend, or None when the stream is open; raises one that it cannot mend."""
    outcome = stream.outcome
    if isinstance(outcome, NoResponse):
        return unreachable(outcome, url)
    if outcome.status < 400:
        return None
    if outcome.status in _PASSING:
        return error_of(outcome, request)
    raise error_of(outcome, request)


async def log_lines(
    api: AsyncApiConnection, job_id: str, params: Mapping[str, str], patience_s: float
) -> AsyncGenerator[str]:
    """The lines of a process' log, old and new, until the job has ended, across lost connections and restarts.

    A log that is read from its beginning goes on where it was; another one from about the time at which something
    came last, so that some lines may come twice.

    Raises:
        ElasticDLError: the job or the log cannot be seen, or the API stays away.
    """
    patience, failures = Patience(patience_s), 0
    whole = not {"tail", "since"} & params.keys()
    where, received = dict(params), 0
    decoder, rest = codecs.getincrementaldecoder("utf-8")("replace"), ""
    while True:
        heard = datetime.now(UTC)
        followed = {**where, "follow": "true"}
        request = Request("GET", job_path(job_id, "logs"), params=followed, read_timeout_s=LOG_SILENCE_S)
        async with await api.open(request) as stream:
            trouble = _trouble(stream, request, api.url)
            if trouble is None:
                patience.answered()
            while trouble is None and (chunk := await stream.read()) is not None:
                if isinstance(chunk, NoResponse):
                    trouble = unreachable(chunk, api.url)
                    break
                failures, received, heard = 0, received + len(chunk), datetime.now(UTC)
                *lines, rest = (rest + decoder.decode(chunk)).split("\n")
                for line in lines:
                    yield line
        lost = api.now()
        try:
            if (await fetch_job(api, job_id)).state.terminal and trouble is None:
                break
        except UnavailableError as error:
            trouble = trouble or error
        if trouble is not None and patience.over(lost, api.now()):
            raise trouble
        await api.sleep(api.retry.backoff(failures))
        failures += 1
        where = {**where, "offset": str(received)} if whole else {**where, "since": heard.isoformat()}
        if not whole:
            where.pop("tail", None)
            decoder, rest = codecs.getincrementaldecoder("utf-8")("replace"), ""
    if rest := rest + decoder.decode(b"", final=True):
        yield rest

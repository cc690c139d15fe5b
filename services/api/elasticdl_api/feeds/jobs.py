"""The feeds of single jobs: events, status, and the end. One reader for all jobs that anybody watches."""

from __future__ import annotations

import contextlib
from collections.abc import AsyncIterator, Mapping, Sequence
from typing import Any

import structlog

from elasticdl_api.feeds.feed import REMEMBERED, Feed, FeedMessage, FeedReader, Follower, encode
from elasticdl_api.histories.ledger import ledger_of
from elasticdl_api.schemas import jobs as schemas
from elasticdl_api.schemas.histories import LedgerResponse
from elasticdl_api.store.changes import EVENTS_AT_ONCE, ChangedJob, ChangeStore
from elasticdl_api.store.records import JobRecord
from elasticdl_api.store.wakeups import Wakeups
from elasticdl_core.errors import UnavailableError

SETTLE_S = 0.05
"""Seconds after a look in which changes are gathered for the next one, at least."""
SETTLE_EACH_S = 0.0005
"""The same for each job that is watched, where that is more: a look asks for all of them."""
TOLD_EPOCHS = 50
"""Epochs of a ledger that a stream tells: those around the present one. The others are as they were."""
_STATUS, _END = "status", "end"
_log = structlog.get_logger(__name__)


class JobFeed(Feed):
    """The changes of one job, for readers of one namespace.

    Attributes:
        job_id: the job.
        version: of the job's row, as it was read last.
        cursor: the id of the last event that was read; None before the first look.
        due: whether its events are to be read.
        job: the job as it was read last.
    """

    def __init__(self, job_id: str) -> None:
        super().__init__()
        self.job_id = job_id
        self.version = ""
        self.cursor: int | None = None
        self.due = True
        self.job: JobRecord | None = None
        self._shown: bytes | None = None

    def events(self, rows: Sequence[Mapping[str, Any]]) -> list[FeedMessage]:
        """Rows of ``events`` as messages."""
        if rows:
            self.cursor = rows[-1]["id"]
        return [event_message(row) for row in rows]

    def status(self) -> list[FeedMessage]:
        """The job's status as a message, unless it was told already."""
        if self.job is None:
            return []
        ledger = ledger_of(self.job.status, active=self.job.state.active, most_epochs=TOLD_EPOCHS)
        state = schemas.JobStateResponse.model_validate(self.job, from_attributes=True)
        data = encode(_STATUS, schemas.JobLiveResponse(**dict(state), ledger=LedgerResponse(**ledger)))
        if data == self._shown:
            return []
        self._shown = data
        return [FeedMessage(data, topic=_STATUS)]

    def conclusion(self) -> list[FeedMessage]:
        """The last message, if the job is over."""
        if self.job is None or not self.job.terminal:
            return []
        return [_end({"state": self.job.state, "reason": self.job.reason, "error": self.job.error})]


def event_message(row: Mapping[str, Any]) -> FeedMessage:
    """A row of ``events`` as a message."""
    event = schemas.EventResponse.model_validate({name: row[name] for name in schemas.EventResponse.model_fields})
    return FeedMessage(encode("event", event, event.id), event.id)


def _end(content: dict[str, Any]) -> FeedMessage:
    return FeedMessage(encode("end", content), topic=_END, last=True)


class JobFeeds:
    """The feeds of all jobs that somebody watches, by one task that lives as long as somebody does.

    Args:
        store: reads what changed.
        wakeups: tells which job changed.
    """

    def __init__(self, store: ChangeStore, wakeups: Wakeups) -> None:
        self._store = store
        self._wakeups = wakeups
        self._feeds: dict[tuple[str | None, str], JobFeed] = {}
        self._reader = FeedReader(
            "job feeds", wakeups, self._hear, lambda: bool(self._feeds), self._look_at_all, self._settle_s
        )

    @contextlib.asynccontextmanager
    async def follow(self, job_id: str, namespace: str | None, after: int) -> AsyncIterator[Follower]:
        """Follows a job, from an event's id on.

        Args:
            job_id: a job that the reader may see.
            namespace: the only one that the reader sees.
            after: the last event that the reader has.

        Raises:
            UnavailableError: Postgres does not answer.
        """
        key, follower = (namespace, job_id), Follower()
        feed = self._feeds.get(key)
        if feed is None:
            feed = self._feeds[key] = JobFeed(job_id)
            self._reader.wake()
        feed.watchers += 1
        self._reader.ensure_running()
        try:
            await feed.wait_until_begun()
            await self._catch_up(feed, follower, namespace, after)
            yield follower
        finally:
            feed.remove(follower)
            feed.watchers -= 1
            if not feed.watchers and self._feeds.get(key) is feed:
                del self._feeds[key]
                self._reader.wake()

    async def _catch_up(self, feed: JobFeed, follower: Follower, namespace: str | None, after: int) -> None:
        """Gives a new follower what it missed; what comes meanwhile is remembered."""
        if after > (feed.cursor or 0) and not await self._store.list_events({feed.job_id: after - 1}, namespace, 1):
            after = 0  # an id of before the database was restored: what it stood for is not known here
        missed: list[FeedMessage] = []
        while (remembered := feed.after(after)) is None:
            rows = (await self._store.list_events({feed.job_id: after}, namespace)).get(feed.job_id, [])
            missed += [event_message(row) for row in rows]
            after = rows[-1]["id"] if rows else feed.first
        # No await from here on: nothing is published between what is remembered and what is told.
        ending = [feed.latest[topic] for topic in (_STATUS, _END) if topic in feed.latest]
        follower.begin([*missed, *remembered, *ending])
        if _END in feed.latest:
            follower.end()
        feed.add(follower)

    def close(self) -> None:
        """Ends all streams."""
        for feed in self._feeds.values():
            feed.end()

    def look_soon(self, job_id: str) -> None:
        """Has a job looked at, if anybody watches it: its master reports, which the database tells nobody."""
        if self._of(job_id):
            self._reader.wake()

    def _settle_s(self) -> float:
        return max(SETTLE_S, SETTLE_EACH_S * len(self._feeds))

    async def _look_at_all(self) -> None:
        for namespace in {namespace for namespace, _ in self._feeds}:
            try:
                await self._look(namespace)
            except UnavailableError as error:
                _log.warning("the streams wait", error=error.message)
            except Exception:
                _log.exception("a look at the jobs that are watched failed")

    def _hear(self, job_id: str | None) -> None:
        for (_, watched), feed in self._feeds.items() if job_id is None else self._of(job_id):
            if job_id in (None, watched):
                feed.due = True
                self._reader.wake()

    def _of(self, job_id: str) -> list[tuple[tuple[str | None, str], JobFeed]]:
        views = {namespace for namespace, _ in self._feeds}
        return [((one, job_id), self._feeds[one, job_id]) for one in views if (one, job_id) in self._feeds]

    async def _look(self, namespace: str | None) -> None:
        feeds = {job_id: feed for (view, job_id), feed in self._feeds.items() if view == namespace}
        # The jobs first: a terminal state that is seen has its event among those that are read next.
        versions = {job_id: feed.version for job_id, feed in feeds.items()}
        changed = await self._store.read_jobs(versions, namespace)
        told = self._wakeups.listening
        due = {name: feed for name, feed in feeds.items() if feed.due or not told or name in changed}
        for feed in due.values():
            feed.due = False
        try:
            events = await self._events(due, namespace)
        except BaseException:
            for feed in due.values():
                feed.due = True
            raise
        for job_id, feed in due.items():
            try:
                await self._tell(feed, namespace, changed.get(job_id), events.get(job_id, []))
            except Exception:
                # What cannot be told of one job costs the others nothing; its followers come again.
                _log.exception("a job's stream failed", job=job_id)
                self._feeds.pop((namespace, job_id), None)
                feed.end()
                feed.begun.set()

    async def _events(self, feeds: Mapping[str, JobFeed], namespace: str | None) -> dict[str, list[dict[str, Any]]]:
        fresh = [job_id for job_id, feed in feeds.items() if feed.cursor is None]
        known = {job_id: feed.cursor for job_id, feed in feeds.items() if feed.cursor is not None}
        found = await self._store.list_last_events(fresh, namespace, REMEMBERED) if fresh else {}
        for job_id in fresh:
            rows = found.setdefault(job_id, [])
            if len(rows) == REMEMBERED:
                feeds[job_id].first = rows[0]["id"] - 1
            feeds[job_id].cursor = 0
        if known:
            found |= await self._store.list_events(known, namespace)
        return found

    async def _tell(
        self, feed: JobFeed, namespace: str | None, change: ChangedJob | None, rows: list[dict[str, Any]]
    ) -> None:
        messages = feed.events(rows)
        more = len(rows) == EVENTS_AT_ONCE
        if change is not None and change.job is None:
            messages.append(_end({"state": "DELETED", "reason": "the job was deleted"}))
        elif change is not None:
            feed.version, feed.job = change.version, change.job
            messages += feed.status()
        if more:
            feed.due = True
            self._reader.wake()
        else:
            messages += feed.conclusion()
        if messages and messages[-1].last and self._feeds.get((namespace, feed.job_id)) is feed:
            # Whoever comes from now on gets a feed of its own, and the end from there.
            del self._feeds[namespace, feed.job_id]
        if messages:
            await feed.publish(messages)
        feed.begun.set()

"""The feeds of all jobs that a reader sees, and of the cluster: what a list needs to stay as it is in the database.

A feed has no history in the database: its messages are numbered by the process that reads it, and the last ones are
remembered. Who comes again within them misses nothing; who comes later, or to another process, is told ``reset``: it
reads the lists anew.
"""

from __future__ import annotations

import contextlib
import secrets
import time
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import replace

import structlog

from elasticdl_api.feeds.feed import Feed, FeedMessage, FeedReader, Follower, encode
from elasticdl_api.schemas import jobs as schemas
from elasticdl_api.store.changes import ChangedJob, ChangeStore
from elasticdl_api.store.records import brief_status
from elasticdl_api.store.wakeups import Wakeups
from elasticdl_core.errors import UnavailableError

CLUSTER_EVERY_S = 2.0
"""Seconds between two looks at the cluster."""
SETTLE_S = 0.25
"""Seconds after a look in which changes are gathered for the next one, at least."""
SETTLE_EACH_S = 0.001
"""The same for each who follows, where that is more: each is sent all that changed."""
_CLUSTER = "cluster"
_log = structlog.get_logger(__name__)

Overview = Callable[[str | None], Awaitable[schemas.ClusterResponse]]
"""Gives the cluster as a reader of a namespace sees it."""


class OverviewFeed(Feed):
    """All jobs of one namespace, or all there are.

    Args:
        brief: whether of each status the numbers alone are told.

    Attributes:
        versions: the version of each job that was seen.
        live: the jobs that were not over when they were looked at last.
        heard: jobs of which a change was told since.
        everything: whether any job may have changed since.
        number: of the last message.
        cluster_at: when the cluster was looked at last.
    """

    def __init__(self, *, brief: bool = False) -> None:
        super().__init__()
        self.brief = brief
        self.versions: dict[str, str] = {}
        self.live: set[str] = set()
        self.heard: set[str] = set()
        self.everything = True
        self.number = 0
        self.cluster_at = -CLUSTER_EVERY_S

    def next_message(self, kind: str, content: schemas.JobStateResponse | dict[str, str], job_id: str) -> FeedMessage:
        """A message with the next number."""
        self.number += 1
        return FeedMessage(encode(kind, content, self.place(self.number)), self.number, f"job {job_id}")

    def place(self, number: int) -> str:
        """The id of a message: numbers of another feed mean nothing in this one."""
        return f"{_INSTANCE}{'s' * self.brief}-{number}"

    def missed(self, last_event_id: str | None) -> list[FeedMessage] | None:
        """The messages after one that a reader has, or None when they are not known here."""
        place, _, number = (last_event_id or "").rpartition("-")
        if f"{place}-0" != self.place(0) or not (number.isascii() and number.isdigit()) or len(number) > 18:
            return None
        return self.after(int(number)) if int(number) <= self.last else None


_INSTANCE = secrets.token_hex(6)
"""Names this process: the numbers of another one mean nothing here."""


class OverviewFeeds:
    """The feeds by namespace, by one task that lives as long as somebody follows.

    Args:
        store: reads what changed.
        wakeups: tells which job changed.
        overview: gives the cluster.
    """

    def __init__(self, store: ChangeStore, wakeups: Wakeups, overview: Overview) -> None:
        self._store = store
        self._wakeups = wakeups
        self._overview = overview
        self._feeds: dict[tuple[str | None, bool], OverviewFeed] = {}
        self._reader = FeedReader(
            "overview feeds", wakeups, self._hear, lambda: bool(self._feeds), self._look_at_all, self._settle_s
        )

    @contextlib.asynccontextmanager
    async def follow(
        self, namespace: str | None, last_event_id: str | None, *, brief: bool = False
    ) -> AsyncIterator[Follower]:
        """Follows all jobs of a namespace, or all there are, and the cluster.

        Args:
            namespace: the only one that the reader sees.
            last_event_id: of the last message that the reader has; None for none.
            brief: whether of each status the numbers alone are told.

        Raises:
            UnavailableError: Postgres does not answer.
        """
        key, follower = (namespace, brief), Follower()
        feed = self._feeds.setdefault(key, OverviewFeed(brief=brief))
        feed.watchers += 1
        self._reader.wake()
        self._reader.ensure_running()
        try:
            await feed.wait_until_begun()
            missed = feed.missed(last_event_id)
            if missed is None:
                missed = [FeedMessage(encode("reset", {}, feed.place(feed.last)))]
            follower.begin([*missed, *feed.latest.values()])
            feed.add(follower)
            yield follower
        finally:
            feed.remove(follower)
            feed.watchers -= 1
            if not feed.watchers and self._feeds.get(key) is feed:
                del self._feeds[key]

    def close(self) -> None:
        """Ends all streams."""
        for feed in self._feeds.values():
            feed.end()

    def _settle_s(self) -> float:
        return max(SETTLE_S, SETTLE_EACH_S * sum(len(feed) for feed in self._feeds.values()))

    async def _look_at_all(self) -> None:
        for (namespace, _), feed in list(self._feeds.items()):
            try:
                await feed.publish(await self._look(namespace, feed))
                feed.begun.set()
            except UnavailableError as error:
                feed.everything = True
                _log.warning("the streams wait", error=error.message)
            except Exception:
                feed.everything = True
                _log.exception("a look at all jobs failed")

    def _hear(self, job_id: str | None) -> None:
        for feed in self._feeds.values():
            if job_id is None:
                feed.everything = True
            else:
                feed.heard.add(job_id)
        self._reader.wake()

    async def _look(self, namespace: str | None, feed: OverviewFeed) -> list[FeedMessage]:
        everything = feed.everything or not self._wakeups.listening
        heard, feed.heard, feed.everything = feed.heard, set(), False
        present = await self._store.read_versions(namespace, live=not everything)
        messages: list[FeedMessage] = []
        if feed.begun.is_set():
            gone = (set(feed.versions) if everything else feed.live) - set(present)
            differ = {job_id for job_id, version in present.items() if feed.versions.get(job_id) != version}
            suspects = {job_id: feed.versions.get(job_id, "") for job_id in differ | gone | heard}
            changed = await self._store.read_jobs(suspects, namespace) if suspects else {}
            for job_id, change in changed.items():
                messages += _told(feed, job_id, change)
        else:
            feed.versions = present
        feed.live = set(present) if not everything else feed.live | set(present)
        messages += await self._cluster(namespace, feed)
        return messages

    async def _cluster(self, namespace: str | None, feed: OverviewFeed) -> list[FeedMessage]:
        now = time.monotonic()
        if now - feed.cluster_at < CLUSTER_EVERY_S:
            return []
        feed.cluster_at = now
        message = FeedMessage(encode(_CLUSTER, await self._overview(namespace)), topic=_CLUSTER)
        return [] if feed.latest.get(_CLUSTER) == message else [message]


def _told(feed: OverviewFeed, job_id: str, change: ChangedJob) -> list[FeedMessage]:
    """The message about a job that changed; none about one that was never seen and is not there."""
    if change.job is None:
        return [feed.next_message("deleted", {"id": job_id}, job_id)] if feed.versions.pop(job_id, None) else []
    feed.versions[job_id] = change.version
    job = replace(change.job, status=brief_status(change.job.status)) if feed.brief else change.job
    state = schemas.JobStateResponse.model_validate(job, from_attributes=True)
    return [feed.next_message("job", state, job_id)]

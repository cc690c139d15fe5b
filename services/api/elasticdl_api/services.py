"""The parts that routes work with: built once by ``main``, handed to the application."""

from __future__ import annotations

import asyncio
from collections.abc import Awaitable, Callable
from dataclasses import dataclass, field
from typing import Annotated

import httpx
from fastapi import Depends, Request

from elasticdl_api.examination.examiners import Examiners
from elasticdl_api.examination.statements import StatementPlanner
from elasticdl_api.feeds.jobs import JobFeeds
from elasticdl_api.feeds.overview import OverviewFeeds
from elasticdl_api.feeds.streams import Slot, StreamSlots
from elasticdl_api.histories.shown_series import SeriesViews
from elasticdl_api.limits import LimitReader
from elasticdl_api.places.digests import ArtifactDigests
from elasticdl_api.places.disk import DiskLimits
from elasticdl_api.places.path_policies import PathPolicies
from elasticdl_api.scheduling.cluster_view import ClusterViews
from elasticdl_api.scheduling.overview import ClusterOverview
from elasticdl_api.scrape.collection import MeterCollection
from elasticdl_api.settings import ApiSettings
from elasticdl_api.store.changes import ChangeStore
from elasticdl_api.store.intents import IntentStore
from elasticdl_api.store.job_lists import JobLists
from elasticdl_api.store.job_views import ShownJobs
from elasticdl_api.store.jobs import JobStore
from elasticdl_api.store.masters import MasterStore
from elasticdl_api.store.namespaces import NamespaceStore
from elasticdl_api.store.outputs import OutputLists
from elasticdl_api.store.places import PlaceStore
from elasticdl_api.store.processes import ProcessLists
from elasticdl_api.store.retention import RetentionStore
from elasticdl_api.store.scheduling import SchedulingStore
from elasticdl_api.store.scraped_jobs import ScrapedJobs
from elasticdl_api.store.searches import SearchStore
from elasticdl_api.store.series import SeriesStore
from elasticdl_api.store.sessions import SessionStore
from elasticdl_api.store.statements import StatementStore
from elasticdl_api.store.tokens import TokenStore
from elasticdl_api.store.wakeups import Wakeups
from elasticdl_api.web.access_log import AccessLog
from elasticdl_api.web.auth import Identity, current_master, current_user
from elasticdl_api.web.oidc import ProviderKeys, ProviderTokens
from elasticdl_api.web.paging import PageTokens
from elasticdl_core.ports.launcher import Launcher
from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.tokens import Claims


@dataclass
class Services:
    """The object graph.

    Attributes:
        settings: the settings.
        database: the pool.
        launcher: starts and stops processes of jobs; None when there is no agent.
        wakeups: tells when a job has changed.
        examiners: read what tenants made; whoever builds this closes them.
        access_log: takes a line for each request; None for no log. Whoever builds this closes it.
        stopping: set when the api is told to stop: long answers end then.
    """

    settings: ApiSettings
    database: Database
    launcher: Launcher | None
    wakeups: Wakeups
    examiners: Examiners = field(default_factory=Examiners)
    access_log: AccessLog | None = None
    stopping: asyncio.Event = field(default_factory=asyncio.Event)

    def __post_init__(self) -> None:
        self.jobs = JobStore(self.database)
        self.masters = MasterStore(self.database)
        self.intents = IntentStore(self.database)
        self._provider_http: httpx.AsyncClient | None = None
        self.provider_keys: ProviderKeys | None = None
        self.provider: Callable[[str], Awaitable[Identity]] | None = None
        if self.settings.provider is not None:
            self._provider_http = httpx.AsyncClient()
            self.provider_keys = ProviderKeys(self.settings.provider.issuer, self._provider_http)
            self.provider = ProviderTokens(self.settings.provider, self.provider_keys).identify
        self.tokens = TokenStore(self.database)
        self.sessions = SessionStore(self.database)
        self.namespaces = NamespaceStore(self.database)
        self.statements = StatementStore(self.database)
        self.searches = SearchStore(self.database)
        self.planner = StatementPlanner()
        self.job_views = ShownJobs(self.database)
        self.outputs = OutputLists(self.database)
        self.series = SeriesStore(self.database)
        self.series_views = SeriesViews(self.series, self.job_views)
        self.process_lists = ProcessLists(self.database)
        self.scraped_jobs = ScrapedJobs(self.database)
        self.meter_collection = MeterCollection(self.launcher)
        self.job_lists = JobLists(self.database, self.job_views)
        self.pages = PageTokens(self.settings.cluster_secret)
        self.scheduling = SchedulingStore(self.database)
        self.retention = RetentionStore(self.database)
        self.disk = DiskLimits(self.settings, self.retention)
        self.places = PlaceStore(self.database)
        self.digests = ArtifactDigests()
        self.reaches = PathPolicies(self.settings, self.places)
        self.cluster_views = ClusterViews(self.scheduling, self.launcher)
        self.overview = ClusterOverview(self.jobs, self.launcher, self.settings, self.scheduling)
        self.limits = LimitReader(self.namespaces, self.settings)
        changes = ChangeStore(self.database)
        self.job_feeds = JobFeeds(changes, self.wakeups)
        self.overview_feeds = OverviewFeeds(changes, self.wakeups, self.overview.read)
        self.stream_slots = StreamSlots(self.settings.max_streams)
        self.log_slots = StreamSlots(self.settings.max_followed_logs)

    async def close_provider(self) -> None:
        """Closes the connections to the identity provider."""
        if self._provider_http is not None:
            await self._provider_http.aclose()

    async def stream_slot(self, user: Identity) -> Slot:
        """A dependency that takes a slot for one more stream of a user's."""
        most = await self.limits.streams_of(user.namespace)
        return lambda: self.stream_slots.taken(user.token_id, most)

    async def log_slot(self, user: Identity) -> Slot:
        """A dependency that takes a slot for one more log that a user follows."""
        most = await self.limits.streams_of(user.namespace)
        return lambda: self.log_slots.taken(user.token_id, most)

    def stop(self) -> None:
        """Ends long answers: the api is told to stop."""
        self.stopping.set()
        self.job_feeds.close()
        self.overview_feeds.close()


async def _services(request: Request) -> Services:
    found: Services = request.app.state.services
    return found


Api = Annotated[Services, Depends(_services)]
User = Annotated[Identity, Depends(current_user)]
Master = Annotated[Claims, Depends(current_master)]

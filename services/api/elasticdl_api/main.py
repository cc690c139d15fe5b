"""Builds the object graph and serves until told to stop."""

from __future__ import annotations

import asyncio
import contextlib
import functools
import gc
import resource
import socket
from collections.abc import Iterator

import structlog
import uvicorn

from elasticdl_api.app import create_app
from elasticdl_api.background.loops import background
from elasticdl_api.services import Services
from elasticdl_api.settings import ApiSettings, DatabaseSettings
from elasticdl_api.store.migrate import migrate
from elasticdl_api.store.wakeups import Wakeups
from elasticdl_api.web.access_log import AccessLog
from elasticdl_api.web.renewal import keep_renewing
from elasticdl_api.web.wire import Wire, WireLimits
from elasticdl_core.backoff import Backoff
from elasticdl_core.errors import UnavailableError
from elasticdl_core.ports.launcher import Launcher
from elasticdl_runtime.database.engine import Database
from elasticdl_runtime.lifecycle import wait_for_event
from elasticdl_runtime.retry import Attempts
from elasticdl_runtime.telemetry import meters
from elasticdl_runtime.telemetry.logs import configure_logs

SHUTDOWN_S = 8
DATABASE_PATIENCE_S = 60.0
FILES_BESIDE_STREAMS = 1000
"""Files that are open besides: requests, the database, logs, artifacts."""
_DATABASE_PAUSES = Backoff(0.5, 0.5)
_COLLECT_AFTER = (5_000, 80, 100)
"""Allocations, and collections of each younger generation, after which one of the next is made. The first is small: a
collection holds up everybody, four milliseconds for so many objects."""
_log = structlog.get_logger(__name__)


class ApiServer(uvicorn.Server):
    """Uvicorn under our own signals: the process is told to stop in one place."""

    @contextlib.contextmanager
    def capture_signals(self) -> Iterator[None]:
        """Captures none."""
        yield

    async def startup(self, sockets: list[socket.socket] | None = None) -> None:
        """Starts to listen, and says where: with port 0 nobody else knows."""
        await super().startup(sockets=sockets)
        if self.started:
            host, port = self.servers[0].sockets[0].getsockname()[:2]
            _log.info("listening", host=host, port=port)


def _collect_seldom() -> None:
    """Has the garbage collector look more seldom: thousands of open streams are millions of objects that stay.

    With Python's own limits nearly a third of the processor's time went into looking at 10,000 of them.
    """
    gc.freeze()
    gc.set_threshold(*_COLLECT_AFTER)


async def serve(stop: asyncio.Event) -> int:
    """Serves the api until ``stop`` is set.

    Returns:
        The exit code.
    """
    configure_logs(role="api")
    settings = ApiSettings.read()
    _raise_file_limit(settings.max_streams)
    _collect_seldom()
    if not settings.loopback and settings.tls_cert is None:
        _log.warning("listening beyond loopback without TLS, as ELASTICDL_API_PLAIN_HTTP says", host=settings.host)
    async with contextlib.AsyncExitStack() as stack:
        meters.show_disk(settings.data_dir)
        database = Database(settings.database_url, application="elasticdl-api")
        stack.push_async_callback(database.close)
        await _migrate_patiently(database, stop)
        if stop.is_set():
            return 0
        services = Services(
            settings=settings,
            database=database,
            launcher=await _launcher(settings, stack),
            wakeups=Wakeups(database),
            access_log=_access_log(settings, stack),
        )
        stack.callback(services.examiners.close)
        stack.push_async_callback(services.close_provider)
        app = create_app(services, background(services))
        config = uvicorn.Config(
            app,
            host=settings.host,
            port=settings.port,
            ssl_certfile=settings.tls_cert,
            ssl_keyfile=settings.tls_key,
            http=functools.partial(Wire, WireLimits(settings.head_seconds, settings.max_strangers)),  # type: ignore[arg-type]
            ws="none",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=SHUTDOWN_S,
            timeout_keep_alive=30,
            # Uvicorn's own default believes whoever asks from loopback.
            proxy_headers=bool(settings.proxies),
            forwarded_allow_ips=settings.proxies,
            lifespan="on",
        )
        config.load()
        if config.ssl is not None and settings.tls_cert is not None and settings.tls_key is not None:
            renewing = asyncio.create_task(
                keep_renewing(config.ssl, settings.tls_cert, settings.tls_key), name="certificate"
            )
            stack.callback(renewing.cancel)
        server = ApiServer(config)
        await _run(server, services, stop)
        return 0 if server.started else 1


async def migrate_only(_stop: asyncio.Event, revision: str = "head") -> int:
    """Brings the database's schema up to date, or up to a revision."""
    configure_logs(role="api")
    database = Database(DatabaseSettings.read().database_url, application="elasticdl-api")
    try:
        await migrate(database, revision)
    finally:
        await database.close()
    print("the schema is up to date" if revision == "head" else f"the schema is at {revision}")
    return 0


def _raise_file_limit(streams: int) -> None:
    """Lets the process have as many files open as it may: each stream is one."""
    soft, hard = resource.getrlimit(resource.RLIMIT_NOFILE)
    wanted = streams + FILES_BESIDE_STREAMS
    most = wanted if hard == resource.RLIM_INFINITY else min(wanted, hard)
    if soft == resource.RLIM_INFINITY or soft >= most:
        most = soft
    else:
        resource.setrlimit(resource.RLIMIT_NOFILE, (most, hard))
    if most != resource.RLIM_INFINITY and most < wanted:
        _log.warning(
            "fewer files may be open than streams are allowed",
            files=most,
            streams=streams,
            fix=f"raise the hard limit (ulimit -Hn {wanted}), or lower ELASTICDL_API_MAX_STREAMS",
        )


def _access_log(settings: ApiSettings, stack: contextlib.AsyncExitStack) -> AccessLog | None:
    if settings.access_log_file is None:
        return None
    log = AccessLog(settings.access_log_file)
    stack.callback(log.close)
    return log


async def _launcher(settings: ApiSettings, stack: contextlib.AsyncExitStack) -> Launcher | None:
    if not settings.agent_address:
        _log.warning("no agent: jobs are queued, but nothing is launched", fix="set ELASTICDL_AGENT")
        return None
    from elasticdl_runtime.launcher.client import ProcessLauncher

    launcher: Launcher = await stack.enter_async_context(ProcessLauncher(settings.agent_address, settings.node_token))
    return launcher


async def _migrate_patiently(database: Database, stop: asyncio.Event) -> None:
    """Waits for a database that is still starting, but not for ever."""
    last: UnavailableError | None = None
    attempts = Attempts(_DATABASE_PAUSES, DATABASE_PATIENCE_S, sleep=lambda seconds: wait_for_event(stop, seconds))
    async for _ in attempts:
        if stop.is_set():
            return
        try:
            await migrate(database)
            return
        except UnavailableError as error:
            last = error
            _log.warning("waiting for the database", error=error.message)
    if last is not None:
        raise last


async def _run(server: ApiServer, services: Services, stop: asyncio.Event) -> None:
    serving = asyncio.create_task(server.serve(), name="server")
    stopping = asyncio.create_task(stop.wait(), name="stop")
    await asyncio.wait({serving, stopping}, return_when=asyncio.FIRST_COMPLETED)
    # Streams end by themselves now; requests in flight have a few seconds.
    services.stop()
    server.should_exit = True
    stopping.cancel()
    await serving
